// The forms in which models have learned conversations. A conversation becomes the tokens of a
// prompt, after which the model writes the next message.
//
// The marks between messages are tokens of their own; what a message says is text, and never such
// a mark, so that nobody can forge the end of a message. "plain" has no such tokens: there a message
// can contain what looks like the beginning of another one.
#ifndef MEGATRON_SERVE_CHAT_TEMPLATE_H_
#define MEGATRON_SERVE_CHAT_TEMPLATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron::serve {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // "chatml":  <|im_start|>user⏎Hello<|im_end|>⏎<|im_start|>assistant⏎
  // "llama3":  <|begin_of_text|><|start_header_id|>user<|end_header_id|>⏎⏎Hello<|eot_id|>...
  // "plain":   User: Hello⏎Assistant:
  //
  // kInvalidArgument for another name, and where the vocabulary lacks a mark.
  static absl::StatusOr<ChatTemplate> Make(absl::string_view name, const Tokenizer& tokenizer);

  // Returns the tokens of the conversation and of the beginning of the assistant's next message.
  // kInvalidArgument where a message cannot be encoded.
  absl::StatusOr<std::vector<int32_t>> Prompt(absl::Span<const ChatMessage> messages) const;

  const std::string& name() const { return name_; }
  // Tokens and texts that end the assistant's message.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  const std::vector<std::string>& stops() const { return stops_; }

 private:
  ChatTemplate(absl::string_view name, const Tokenizer& tokenizer)
      : name_(name), tokenizer_(&tokenizer) {}

  std::string name_;
  const Tokenizer* tokenizer_;
  std::vector<int32_t> marks_;  // in the order of the list in the .cc file
  std::vector<int32_t> end_tokens_;
  std::vector<std::string> stops_;
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_CHAT_TEMPLATE_H_
