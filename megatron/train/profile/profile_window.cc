#include "megatron/train/profile/profile_window.h"

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/profile/trace_json.h"

namespace megatron {

std::string TracePath(const std::string& directory, int rank, int64_t after) {
  const std::string begin = after > 0 ? absl::StrCat("_from_", after + 1) : "";
  return absl::StrCat(directory, "/trace_rank_", rank, begin, ".json");
}

ProfileWindow::ProfileWindow(const Context& context, const Stream& stream, FileSystem& fs)
    : context_(context), stream_(stream), fs_(fs) {}

absl::StatusOr<std::string> ProfileWindow::Reach(int64_t iterations) {
  const ProfileOptions& options = context_.options;
  if (!options.enabled || over_) return std::string();
  if (open_ && iterations >= options.end) return End(iterations);
  if (!open_ && iterations >= options.end) {
    over_ = true;
    if (!looks()) return std::string();
    return absl::StrCat("rank ", context_.world.rank(), ": nothing is profiled: ", iterations,
                        " iterations are done, and logging.profile_step_end = ", options.end, "\n");
  }
  if (!open_ && iterations >= options.start) Begin(iterations);
  if (open_) CountInTrace(stream_, "bytes held", context_.ledger->current_bytes());
  return std::string();
}

absl::StatusOr<std::string> ProfileWindow::Leave(int64_t iterations) {
  if (!open_) return std::string();
  return End(iterations);
}

void ProfileWindow::Begin(int64_t iterations) {
  open_ = true;
  first_ = iterations;
  if (stream_.device().type == DeviceType::kCuda) stream_.cuda()->Synchronize();
  context_.world.Barrier(stream_);
  if (!looks()) return;
  context_.trace->Start();
  if (stream_.device().type == DeviceType::kCuda) StartCudaProfiler();
}

absl::StatusOr<std::string> ProfileWindow::End(int64_t iterations) {
  open_ = false;
  over_ = true;
  if (!looks()) return std::string();
  if (stream_.device().type == DeviceType::kCuda) StopCudaProfiler();
  const int rank = context_.world.rank();
  const std::string title = absl::StrCat("rank ", rank, " of ", context_.world.size());
  // A run that was continued within the window does not write over the trace of the first part.
  const std::string path =
      TracePath(context_.options.directory, rank, first_ > context_.options.start ? first_ : 0);
  const std::string text = TraceJson(rank, title, context_.trace->Stop());
  MEGATRON_RETURN_IF_ERROR(fs_.CreateDirs(context_.options.directory));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs_, path, text));
  return absl::StrCat("rank ", rank, ": profile of iterations ", first_ + 1, " to ", iterations,
                      " in ", path, ", for https://ui.perfetto.dev\n",
                      FormatMemoryTable(context_.ledger->AtPeak(), context_.planned),
                      FormatProcessMemory(stream_.device()));
}

}  // namespace megatron
