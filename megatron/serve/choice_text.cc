#include "megatron/serve/choice_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace megatron::serve {

ChoiceText::ChoiceText(const Tokenizer& tokenizer, ChoiceOptions options)
    : tokenizer_(&tokenizer),
      options_(std::move(options)),
      text_(tokenizer, options_.prompt),
      stops_(options_.stops) {
  written_ = CountCodePoints(options_.echo);
  Show(options_.echo);
}

void ChoiceText::Show(const std::string& text) {
  shown_ += CountCodePoints(text);
  absl::StrAppend(&next_text_, text);
}

void ChoiceText::AddPrompt(absl::Span<const ScoredToken> tokens) {
  if (!options_.echo_tokens || options_.prompt.empty()) return;
  TokenText text(*tokenizer_, {});
  int64_t offset = CountCodePoints(text.Add(options_.prompt[0]));
  ChoiceToken first;
  first.token = options_.prompt[0];
  tokens_.push_back(std::move(first));
  for (const ScoredToken& scored : tokens) {
    ChoiceToken token;
    token.token = scored.token;
    token.logprob = scored.logprob;
    token.top = scored.top;
    token.offset = offset;
    offset += CountCodePoints(text.Add(scored.token));
    tokens_.push_back(std::move(token));
  }
}

void ChoiceText::AddToken(const ScoredToken& scored) {
  if (ended()) return;
  ++completion_tokens_;
  const bool is_end = std::find(options_.end_tokens.begin(), options_.end_tokens.end(),
                                scored.token) != options_.end_tokens.end();
  if (options_.keep_tokens) {
    ChoiceToken token;
    token.token = scored.token;
    token.logprob = scored.logprob;
    token.top = scored.top;
    token.offset = written_;
    token.is_end = is_end;
    tokens_.push_back(std::move(token));
  }
  if (is_end) return;
  const std::string text = text_.Add(scored.token);
  written_ += CountCodePoints(text);
  Show(stops_.Add(text));
  if (!stops_.found()) return;
  finish_reason_ = "stop";
  // Tokens of the stop itself, and what they have said after it, are no part of the answer.
  while (!tokens_.empty() && tokens_.back().offset >= shown_) tokens_.pop_back();
}

void ChoiceText::End(FinishReason reason) {
  if (ended()) return;
  const std::string rest = text_.Finish();
  Show(stops_.Add(rest));
  const bool found = stops_.found();
  Show(stops_.Finish());
  finish_reason_ = found || reason == FinishReason::kEndToken ? "stop" : "length";
}

ChoicePiece ChoiceText::Take() {
  ChoicePiece piece;
  piece.text = std::exchange(next_text_, "");
  // Tokens whose text may still turn out to be a stop wait with it.
  const auto wait = std::find_if(tokens_.begin(), tokens_.end(), [&](const ChoiceToken& token) {
    return !ended() && token.offset >= shown_;
  });
  piece.tokens.assign(std::make_move_iterator(tokens_.begin()), std::make_move_iterator(wait));
  tokens_.erase(tokens_.begin(), wait);
  if (ended() && !std::exchange(finish_taken_, true)) piece.finish_reason = finish_reason_;
  return piece;
}

}  // namespace megatron::serve
