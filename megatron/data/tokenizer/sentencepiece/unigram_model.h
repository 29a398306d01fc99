// The unigram language model: of all ways to split a text into pieces, the one with the greatest
// sum of scores (Kudo 2018), found by Viterbi's algorithm.
//
// Characters that no piece covers are unknown; their score is 10 below the vocabulary's lowest. A
// run of them is one unknown token or, with byte fallback, one token "<0xE3>" per byte.
//
// Sums and ties agree to the last bit with the implementation that wrote the vocabulary:
// SentencePiece keeps sums as floats, Hugging Face's tokenizers as doubles. The model is immutable.
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
    kHidden,       // has an id, but no text is encoded as it
    kSpecial,      // the same, but its score counts as one of the vocabulary's
  };
  std::string text;  // not empty; all are different
  double score = 0;  // usually the logarithm of a probability
  Kind kind = Kind::kNormal;
};

struct UnigramOptions {
  int32_t unk_id = -1;         // -1: a text with an unknown character cannot be encoded
  bool byte_fallback = false;  // takes effect if all of <0x00> … <0xFF> are pieces
  bool float_sums = false;     // sums are floats, as in SentencePiece
};

class UnigramModel {
 public:
  // Creates a model in which a piece's id is its index. kInvalidArgument if a piece is empty or a
  // duplicate, a score is not finite, or unk_id is out of range.
  static absl::StatusOr<UnigramModel> Create(const std::vector<UnigramPiece>& pieces,
                                             const UnigramOptions& options);

  // Appends the pieces of `text` to `ids`, and their positions in it to `spans` if it is not null.
  // The time is O(text × the longest piece). kInvalidArgument, with nothing appended, for an
  // unknown character if there is no unknown token.
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
  std::vector<int32_t> byte_ids_;  // empty without byte fallback
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_UNIGRAM_MODEL_H_
