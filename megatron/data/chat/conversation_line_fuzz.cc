// Fuzzes ParseConversationLine: any bytes as a line give either an error, or conversations that
// have an answer each, and a system message nowhere but at the beginning.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/chat/conversation_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view line(reinterpret_cast<const char*>(data), size);
  const auto conversations = megatron::ParseConversationLine(line);
  if (!conversations.ok()) return 0;
  CHECK(!conversations->empty());
  for (const auto& messages : *conversations) {
    const auto with_role = [&](absl::string_view role) {
      return std::count_if(messages.begin(), messages.end(),
                           [&](const auto& message) { return message.role == role; });
    };
    CHECK_GT(with_role("assistant"), 0);
    CHECK_LE(with_role("system"), messages[0].role == "system" ? 1 : 0);
  }
  return 0;
}
