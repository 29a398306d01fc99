// The tokenized conversations of a file, in memory.
#ifndef MEGATRON_DATA_CHAT_CONVERSATIONS_H_
#define MEGATRON_DATA_CHAT_CONVERSATIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/chat/chat_template.h"

namespace megatron {

struct ConversationOptions {
  // A conversation has at most one token more than this: its last token is no input.
  int64_t seq_length = 0;
  // What becomes of a longer one: it is left out, or cut off at the end.
  bool drop_long = false;
};

class Conversations {
 public:
  struct View {
    absl::Span<const int32_t> tokens;
    absl::Span<const ChatTokens::Range> answers;
  };

  // Reads JSON Lines (conversation_line.h), plain or compressed; blank lines are skipped.
  // kDataLoss with file and line for a line that is wrong, and where no conversation is left.
  static absl::StatusOr<Conversations> Read(const std::string& path, const ChatTemplate& chat,
                                            const ConversationOptions& options);

  // Takes conversations as Read does.
  static Conversations Of(const std::vector<ChatTokens>& conversations,
                          const ConversationOptions& options);

  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  View Get(int64_t i) const;
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // Returns "12 conversations, 345 tokens, 67 of them in answers; 1 too long and cut".
  std::string Describe() const;
  // Returns a text that changes when the tokens do.
  std::string Fingerprint() const;

 private:
  struct End {
    int64_t token = 0, answer = 0;
  };

  absl::Status AddLine(absl::string_view line, const ChatTemplate& chat,
                       const ConversationOptions& options);
  void Add(ChatTokens conversation, const ConversationOptions& options);

  std::vector<int32_t> tokens_;
  std::vector<ChatTokens::Range> answers_;  // counted from the beginning of the conversation
  std::vector<End> ends_;
  int64_t cut_ = 0, left_out_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_CHAT_CONVERSATIONS_H_
