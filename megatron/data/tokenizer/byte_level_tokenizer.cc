#include "megatron/data/tokenizer/byte_level_tokenizer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

constexpr absl::string_view kEod = "<|endoftext|>";

}  // namespace

absl::Status ByteLevelTokenizer::DoEncode(absl::string_view text, const EncodeOptions& options,
                                          std::vector<int32_t>* ids) const {
  for (size_t at = 0; at < text.size();) {
    const bool special = options.parse_special && absl::StartsWith(text.substr(at), kEod);
    const size_t bytes = special ? kEod.size() : 1;
    ids->push_back(special ? eod() : static_cast<unsigned char>(text[at]));
    if (options.spans != nullptr) options.spans->push_back({at, at + bytes});
    at += bytes;
  }
  return absl::OkStatus();
}

std::string ByteLevelTokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    absl::StrAppend(&text, 0 <= id && id < vocab_size() ? Piece(id) : "\xEF\xBF\xBD");
  }
  return text;
}

std::string ByteLevelTokenizer::Piece(int32_t id) const {
  if (0 <= id && id < 256) return std::string(1, static_cast<char>(id));
  return id == eod() ? std::string(kEod) : std::string();
}

}  // namespace megatron
