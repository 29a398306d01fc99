// The part of a run that is profiled: begins and ends the trace of each profiled rank, and reports
// it.
//
// All ranks make the same calls, since they wait for each other before the trace begins, so that
// their times have one zero. Only ranks whose stream is traced write anything.
#ifndef MEGATRON_TRAIN_PROFILE_PROFILE_WINDOW_H_
#define MEGATRON_TRAIN_PROFILE_PROFILE_WINDOW_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/profile/memory_table.h"
#include "megatron/train/profile/profile_options.h"

namespace megatron {

class ProfileWindow {
 public:
  struct Context {
    ProfileOptions options;
    ProcessGroup world;
    Trace* trace = nullptr;  // null: this rank is not profiled
    const MemoryLedger* ledger = nullptr;
    BytesByName planned;
  };

  // `stream`, the compute stream, and `fs` must outlive this.
  ProfileWindow(const Context& context, const Stream& stream, FileSystem& fs);

  // Tells the window that `iterations` are done and another follows: it may begin or end here.
  // Returns a message for the log, mostly empty.
  absl::StatusOr<std::string> Reach(int64_t iterations);
  // Tells the window that training ends after `iterations`.
  absl::StatusOr<std::string> Leave(int64_t iterations);

 private:
  bool looks() const { return context_.trace != nullptr; }
  void Begin(int64_t iterations);
  absl::StatusOr<std::string> End(int64_t iterations);

  const Context context_;
  const Stream stream_;
  FileSystem& fs_;
  bool open_ = false, over_ = false;
  int64_t first_ = 0;  // iterations done when it began
};

// Returns "PROFILE_DIR/trace_rank_3.json", or "PROFILE_DIR/trace_rank_3_from_12.json" for a window
// that a continued run began late, after 11 iterations.
std::string TracePath(const std::string& directory, int rank, int64_t after);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_PROFILE_WINDOW_H_
