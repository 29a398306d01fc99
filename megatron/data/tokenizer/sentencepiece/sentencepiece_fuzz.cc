// Fuzzes SentencePieceTokenizer: any bytes as a model and a text give either an error, or ids in
// range whose spans follow each other in the text, and which can be decoded.
//
// The first byte selects the flavor and options; the text is the bytes after the last 0xfe, at most
// 32 at the end. If a model is refused, another one, filled in from the remaining bytes, is tried,
// since hardly any random change leaves a model valid.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_testing.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_tokenizer.h"

namespace {

using megatron::SentencePieceModel;
using megatron::SentencePieceTokenizer;

// This choice is rare, since 256 pieces take time.
constexpr uint8_t kByteFallback = 0xb0;

// More pieces show nothing new, and take time as well.
constexpr int kMostPieces = 12;

// Takes bytes from the front.
class Bytes {
 public:
  explicit Bytes(absl::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  uint8_t Next() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return byte;
  }
  std::string Take(size_t size) {
    const std::string taken(rest_.substr(0, size));
    rest_.remove_prefix(taken.size());
    return taken;
  }

 private:
  absl::string_view rest_;
};

SentencePieceModel BuildModel(absl::string_view data) {
  Bytes bytes(data);
  const uint8_t flags = bytes.Next();
  SentencePieceModel model = megatron::MakeSentencePieceModel(
      flags % 2 == 0 ? SentencePieceModel::Type::kBpe : SentencePieceModel::Type::kUnigram, {},
      bytes.Next() == kByteFallback);
  model.treat_whitespace_as_suffix = (flags & 4) != 0;
  model.normalizer.add_dummy_prefix = (flags & 8) != 0;
  model.normalizer.remove_extra_whitespaces = (flags & 16) != 0;
  model.normalizer.escape_whitespaces = (flags & 32) != 0;
  if ((flags & 64) != 0) model.normalizer.charsmap = bytes.Take(bytes.Next());
  if ((flags & 128) != 0) model.denormalizer_charsmap = model.normalizer.charsmap;
  for (int i = 0; i < kMostPieces && !bytes.empty(); ++i) {
    const uint8_t head = bytes.Next();
    SentencePieceModel::Piece piece;
    piece.kind =
        head % 8 == 7 ? SentencePieceModel::Kind::kUserDefined : SentencePieceModel::Kind::kNormal;
    piece.score = -static_cast<float>(bytes.Next() % 16);
    piece.text = bytes.Take(1 + head / 8 % 8);
    const bool is_new = std::none_of(model.pieces.begin(), model.pieces.end(),
                                     [&](const auto& other) { return other.text == piece.text; });
    if (is_new && !piece.text.empty()) model.pieces.push_back(std::move(piece));
  }
  return model;
}

void CheckTokenizer(const SentencePieceTokenizer& tokenizer, absl::string_view text, bool parse) {
  std::vector<int32_t> ids;
  std::vector<megatron::TextSpan> spans;
  megatron::EncodeOptions options;
  options.parse_special = parse;
  options.spans = &spans;
  CHECK_EQ(tokenizer.Encode(text, &ids, options), absl::OkStatus());
  CHECK_EQ(ids.size(), spans.size());
  size_t end = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= 0 && ids[i] < tokenizer.vocab_size());
    CHECK_LE(end, spans[i].begin);
    CHECK_LE(spans[i].begin, spans[i].end);
    end = spans[i].end;
    tokenizer.Piece(ids[i]);
  }
  CHECK_LE(end, text.size());
  std::vector<int32_t> plain;
  options.spans = nullptr;
  CHECK_EQ(tokenizer.Encode(text, &plain, options), absl::OkStatus());
  CHECK(plain == ids);
  ids.push_back(-1);
  tokenizer.Decode(ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  absl::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  megatron::SentencePieceTokenizerOptions options;
  options.flavor = static_cast<megatron::SentencePieceTokenizerOptions::Flavor>(data[0] % 3);
  options.vocab_extra_ids = data[0] / 3 % 2;
  const size_t mark = std::min(bytes.rfind('\xfe'), bytes.size());
  const absl::string_view text = bytes.substr(std::min(mark + 1, bytes.size())).substr(0, 32);
  bytes = bytes.substr(0, mark);
  auto tokenizer = SentencePieceTokenizer::FromBytes(bytes, options);
  if (!tokenizer.ok()) {
    tokenizer = SentencePieceTokenizer::FromBytes(
        megatron::SerializeSentencePieceModel(BuildModel(bytes)), options);
  }
  if (tokenizer.ok()) CheckTokenizer(**tokenizer, text, data[0] >= 128);
  return 0;
}
