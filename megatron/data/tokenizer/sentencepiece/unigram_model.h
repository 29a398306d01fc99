// The unigram language model: of all ways to cut a text into pieces, the one with the greatest sum
// of scores (Kudo 2018), found by Viterbi's algorithm.
//
// Characters that no piece covers are unknown; their score is 10 below the vocabulary's lowest. A
// run of them is one unknown token, or, with byte fallback, one token "<0xE3>" per byte.
//
// Sums and ties are those of the implementation that wrote the vocabulary, to the last bit: in
// SentencePiece sums are kept as floats, in Hugging Face's tokenizers as doubles. Immutable.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_UNIGRAM_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_UNIGRAM_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/piece_trie.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct UnigramPiece {
  enum class Kind : uint8_t {
    kNormal,
    kUserDefined,  // chosen wherever it matches
    kHidden,       // has an id, but no text becomes it
  };
  std::string text;  // not empty, no two alike
  double score = 0;  // a logarithm of a probability, as a rule
  Kind kind = Kind::kNormal;
};

struct UnigramOptions {
  int32_t unk_id = -1;         // -1: a text with an unknown character can't be encoded
  bool byte_fallback = false;  // takes effect if all of <0x00> … <0xFF> are pieces
  bool float_sums = false;     // as SentencePiece
};

class UnigramModel {
 public:
  // A piece's id is its index. kInvalidArgument if a piece is empty or spelled like another, a
  // score is no finite number, or unk_id is out of range.
  static absl::StatusOr<UnigramModel> Create(const std::vector<UnigramPiece>& pieces,
                                             const UnigramOptions& options);

  // Appends the pieces of `text` to `ids`, and where they stand in it to `spans` if that isn't
  // null. O(text × the longest piece). kInvalidArgument, with nothing appended, for an unknown
  // character without a token for it.
  absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids,
                      std::vector<TextSpan>* spans) const;

 private:
  template <typename Sum>
  struct PathEnd;

  UnigramModel() = default;
  template <typename Sum>
  absl::Status EncodeWith(absl::string_view text, std::vector<int32_t>* ids,
                          std::vector<TextSpan>* spans) const;
  template <typename Sum>
  void FindPaths(absl::string_view text, std::vector<PathEnd<Sum>>* ends) const;
  template <typename Sum>
  double ScoreOf(int32_t id, size_t length) const;
  void AppendUnknown(absl::string_view text, TextSpan span, std::vector<int32_t>* ids,
                     std::vector<TextSpan>* spans) const;

  UnigramOptions options_;
  PieceTrie trie_;
  std::vector<double> scores_;
  std::vector<bool> user_defined_;
  bool has_user_defined_ = false;
  double max_score_ = 0;
  double unk_score_ = 0;
  std::vector<int32_t> byte_ids_;  // empty: no byte fallback
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_UNIGRAM_MODEL_H_
