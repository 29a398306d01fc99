// WordPiece: a word is split into the longest piece of the vocabulary with which it begins, then
// the longest that continues it, and so on. A word that cannot be split to its end is unknown as a
// whole.
//
// A piece that continues a word is spelled with a prefix, "##" in BERT's vocabularies. The model is
// immutable.
#ifndef MEGATRON_DATA_TOKENIZER_WORDPIECE_WORDPIECE_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_WORDPIECE_WORDPIECE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/piece_trie.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_prefix = "##";
  int64_t max_chars_per_word = 100;  // longer words are unknown
  // Whether an id, the index, is that of no text; empty: each may be.
  std::vector<bool> hidden;
};

class WordPieceModel {
 public:
  // `vocabulary[id]` spells a piece; it is empty if the id has none. kInvalidArgument if the
  // unknown token is missing.
  static absl::StatusOr<WordPieceModel> Create(const std::vector<std::string>& vocabulary,
                                               const WordPieceOptions& options);

  int32_t unk_id() const { return unk_id_; }

  // Appends the pieces of `word`, valid UTF-8, to `ids`, and their positions in `word` to `spans`
  // if it is not null.
  void Encode(absl::string_view word, std::vector<int32_t>* ids,
              std::vector<TextSpan>* spans) const;

 private:
  WordPieceModel() = default;
  bool EncodePieces(absl::string_view word, std::vector<int32_t>* ids,
                    std::vector<TextSpan>* spans) const;

  PieceTrie first_, continuing_;  // pieces of continuing_ are without their prefix
  int32_t unk_id_ = -1;
  int64_t max_chars_per_word_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_WORDPIECE_WORDPIECE_MODEL_H_
