// The ids that Megatron's tokenizers give to their special tokens: the id of the piece with that
// spelling if the vocabulary has one, else the next id after the vocabulary.
#ifndef MEGATRON_DATA_TOKENIZER_SPECIAL_PIECES_H_
#define MEGATRON_DATA_TOKENIZER_SPECIAL_PIECES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/added_tokens.h"

namespace megatron {

class SpecialPieces {
 public:
  // `piece` spells each of `vocab_size` ids; the first of two equal spellings counts.
  SpecialPieces(int32_t vocab_size, absl::FunctionRef<std::string(int32_t id)> piece);

  bool Contains(absl::string_view piece) const { return ids_.contains(piece); }

  // Returns the id of a special token, which is added if the vocabulary lacks it.
  int32_t Add(const std::string& piece);

  // Adds `<extra_id_0>`, `<extra_id_1>` and so on, and returns their ids.
  std::vector<int32_t> AddSentinels(int32_t count);

  // The tokens that follow the vocabulary, in the order of their ids.
  const std::vector<std::string>& added() const { return added_; }
  // All special tokens, for finding them in texts.
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const int32_t vocab_size_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::string> added_;
  std::vector<AddedToken> tokens_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SPECIAL_PIECES_H_
