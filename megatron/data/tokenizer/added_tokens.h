// Tokens that are found in a text before the model encodes it: special tokens ("<|endoftext|>"),
// and words that were added to a vocabulary later.
//
// Matching follows Hugging Face's `added_tokens`: the leftmost match counts, and the longest of
// those that begin there.
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
  std::string content;  // not empty
  // Matches only if special tokens are parsed; otherwise its spelling is plain text.
  bool special = false;
  bool single_word = false;  // does not match inside a word
  bool lstrip = false;       // the match includes the white space before it
  bool rstrip = false;       // the match includes the white space after it
  bool normalized = false;   // searched for in the normalized text
};

class AddedTokens {
 public:
  // A part of a text, as bytes [begin, end) of it: an added token, or the text between two.
  struct Section {
    int32_t id = -1;  // -1: text
    TextSpan span;
  };

  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Returns the sections of `text` in order. Special tokens count as text unless `parse_special` is
  // set. The time is O(text × the longest token).
  std::vector<Section> Split(absl::string_view text, bool parse_special) const;

 private:
  // Returns the longest token at the beginning of `text`, or null if there is none.
  const AddedToken* Match(absl::string_view text) const;

  std::vector<AddedToken> tokens_;
  PieceTrie trie_;                  // maps spellings to indices of tokens_
  std::bitset<256> is_first_byte_;  // bytes with which tokens begin
  bool all_special_ = true;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_ADDED_TOKENS_H_
