// Fuzzes PrecompiledCharsmap: any bytes as normalization rules and a text give either an error, or
// rules that replace no more than the text has. The text follows the last 0xfe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/sentencepiece/precompiled_charsmap.h"
#include "megatron/data/tokenizer/unicode.h"

namespace {

void CheckMap(const megatron::PrecompiledCharsmap& map, absl::string_view text) {
  for (size_t i = 0; i <= text.size(); ++i) {
    const size_t longest = map.Longest(text.substr(i)).length;
    CHECK_LE(longest, text.size() - i);
    CHECK_LE(map.Shortest(text.substr(i)).length, longest);
  }
  const std::string valid = megatron::ReplaceInvalidUtf8(text);
  std::vector<size_t> origins;
  const std::string normalized = megatron::NormalizePrecompiled(map, valid, &origins);
  CHECK_EQ(origins.size(), normalized.size() + 1);
  CHECK_EQ(origins.back(), valid.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t mark = std::min(bytes.rfind('\xfe'), bytes.size());
  const absl::string_view text = bytes.substr(std::min(mark + 1, bytes.size()));
  const auto map = megatron::PrecompiledCharsmap::Create(bytes.substr(0, mark));
  if (map.ok()) CheckMap(*map, text);
  return 0;
}
