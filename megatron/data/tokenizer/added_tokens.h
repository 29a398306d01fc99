// Tokens that are found in the text before the model sees it: special ones ("<|endoftext|>"), and
// words that somebody added to a vocabulary later.
//
// Follows Hugging Face's `added_tokens`: the leftmost match counts, and the longest of those that
// begin there.
#ifndef MEGATRON_DATA_TOKENIZER_ADDED_TOKENS_H_
#define MEGATRON_DATA_TOKENIZER_ADDED_TOKENS_H_

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/piece_trie.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct AddedToken {
  int32_t id = 0;
  std::string content;       // not empty
  bool special = false;      // text that spells it is text, unless special tokens are asked for
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalized text
};

class AddedTokens {
 public:
  // A part of a text, as bytes [begin, end) of it: an added token, or text between two.
  struct Section {
    int32_t id = -1;  // -1: text
    TextSpan span;
  };

  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // The sections of `text`, in order. Special tokens are text if not `parse_special`.
  // O(text × the longest token).
  std::vector<Section> Split(absl::string_view text, bool parse_special) const;

 private:
  // The longest token at the beginning of `text`; null where there is none.
  const AddedToken* Match(absl::string_view text) const;

  std::vector<AddedToken> tokens_;
  PieceTrie trie_;                  // values are indices of tokens_
  std::bitset<256> is_first_byte_;  // of a token
  bool all_special_ = true;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_ADDED_TOKENS_H_
