// Text that a model writes token by token, cut into pieces that can be shown at once.
#ifndef MEGATRON_SERVE_TEXT_PIECES_H_
#define MEGATRON_SERVE_TEXT_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron::serve {

// Turns tokens into text of whole code points: a code point that is spread over several tokens
// comes with the last of them. Bytes that are no UTF-8 become U+FFFD.
class TokenText {
 public:
  // `context` holds the tokens that the text continues: whether a token begins with a space may
  // depend on the one before it.
  TokenText(const Tokenizer& tokenizer, absl::Span<const int32_t> context);

  // Returns the text that is complete with the token.
  std::string Add(int32_t token);
  // Returns the rest, after the last token.
  std::string Finish();

 private:
  // Returns what the tokens say that is not shown yet.
  std::string NotShown() const;

  const Tokenizer* tokenizer_;
  std::vector<int32_t> tokens_;  // the last ones
  std::string shown_;            // the beginning of their text
  size_t held_ = 0;              // how many of them are not shown, or in part
};

// Returns the bytes that a token adds to a text in which it stands after another token.
std::string TokenBytes(const Tokenizer& tokenizer, int32_t token);

// Returns bytes of a token as text: as they are if they are UTF-8, else as "bytes:\xe2\x82".
std::string ShownBytes(absl::string_view bytes);

// Returns the number of code points of valid UTF-8.
int64_t CountCodePoints(absl::string_view text);

// Finds the first of several texts, none of them empty, in a text that comes in pieces. The first
// one is that which ends first; of those that end together it is the longest.
class StopFinder {
 public:
  explicit StopFinder(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns the text that is decided: up to where a stop begins, or may begin.
  std::string Add(absl::string_view text);
  // Returns the rest, after the last piece.
  std::string Finish();

  // After this nothing more is given out.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // what may begin a stop
  bool found_ = false;
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_TEXT_PIECES_H_
