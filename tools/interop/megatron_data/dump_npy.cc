// Prints arrays in .npy files as our reader sees them, one a line: type, shape, numbers.

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/little_endian.h"
#include "megatron/data/npy.h"
#include "tools/common/tool_main.h"

namespace megatron {
namespace {

template <typename T>
std::string Numbers(absl::string_view data) {
  std::vector<T> numbers(data.size() / sizeof(T));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = LoadLittleEndian<T>(data.data(), static_cast<int64_t>(i));
  return absl::StrJoin(numbers, ",");
}

absl::StatusOr<std::string> Numbers(const NpyArray& array) {
  if (array.type == "<i2") return Numbers<int16_t>(array.data);
  if (array.type == "<i4") return Numbers<int32_t>(array.data);
  if (array.type == "<u4") return Numbers<uint32_t>(array.data);
  if (array.type == "<i8") return Numbers<int64_t>(array.data);
  return absl::InvalidArgumentError(absl::StrCat("no index is of type ", array.type));
}

absl::Status Main(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string file, ReadFileToString(PosixFileSystem(), path));
    MEGATRON_ASSIGN_OR_RETURN(const NpyArray array, ParseNpy(file), _ << path);
    MEGATRON_ASSIGN_OR_RETURN(const std::string numbers, Numbers(array), _ << path);
    std::cout << array.type << " " << absl::StrJoin(array.shape, ",") << " " << numbers << "\n";
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Prints arrays in .npy files.", megatron::Main);
}
