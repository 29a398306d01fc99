// Fuzzes the split patterns. Any bytes as a text give, for each pattern, non-empty pieces that end
// with the text. The tokens of a byte-level vocabulary with merges, for the pattern that the text's
// length selects, joined are the text.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/bpe/bpe_vocabulary.h"
#include "megatron/data/tokenizer/bpe/byte_level_bpe.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"

namespace {

using megatron::ByteLevelBpe;
using megatron::SplitPattern;

constexpr SplitPattern kPatterns[] = {SplitPattern::kGpt2,          SplitPattern::kCl100k,
                                      SplitPattern::kQwen2,         SplitPattern::kO200k,
                                      SplitPattern::kTekken,        SplitPattern::kTiktokenV1,
                                      SplitPattern::kCl100kTiktoken};

megatron::ByteLevelVocabulary Vocabulary() {
  megatron::ByteLevelVocabulary vocabulary;
  for (int i = 0; i < 256; ++i) vocabulary.tokens.push_back(std::string(1, static_cast<char>(i)));
  for (const char* token : {"aa", "aaa", "ab", " a", "\xE3\x81", "\xE3\x81\x82", "  ", "aaaa"}) {
    vocabulary.tokens.push_back(token);
  }
  vocabulary.merges = megatron::MergesOfRanks(vocabulary.tokens);
  return vocabulary;
}

void CheckPieces(absl::string_view text, megatron::FirstPiece first_piece) {
  while (!text.empty()) {
    const size_t piece = first_piece(text);
    CHECK(0 < piece && piece <= text.size());
    text.remove_prefix(piece);
  }
}

void CheckTokens(absl::string_view text, megatron::FirstPiece first_piece) {
  static const auto* const bpe = new ByteLevelBpe(Vocabulary());
  static const auto* const tokens = new std::vector<std::string>(Vocabulary().tokens);
  const megatron::FirstPiece stages[] = {megatron::FirstPieceByDigits(true), first_piece};
  std::vector<int32_t> ids;
  CHECK(bpe->Encode(text, stages, &ids).ok());
  std::string joined;
  for (const int32_t id : ids) joined += (*tokens)[static_cast<size_t>(id)];
  CHECK_EQ(joined, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  // Only some texts are tried as expressions, since each refusal lists the known ones.
  if (text.empty() || text[0] == '(') megatron::FindSplitPattern(text).IgnoreError();
  for (const SplitPattern pattern : kPatterns) CheckPieces(text, megatron::FirstPieceOf(pattern));
  CheckTokens(text, megatron::FirstPieceOf(kPatterns[size % std::size(kPatterns)]));
  return 0;
}
