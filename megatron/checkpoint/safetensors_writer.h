// Writes .safetensors files, tensor by tensor, so that memory for one tensor at a time is enough.
//
// The same tensors give the same bytes, which are those that the format's own library writes.
#ifndef MEGATRON_CHECKPOINT_SAFETENSORS_WRITER_H_
#define MEGATRON_CHECKPOINT_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/safetensors_header.h"

namespace megatron {

// Gives the bytes of a tensor, exactly tensor.bytes() of them. Called once for each tensor, in the
// order of the file.
using SafetensorsSource =
    absl::FunctionRef<absl::Status(const SafetensorsTensor& tensor, std::string* bytes)>;

// Writes one file through `path`.tmp: after an error, or a crash at any instant, `path` is what it
// was or the whole new file. Of `header`, names, dtypes, shapes and metadata count.
absl::Status WriteSafetensorsFile(FileSystem& fs, const std::string& path, SafetensorsHeader header,
                                  SafetensorsSource source);

struct SafetensorsModelOptions {
  // The most bytes of tensors in one file. Where they don't fit, there are several files and an
  // index.
  int64_t max_file_bytes = 5'000'000'000;
  // Readers of models for PyTorch expect format = pt.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

// Writes a model's files into `directory`, which exists and holds none yet; the index comes last.
absl::Status WriteSafetensorsModel(FileSystem& fs, const std::string& directory,
                                   const std::vector<SafetensorsTensor>& tensors,
                                   const SafetensorsModelOptions& options,
                                   SafetensorsSource source);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_SAFETENSORS_WRITER_H_
