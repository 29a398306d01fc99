#include "tools/common/whole_file.h"

#include <memory>

#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "tools/common/dataset_lock.h"

namespace megatron {

absl::Status WriteWholeFile(
    const std::string& path,
    absl::FunctionRef<absl::Status(absl::FunctionRef<absl::Status(absl::string_view)> append)>
        make) {
  FileSystem& fs = PosixFileSystem();
  MEGATRON_RETURN_IF_ERROR(CheckReplaceable(fs, path));
  MEGATRON_ASSIGN_OR_RETURN(const DatasetLock lock, DatasetLock::Take(path));
  const std::string partial = path + ".partial";
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs.Create(partial));
  absl::Status status = make([&](absl::string_view text) { return file->Append(text); });
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  if (status.ok()) status = fs.Rename(partial, path);
  if (!status.ok()) {
    fs.Remove(partial).IgnoreError();  // the first error is reported
    return status;
  }
  return fs.SyncDir(ParentPath(path));
}

}  // namespace megatron
