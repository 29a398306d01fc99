#include "megatron/data/byte_level_tokenizer.h"

#include "absl/strings/str_cat.h"

namespace megatron {

absl::Status ByteLevelTokenizer::Encode(absl::string_view text, std::vector<int32_t>* ids) const {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  ids->insert(ids->end(), bytes, bytes + text.size());
  return absl::OkStatus();
}

std::string ByteLevelTokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    if (0 <= id && id < 256) {
      text.push_back(static_cast<char>(id));
    } else {
      absl::StrAppend(&text, id == eod() ? "<|endoftext|>" : "\xEF\xBF\xBD");
    }
  }
  return text;
}

}  // namespace megatron
