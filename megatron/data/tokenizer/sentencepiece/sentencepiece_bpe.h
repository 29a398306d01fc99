// SentencePiece's byte-pair encoding: two neighbours merge if together they spell a piece, the
// piece with the best score first, the leftmost of equal ones first. It has no list of merges, and
// starts from characters.
//
// A text is merged in parts between which no merge can happen, which gives the same pieces in less
// time. The model is immutable.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_BPE_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_BPE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/bpe/merge_table.h"
#include "megatron/data/tokenizer/piece_trie.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_model.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

class SentencePieceBpe {
 public:
  // Creates a model. kUnimplemented if pieces are marked as unused, which makes encodings depend on
  // the order in which merges were tried.
  static absl::StatusOr<SentencePieceBpe> Create(const SentencePieceModel& model);

  // Appends the pieces of `text`, which is normalized, to `ids`, and their positions in it to
  // `spans` if it is not null. A run of unknown characters is one unknown piece, or the pieces of
  // its bytes. The time is O(n log n). kInvalidArgument for texts of 4 GiB and more.
  absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids,
                      std::vector<TextSpan>* spans) const;

 private:
  // Symbols are piece ids, followed by characters that are no piece but part of one; an unknown
  // character of n bytes is -n.
  struct Work;

  SentencePieceBpe() = default;
  void AddCharacters(const SentencePieceModel& model);
  void AddMerges(const SentencePieceModel& model);
  int32_t SymbolOf(absl::string_view character) const;
  size_t LengthOf(int32_t symbol) const;
  bool MayMergeWithSpace(char32_t before) const { return before_space_.contains(before); }
  void MergeAndAppend(absl::string_view text, size_t end, Work* work) const;
  void AppendUnknown(absl::string_view text, size_t at, size_t length, Work* work) const;

  PieceTrie user_defined_;
  std::array<int32_t, 128> ascii_{};  // symbols of ASCII characters
  PieceTrie characters_;              // pieces of one character, with their symbols
  std::vector<size_t> lengths_;       // lengths of the symbols in bytes
  int32_t num_pieces_ = 0;
  int32_t unk_id_ = -1;
  std::vector<int32_t> byte_ids_;
  MergeTable merges_;
  absl::flat_hash_set<char32_t> before_space_;  // characters that "▁" follows in some piece
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_BPE_H_
