// Reads .safetensors files: one, or all those of a model's directory. Files are mapped, nothing is
// copied; see mapped_file.h for what that asks of the files.
//
//   MEGATRON_ASSIGN_OR_RETURN(const SafetensorsModel model, SafetensorsModel::Open(directory));
//   const SafetensorsTensor* tensor = model.Find("transformer.wte.weight");
//   if (tensor != nullptr) Use(model.Bytes(*tensor));
//
// The bytes may stand at any address: copy before reading them as numbers. The format has no
// checksum, so damage to them goes unseen. Errors: kDataLoss, with the path, where a file is not
// what the format says.
//
// Any number of threads may read.
#ifndef MEGATRON_CHECKPOINT_SAFETENSORS_READER_H_
#define MEGATRON_CHECKPOINT_SAFETENSORS_READER_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/mapped_file.h"
#include "megatron/checkpoint/safetensors_header.h"

namespace megatron {

class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }

  // `tensor` is one of the header's.
  absl::string_view Bytes(const SafetensorsTensor& tensor) const;
  // The tensor's memory goes back to the system; it is read again when it is touched.
  void Forget(const SafetensorsTensor& tensor) const { file_.Forget(Bytes(tensor)); }

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  MappedFile file_;
  SafetensorsHeader header_;
};

// The tensors of a directory: those of model.safetensors, or where that is missing, of the files
// that model.safetensors.index.json names. Index and files must agree on every tensor.
class SafetensorsModel {
 public:
  static absl::StatusOr<SafetensorsModel> Open(const std::string& directory);

  // Returns the names, ascending.
  std::vector<absl::string_view> Names() const;
  // Returns null where there is none of that name.
  const SafetensorsTensor* Find(absl::string_view name) const;
  // `tensor` is one that Find returned.
  absl::string_view Bytes(const SafetensorsTensor& tensor) const;
  void Forget(const SafetensorsTensor& tensor) const;

 private:
  struct Place {
    size_t file;
    size_t tensor;  // position in the file's header
  };

  void Add(SafetensorsFile file);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_SAFETENSORS_READER_H_
