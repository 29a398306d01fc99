#include "megatron/data/chat/conversations.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/chat/conversation_line.h"
#include "megatron/data/io/line_batches.h"
#include "megatron/data/io/text_input.h"
#include "megatron/data/text/json_text.h"

namespace megatron {
namespace {

template <typename T>
uint32_t ExtendWith(uint32_t crc, const std::vector<T>& values) {
  return ExtendCrc32c(crc, absl::string_view(reinterpret_cast<const char*>(values.data()),
                                             values.size() * sizeof(T)));
}

}  // namespace

absl::StatusOr<Conversations> Conversations::Read(const std::string& path, const ChatTemplate& chat,
                                                  const ConversationOptions& options) {
  Conversations read;
  LineBatchReader reader({path}, OpenTextInput, {});
  LineBatch batch;
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(const bool more, reader.Next(&batch));
    if (!more) break;
    for (size_t i = 0; i < batch.lines.size(); ++i) {
      const LineBatch::Line& line = batch.lines[i];
      const absl::Status status = line.too_long ? absl::DataLossError("is too long")
                                                : read.AddLine(line.text, chat, options);
      if (!status.ok()) {
        return absl::DataLossError(absl::StrCat(
            path, ", line ", batch.first_line + static_cast<int64_t>(i), ": ", status.message()));
      }
    }
  }
  if (read.size() > 0) return read;
  return absl::DataLossError(absl::StrCat(path, ": has no conversation",
                                          read.left_out_ > 0 ? " that fits into seq_length" : ""));
}

Conversations Conversations::Of(const std::vector<ChatTokens>& conversations,
                                const ConversationOptions& options) {
  Conversations read;
  for (const ChatTokens& conversation : conversations) read.Add(conversation, options);
  return read;
}

absl::Status Conversations::AddLine(absl::string_view line, const ChatTemplate& chat,
                                    const ConversationOptions& options) {
  if (IsBlankJsonLine(line)) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(const auto conversations, ParseConversationLine(line));
  for (const std::vector<ChatMessage>& messages : conversations) {
    MEGATRON_ASSIGN_OR_RETURN(ChatTokens conversation, chat.Conversation(messages));
    Add(std::move(conversation), options);
  }
  return absl::OkStatus();
}

void Conversations::Add(ChatTokens conversation, const ConversationOptions& options) {
  const int64_t most = options.seq_length + 1;
  const bool is_long = static_cast<int64_t>(conversation.tokens.size()) > most;
  if (is_long) {
    conversation.tokens.resize(most);
    std::vector<ChatTokens::Range>& answers = conversation.answers;
    while (!answers.empty() && answers.back().begin >= most) answers.pop_back();
    if (options.drop_long || answers.empty()) {
      ++left_out_;
      return;
    }
    answers.back().end = std::min(answers.back().end, most);
    ++cut_;
  }
  tokens_.insert(tokens_.end(), conversation.tokens.begin(), conversation.tokens.end());
  answers_.insert(answers_.end(), conversation.answers.begin(), conversation.answers.end());
  ends_.push_back({static_cast<int64_t>(tokens_.size()), static_cast<int64_t>(answers_.size())});
}

Conversations::View Conversations::Get(int64_t i) const {
  const End begin = i == 0 ? End() : ends_[i - 1], end = ends_[i];
  return {absl::MakeConstSpan(tokens_).subspan(begin.token, end.token - begin.token),
          absl::MakeConstSpan(answers_).subspan(begin.answer, end.answer - begin.answer)};
}

std::string Conversations::Describe() const {
  int64_t learned = 0;
  for (const ChatTokens::Range& answer : answers_) learned += answer.end - answer.begin;
  std::string text = absl::StrFormat("%d conversations, %d tokens, %d of them in answers", size(),
                                     num_tokens(), learned);
  if (cut_ > 0) absl::StrAppend(&text, "; ", cut_, " too long and cut");
  if (left_out_ > 0) absl::StrAppend(&text, "; ", left_out_, " too long and left out");
  return text;
}

std::string Conversations::Fingerprint() const {
  const uint32_t crc = ExtendWith(ExtendWith(ExtendWith(0, tokens_), answers_), ends_);
  return absl::StrFormat("%d conversations, crc32c %08x", size(), crc);
}

}  // namespace megatron
