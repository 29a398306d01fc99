// Fuzzes CreateTokenizerFromJson: any bytes as a tokenizer.json give either an error, or a
// tokenizer whose ids are in range, whose spans are inside the text, and which decodes. The text to
// encode follows the first byte 0xff. A byte 0x01 before it, which no JSON contains, stands for the
// 256 pieces of byte fallback, since files that spell them are long.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/json/tokenizer_json.h"

namespace {

// Returns all byte pieces as members of a vocabulary.
std::string BytePieces() {
  std::string pieces;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppendFormat(&pieces, "%s\"<0x%02X>\":%d", byte == 0 ? "" : ",", byte, 4 + byte);
  }
  return pieces;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const byte_pieces = new std::string(BytePieces());
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(input, absl::MaxSplits('\xff', 1));
  std::string json(parts.first);
  const size_t mark = json.find('\x01');
  if (mark != std::string::npos) json.replace(mark, 1, *byte_pieces);
  const auto names = megatron::ParseSpecialTokenNames(json);
  const absl::StatusOr<std::unique_ptr<megatron::Tokenizer>> tokenizer =
      megatron::CreateTokenizerFromJson(json, names.ok() ? *names : megatron::SpecialTokenNames());
  if (!tokenizer.ok()) return 0;
  for (const bool parse_special : {false, true}) {
    std::vector<int32_t> ids;
    std::vector<megatron::TextSpan> spans;
    megatron::EncodeOptions options;
    options.parse_special = parse_special;
    options.spans = &spans;
    if (!(*tokenizer)->Encode(parts.second, &ids, options).ok()) continue;
    CHECK_EQ(ids.size(), spans.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      CHECK(0 <= ids[i] && ids[i] < (*tokenizer)->vocab_size());
      CHECK_LE(spans[i].begin, spans[i].end);
      CHECK_LE(spans[i].end, parts.second.size());
    }
    (*tokenizer)->Decode(ids);
    std::vector<int32_t> again;
    options.spans = nullptr;
    CHECK((*tokenizer)->Encode(parts.second, &again, options).ok());
    CHECK(again == ids) << "spans changed the tokens";
  }
  return 0;
}
