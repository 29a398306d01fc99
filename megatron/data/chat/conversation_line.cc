#include "megatron/data/chat/conversation_line.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

absl::StatusOr<std::string> TextOf(const Json& message, const char* key) {
  const auto found = message.find(key);
  if (found == message.end() || !found->is_string())
    return absl::DataLossError(absl::StrCat("a message needs a text \"", key, "\""));
  return found->get<std::string>();
}

absl::StatusOr<ChatMessage> MessageOf(const Json& message) {
  if (!message.is_object())
    return absl::DataLossError("a message is no object with \"role\" and \"content\"");
  ChatMessage read;
  MEGATRON_ASSIGN_OR_RETURN(read.role, TextOf(message, "role"));
  if (read.role != "system" && read.role != "user" && read.role != "assistant") {
    return absl::DataLossError(absl::StrCat(
        "the role of a message is system, user or assistant, and not ", Quoted(read.role)));
  }
  MEGATRON_ASSIGN_OR_RETURN(read.content, TextOf(message, "content"));
  return read;
}

bool HasAnswer(const std::vector<ChatMessage>& messages) {
  return std::any_of(messages.begin(), messages.end(),
                     [](const ChatMessage& message) { return message.role == "assistant"; });
}

}  // namespace

absl::StatusOr<std::vector<std::vector<ChatMessage>>> ParseConversationLine(
    absl::string_view line) {
  // The parser takes a zero byte for the end of the text.
  const Json json = line.find('\0') == line.npos
                        ? Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false)
                        : Json(Json::value_t::discarded);
  if (json.is_discarded()) return absl::DataLossError("is no JSON");
  const auto messages = json.is_object() ? json.find("messages") : json.end();
  if (messages == json.end() || !messages->is_array() || messages->empty())
    return absl::DataLossError("needs \"messages\", a list of at least one message");
  std::vector<std::vector<ChatMessage>> conversations;
  for (const Json& each : *messages) {
    MEGATRON_ASSIGN_OR_RETURN(ChatMessage message, MessageOf(each));
    if (conversations.empty() || message.role == "system") conversations.emplace_back();
    conversations.back().push_back(std::move(message));
  }
  if (!std::all_of(conversations.begin(), conversations.end(), HasAnswer))
    return absl::DataLossError("has a conversation without a message of the assistant");
  return conversations;
}

}  // namespace megatron
