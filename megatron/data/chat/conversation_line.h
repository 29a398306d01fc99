// Lines of a file of conversations, in the form of OpenAI and of Megatron's --sft:
//
//   {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
#ifndef MEGATRON_DATA_CHAT_CONVERSATION_LINE_H_
#define MEGATRON_DATA_CHAT_CONVERSATION_LINE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/chat/chat_template.h"

namespace megatron {

// Returns the conversations of a line. As in Megatron, each system message behind the first message
// begins a conversation. Other keys than messages, role and content have no effect. kDataLoss for a
// line that is no such JSON object, and for a conversation without an answer.
absl::StatusOr<std::vector<std::vector<ChatMessage>>> ParseConversationLine(absl::string_view line);

}  // namespace megatron

#endif  // MEGATRON_DATA_CHAT_CONVERSATION_LINE_H_
