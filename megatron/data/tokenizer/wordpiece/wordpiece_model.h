// WordPiece: a word is cut into the longest piece of the vocabulary that it begins with, then the
// longest that continues it, and so on. A word that can't be cut to its end is unknown as a whole.
//
// A piece that continues a word is spelled with a prefix, "##" in BERT's vocabularies. Immutable.
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
};

class WordPieceModel {
 public:
  // `vocabulary[id]` spells a piece; empty where an id names none. kInvalidArgument if the unknown
  // token isn't there.
  static absl::StatusOr<WordPieceModel> Create(const std::vector<std::string>& vocabulary,
                                               const WordPieceOptions& options);

  int32_t unk_id() const { return unk_id_; }

  // Appends the pieces of `word`, valid UTF-8, to `ids`, and where in `word` they stand to `spans`
  // if that isn't null.
  void Encode(absl::string_view word, std::vector<int32_t>* ids,
              std::vector<TextSpan>* spans) const;

 private:
  WordPieceModel() = default;
  bool EncodePieces(absl::string_view word, std::vector<int32_t>* ids,
                    std::vector<TextSpan>* spans) const;

  PieceTrie first_, continuing_;  // the latter's pieces without their prefix
  int32_t unk_id_ = -1;
  int64_t max_chars_per_word_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_WORDPIECE_WORDPIECE_MODEL_H_
