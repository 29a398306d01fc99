#include "megatron/train/huggingface/save_huggingface.h"

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/names.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/huggingface/export_checkpoint.h"

namespace megatron {
namespace {

absl::StatusOr<std::string> Save(FileSystem& fs, const RunOptions& options) {
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found,
                            FindLatestCheckpoint(fs, options.checkpoint.save));
  if (found.iteration != options.loop.train_iters) return std::string();
  HfExportOptions to;
  to.output = JoinPath(options.checkpoint.save_huggingface, DirectoryName(found.iteration));
  if (fs.Stat(to.output).ok()) {
    return absl::StrCat(to.output,
                        " is there already and is left as it is (checkpoint.save_huggingface)");
  }
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(options.checkpoint.save_huggingface));
  MEGATRON_RETURN_IF_ERROR(ExportCheckpoint(fs, found.directory, to).status());
  return absl::StrCat("the model for Hugging Face's libraries is in ", to.output);
}

}  // namespace

absl::StatusOr<std::string> SaveHuggingface(FileSystem& fs, const RunOptions& options) {
  if (options.checkpoint.save_huggingface.empty()) return std::string();
  absl::StatusOr<std::string> line = Save(fs, options);
  if (line.ok()) return line;
  return WithExitCode(
      absl::Status(line.status().code(),
                   absl::StrCat(line.status().message(), "; for checkpoint.save_huggingface")),
      kExitIo);
}

}  // namespace megatron
