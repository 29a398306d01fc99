#include "megatron/checkpoint/safetensors_writer.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/safetensors_index.h"

namespace megatron {
namespace {

absl::Status WriteAll(FileSystem& fs, const std::string& path, const std::string& header_bytes,
                      const SafetensorsHeader& header, SafetensorsSource source) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs.Create(path));
  MEGATRON_RETURN_IF_ERROR(file->Append(header_bytes));
  std::string bytes;
  for (const SafetensorsTensor& tensor : header.tensors) {
    bytes.clear();
    MEGATRON_RETURN_IF_ERROR(source(tensor, &bytes), _ << "while writing '" << tensor.name << "'");
    CHECK_EQ(static_cast<int64_t>(bytes.size()), tensor.bytes()) << tensor.name;
    MEGATRON_RETURN_IF_ERROR(file->Append(bytes));
  }
  MEGATRON_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

absl::Status WriteSafetensorsFile(FileSystem& fs, const std::string& path, SafetensorsHeader header,
                                  SafetensorsSource source) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string header_bytes, LayOutSafetensors(&header),
                            _ << "while writing " << path);
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteAll(fs, temporary, header_bytes, header, source);
  if (status.ok()) status = fs.Rename(temporary, path);
  if (!status.ok()) {
    fs.Remove(temporary).IgnoreError();  // The first error is the one to tell.
    return status;
  }
  return fs.SyncDir(ParentPath(path));
}

absl::Status WriteSafetensorsModel(FileSystem& fs, const std::string& directory,
                                   const std::vector<SafetensorsTensor>& tensors,
                                   const SafetensorsModelOptions& options,
                                   SafetensorsSource source) {
  SafetensorsHeader all;
  all.tensors = tensors;
  // Computes the sizes, and finds names that occur twice, be it in different files.
  MEGATRON_RETURN_IF_ERROR(LayOutSafetensors(&all).status());
  std::map<std::string, SafetensorsTensor> sized;
  for (const SafetensorsTensor& tensor : all.tensors) sized[tensor.name] = tensor;
  std::vector<SafetensorsTensor> ordered;
  for (const SafetensorsTensor& tensor : tensors) ordered.push_back(sized[tensor.name]);

  const auto shards = PlanSafetensorsShards(ordered, options.max_file_bytes);
  SafetensorsIndex index;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = SafetensorsShardName(i, shards.size());
    for (const SafetensorsTensor& tensor : shards[i]) index[tensor.name] = name;
    SafetensorsHeader header;
    header.metadata = options.metadata;
    header.tensors = shards[i];
    MEGATRON_RETURN_IF_ERROR(
        WriteSafetensorsFile(fs, JoinPath(directory, name), std::move(header), source));
  }
  if (shards.size() == 1) return absl::OkStatus();
  const int64_t total = all.tensors.empty() ? 0 : all.tensors.back().end;
  return WriteFileAtomically(fs, JoinPath(directory, kSafetensorsIndexFileName),
                             SerializeSafetensorsIndex(index, total));
}

}  // namespace megatron
