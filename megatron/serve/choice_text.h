// One text of an answer while a model writes it: what of it can be shown, and why it ends.
#ifndef MEGATRON_SERVE_CHOICE_TEXT_H_
#define MEGATRON_SERVE_CHOICE_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/generate/text_engine.h"
#include "megatron/serve/text_pieces.h"

namespace megatron::serve {

struct ChoiceOptions {
  std::vector<int32_t> prompt;
  std::vector<std::string> stops;
  std::vector<int32_t> end_tokens;  // they are no part of the text
  std::string echo;                 // stands before what the model writes
  bool echo_tokens = false;         // the prompt's tokens are among those of the answer
  bool keep_tokens = false;         // tokens are given out, with their log-probabilities
};

// A token of an answer.
struct ChoiceToken {
  int32_t token = 0;
  std::optional<float> logprob;  // unset for the first token of a prompt
  std::vector<TokenLogprob> top;
  int64_t offset = 0;   // code points of the answer's text before it
  bool is_end = false;  // one of the end tokens
};

// What has come since the last piece. Pieces put together are the answer.
struct ChoicePiece {
  std::string text;
  std::vector<ChoiceToken> tokens;
  std::string finish_reason;  // "stop" or "length"; empty as long as the text goes on

  bool empty() const { return text.empty() && tokens.empty() && finish_reason.empty(); }
};

class ChoiceText {
 public:
  ChoiceText(const Tokenizer& tokenizer, ChoiceOptions options);

  // The scores of the prompt's tokens from the second on; with echo_tokens, before all else.
  void AddPrompt(absl::Span<const ScoredToken> tokens);
  void AddToken(const ScoredToken& token);
  // The model has ended the text.
  void End(FinishReason reason);

  // Returns whether nothing more is taken: after End, and where a stop was found.
  bool ended() const { return !finish_reason_.empty(); }
  // Returns what is decided since the last call.
  ChoicePiece Take();
  // The tokens that the model wrote, with the one that ended the text.
  int64_t completion_tokens() const { return completion_tokens_; }

 private:
  void Show(const std::string& text);

  const Tokenizer* tokenizer_;
  ChoiceOptions options_;
  TokenText text_;
  StopFinder stops_;
  int64_t written_ = 0;  // code points that tokens have said
  int64_t shown_ = 0;    // code points that are decided
  int64_t completion_tokens_ = 0;
  std::string finish_reason_;
  bool finish_taken_ = false;
  std::string next_text_;            // decided, not taken
  std::vector<ChoiceToken> tokens_;  // not taken
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_CHOICE_TEXT_H_
