// Fuzzes WordPieceTokenizer: any bytes as BERT's vocabulary and a text give either an error, or ids
// in range whose spans follow each other in the text. The first byte selects the options; the text
// follows the last 0xfe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/wordpiece/bert_normalizer.h"
#include "megatron/data/tokenizer/wordpiece/wordpiece_tokenizer.h"

namespace {

void CheckTokenizer(const megatron::WordPieceTokenizer& tokenizer, absl::string_view text,
                    bool parse) {
  std::vector<int32_t> ids;
  std::vector<megatron::TextSpan> spans;
  megatron::EncodeOptions options;
  options.parse_special = parse;
  options.spans = &spans;
  CHECK_EQ(tokenizer.Encode(text, &ids, options), absl::OkStatus());
  CHECK_EQ(ids.size(), spans.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= 0 && ids[i] < tokenizer.vocab_size());
    CHECK_LT(spans[i].begin, spans[i].end);
    CHECK_LE(spans[i].end, text.size());
    // Pieces of one decomposed character have the same bytes as span.
    if (i > 0) CHECK_LE(spans[i - 1].begin, spans[i].begin);
    tokenizer.Piece(ids[i]);
  }
  ids.push_back(-1);
  tokenizer.Decode(ids);
}

void CheckHuggingFaceDialect(absl::string_view text, uint8_t flags) {
  megatron::BertNormalizerOptions options;
  options.clean_text = (flags & 1) != 0;
  options.handle_chinese_chars = (flags & 2) != 0;
  options.strip_accents = (flags & 4) != 0;
  options.lowercase = (flags & 8) != 0;
  std::vector<size_t> origins;
  const std::string normalized = megatron::NormalizeBert(text, options, &origins);
  CHECK_EQ(origins.size(), normalized.size() + 1);
  CHECK_EQ(origins.back(), text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  absl::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t mark = std::min(bytes.rfind('\xfe'), bytes.size());
  const absl::string_view text = bytes.substr(std::min(mark + 1, bytes.size()));
  megatron::WordPieceTokenizerOptions options;
  options.lower_case = data[0] % 2 == 0;
  options.vocab_extra_ids = data[0] / 2 % 4 - 1;
  CheckHuggingFaceDialect(text, data[0] / 8);
  // Most random vocabularies lack the required special tokens, so these are also tried in front.
  const std::string special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const std::string& start : {std::string(), special}) {
    const auto tokenizer = megatron::WordPieceTokenizer::FromBytes(
        start + std::string(bytes.substr(0, mark)), options);
    if (tokenizer.ok()) CheckTokenizer(**tokenizer, text, data[0] >= 128);
  }
  return 0;
}
