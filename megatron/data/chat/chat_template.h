// The forms in which models learn conversations. A conversation becomes tokens: of a prompt, after
// which the model writes the next answer, or of a whole conversation, whose answers it learns.
//
// The marks between messages are tokens of their own; what a message says is text, and never such
// a mark, so that nobody can forge the end of a message. "plain" has one mark only, the end of an
// answer: there a message can contain what looks like the beginning of another one.
#ifndef MEGATRON_DATA_CHAT_CHAT_TEMPLATE_H_
#define MEGATRON_DATA_CHAT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// The tokens of a conversation, and those of them that the model writes itself.
struct ChatTokens {
  // Tokens [begin, end).
  struct Range {
    int64_t begin = 0, end = 0;
  };

  std::vector<int32_t> tokens;
  std::vector<Range> answers;  // ascending; each with the token that ends it
};

class ChatTemplate {
 public:
  // "chatml":  <|im_start|>user⏎Hello<|im_end|>⏎<|im_start|>assistant⏎
  // "llama3":  <|begin_of_text|><|start_header_id|>user<|end_header_id|>⏎⏎Hello<|eot_id|>...
  // "plain":   User: Hello⏎Assistant:
  // "nemotron_h_aligned", "nemotron_nano_v2":
  //            <SPECIAL_10>System⏎Be brief⏎<SPECIAL_11>User⏎Hello⏎<SPECIAL_11>Assistant⏎
  //
  // An answer ends with <|im_end|>, <|eot_id|> or, in "plain", the vocabulary's end of document; a
  // vocabulary without one has ⏎ there. In "nemotron_h_aligned" it ends with ⏎, and a conversation
  // with the end of document; in "nemotron_nano_v2" it ends with ⏎<SPECIAL_12>⏎, and /think and
  // /no_think are taken out of the other messages.
  //
  // kInvalidArgument for another name, and where the vocabulary lacks a mark.
  static absl::StatusOr<ChatTemplate> Make(absl::string_view name, const Tokenizer& tokenizer);

  // Returns the tokens of the conversation and of the beginning of the assistant's next message.
  // kInvalidArgument where a message cannot be encoded.
  absl::StatusOr<std::vector<int32_t>> Prompt(absl::Span<const ChatMessage> messages) const;

  // Returns the tokens of the conversation up to the end of its last answer. What precedes an
  // answer is what Prompt makes of the messages before it.
  absl::StatusOr<ChatTokens> Conversation(absl::Span<const ChatMessage> messages) const;

  const std::string& name() const { return name_; }
  // Tokens and texts that end the assistant's message.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  const std::vector<std::string>& stops() const { return stops_; }

 private:
  ChatTemplate(absl::string_view name, const Tokenizer& tokenizer)
      : name_(name), tokenizer_(&tokenizer) {}

  bool is(absl::string_view name) const { return name_ == name; }
  absl::Status Append(absl::Span<const ChatMessage> messages, ChatTokens* chat) const;
  bool is_nemotron() const;
  absl::Status AppendMessage(const ChatMessage& message, ChatTokens* chat) const;
  absl::Status AppendNemotron(const ChatMessage& message, ChatTokens* chat) const;
  // Appends the beginning of a message, with `text`.
  absl::Status AppendHead(absl::string_view role, absl::string_view text,
                          std::vector<int32_t>* ids) const;

  std::string name_;
  const Tokenizer* tokenizer_;
  std::vector<int32_t> marks_;  // in the order of the list in the .cc file
  int32_t end_ = -1;            // the token that ends an answer; -1: there is none
  std::vector<int32_t> end_tokens_;
  std::vector<std::string> stops_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_CHAT_CHAT_TEMPLATE_H_
