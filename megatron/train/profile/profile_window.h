// The part of a run that is profiled: begins and ends the trace of each rank that is looked at, and
// tells of it.
//
// All ranks call it alike, since they wait for each other before the trace begins, so that their
// times have one zero. Only those whose stream is followed write anything.
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
    Trace* trace = nullptr;  // null: this rank is not looked at
    const MemoryLedger* ledger = nullptr;
    BytesByName planned;
  };

  // Both must outlive this. `stream` is the one that computes.
  ProfileWindow(const Context& context, const Stream& stream, FileSystem& fs);

  // So many iterations are done and another follows: the window may begin or end here. Returns what
  // there is to tell, mostly nothing.
  absl::StatusOr<std::string> Reach(int64_t iterations);
  // Training is left after so many iterations.
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

// "PROFILE_DIR/trace_rank_3.json"; of a window that a continued run began late, after 11
// iterations, "PROFILE_DIR/trace_rank_3_from_12.json".
std::string TracePath(const std::string& directory, int rank, int64_t after);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_PROFILE_WINDOW_H_
