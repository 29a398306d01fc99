// The inputs of a program that reads text: files, plain or compressed, pipes, and stdin.
#ifndef MEGATRON_DATA_IO_TEXT_INPUT_H_
#define MEGATRON_DATA_IO_TEXT_INPUT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/io/byte_source.h"

namespace megatron {

struct TextInputs {
  std::vector<std::string> paths;
  // The total size on disk, in bytes; -1 if one of them is a pipe or stdin.
  int64_t stored_bytes = 0;
};

// Returns the files that `patterns` name. "-" is stdin; the path of an existing file stands for
// that file whatever characters it has; everything else is a pattern with *, ? and [...], whose
// files come in the byte order of their names. kNotFound if a pattern matches nothing,
// kInvalidArgument if stdin is named twice or there are no patterns; the system's error if a folder
// that a pattern goes through can't be listed.
absl::StatusOr<TextInputs> FindTextInputs(const std::vector<std::string>& patterns);

// Opens a path with OpenByteSource and decompresses it with Decompress.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenTextInput(const std::string& path,
                                                          const std::atomic<bool>* stop);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_TEXT_INPUT_H_
