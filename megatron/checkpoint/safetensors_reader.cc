#include "megatron/checkpoint/safetensors_reader.h"

#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/safetensors_index.h"

namespace megatron {
namespace {

bool Exists(const std::string& path) { return PosixFileSystem().Stat(path).ok(); }

absl::StatusOr<SafetensorsIndex> ReadIndex(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            ReadFileToString(PosixFileSystem(), path, kMaxSafetensorsIndexBytes));
  MEGATRON_ASSIGN_OR_RETURN(SafetensorsIndex index, ParseSafetensorsIndex(text),
                            _.SetPrepend() << path << ": ");
  return index;
}

// Checks that the file's tensors are those that the index places there.
absl::Status CheckAgainstIndex(const SafetensorsIndex& index, const std::string& name,
                               const SafetensorsFile& file) {
  std::set<absl::string_view> expected;
  for (const auto& [tensor, file_name] : index) {
    if (file_name == name) expected.insert(tensor);
  }
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    if (expected.erase(tensor.name) == 0) {
      return absl::DataLossError(absl::StrCat(file.path(), ": holds '", tensor.name,
                                              "', which the index doesn't place there"));
    }
  }
  if (expected.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(file.path(), ": lacks '", *expected.begin(), "', which the index places there"));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  MEGATRON_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(file.data()),
                            _.SetPrepend() << path << ": ");
  return SafetensorsFile(std::move(file), std::move(header));
}

absl::string_view SafetensorsFile::Bytes(const SafetensorsTensor& tensor) const {
  return file_.data().substr(static_cast<size_t>(header_.data_begin + tensor.begin),
                             static_cast<size_t>(tensor.bytes()));
}

void SafetensorsModel::Add(SafetensorsFile file) {
  for (size_t i = 0; i < file.header().tensors.size(); ++i) {
    places_.emplace(file.header().tensors[i].name, Place{files_.size(), i});
  }
  files_.push_back(std::move(file));
}

absl::StatusOr<SafetensorsModel> SafetensorsModel::Open(const std::string& directory) {
  SafetensorsModel model;
  const std::string single = JoinPath(directory, kSafetensorsFileName);
  const std::string index_path = JoinPath(directory, kSafetensorsIndexFileName);
  if (Exists(single)) {
    MEGATRON_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
    model.Add(std::move(file));
    return model;
  }
  if (!Exists(index_path)) {
    return absl::NotFoundError(absl::StrCat(
        directory, ": has neither ", kSafetensorsFileName, " nor ", kSafetensorsIndexFileName,
        "; other formats, such as pytorch_model.bin, can execute code and are not read"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const SafetensorsIndex index, ReadIndex(index_path));
  std::set<std::string> names;
  for (const auto& [tensor, name] : index) names.insert(name);
  for (const std::string& name : names) {
    MEGATRON_ASSIGN_OR_RETURN(SafetensorsFile file,
                              SafetensorsFile::Open(JoinPath(directory, name)));
    MEGATRON_RETURN_IF_ERROR(CheckAgainstIndex(index, name, file));
    model.Add(std::move(file));
  }
  return model;
}

std::vector<absl::string_view> SafetensorsModel::Names() const {
  std::vector<absl::string_view> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

const SafetensorsTensor* SafetensorsModel::Find(absl::string_view name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return nullptr;
  return &files_[found->second.file].header().tensors[found->second.tensor];
}

absl::string_view SafetensorsModel::Bytes(const SafetensorsTensor& tensor) const {
  const auto found = places_.find(tensor.name);
  CHECK(found != places_.end()) << tensor.name;
  return files_[found->second.file].Bytes(tensor);
}

void SafetensorsModel::Forget(const SafetensorsTensor& tensor) const {
  const auto found = places_.find(tensor.name);
  CHECK(found != places_.end()) << tensor.name;
  files_[found->second.file].Forget(tensor);
}

}  // namespace megatron
