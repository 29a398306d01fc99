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
  // Bytes of all of them as they lie on disk; -1 where one is a pipe or stdin.
  int64_t stored_bytes = 0;
};

// What `patterns` name: "-" is stdin, a file is itself whatever characters its name has, and all
// else is a pattern with *, ? and [...], whose files come in the order of their names' bytes.
// kNotFound where one names nothing, kInvalidArgument where stdin is named twice or there are none.
absl::StatusOr<TextInputs> FindTextInputs(const std::vector<std::string>& patterns);

// OpenByteSource and Decompress in one.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenTextInput(const std::string& path,
                                                          const std::atomic<bool>* stop);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_TEXT_INPUT_H_
