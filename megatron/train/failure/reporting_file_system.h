// A rank's file system, which reports each operation as an external wait of the rank: it may take as
// long as the disk takes.
#ifndef MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_
#define MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_

#include "megatron/base/wrapped_file_system.h"
#include "megatron/comm/watch/rank_progress.h"

namespace megatron {

// Both arguments must outlive it and its files.
class ReportingFileSystem : public WrappedFileSystem {
 public:
  ReportingFileSystem(FileSystem* base, RankProgress* progress)
      : WrappedFileSystem(base), progress_(*progress) {}

 private:
  absl::Status Begin(const Operation&) override {
    progress_.BeginExternalWait();
    return absl::OkStatus();
  }
  void End() override { progress_.EndExternalWait(); }

  RankProgress& progress_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_
