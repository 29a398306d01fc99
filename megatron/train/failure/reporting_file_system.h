// A rank's file system: whoever watches the rank sees when it is at a file, which may take as long
// as a disk takes, and when it has done with it.
#ifndef MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_
#define MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_

#include "megatron/base/wrapped_file_system.h"
#include "megatron/train/failure/rank_progress.h"

namespace megatron {

// Both arguments must outlive it and its files.
class ReportingFileSystem : public WrappedFileSystem {
 public:
  ReportingFileSystem(FileSystem* base, RankProgress* progress)
      : WrappedFileSystem(base), progress_(*progress) {}

 private:
  absl::Status Begin(const Operation&) override {
    progress_.BeginOutside();
    return absl::OkStatus();
  }
  void End() override { progress_.EndOutside(); }

  RankProgress& progress_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_REPORTING_FILE_SYSTEM_H_
