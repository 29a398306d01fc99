#include "megatron/data/chat/chat_template.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// Places in the lists below.
constexpr size_t kImStart = 0, kImEnd = 1;
constexpr size_t kBeginOfText = 0, kStartHeader = 1, kEndHeader = 2, kEot = 3;

constexpr size_t kSystem = 0, kTurn = 1, kEndOfTurn = 2;

constexpr char kAligned[] = "nemotron_h_aligned", kNano[] = "nemotron_nano_v2";

constexpr const char* kChatmlMarks[] = {"<|im_start|>", "<|im_end|>"};
constexpr const char* kLlama3Marks[] = {"<|begin_of_text|>", "<|start_header_id|>",
                                        "<|end_header_id|>", "<|eot_id|>"};
constexpr const char* kNemotronMarks[] = {"<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"};

absl::StatusOr<std::vector<int32_t>> FindMarks(absl::string_view name,
                                               absl::Span<const char* const> marks,
                                               const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  EncodeOptions options;
  options.parse_special = true;
  for (const char* mark : marks) {
    const size_t before = ids.size();
    MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(mark, &ids, options));
    if (ids.size() != before + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the chat template ", name, " needs the token ", mark,
                       ", which the vocabulary does not have; the template plain needs none"));
    }
  }
  return ids;
}

absl::string_view PlainRole(absl::string_view role) {
  if (role == "system") return "System";
  return role == "user" ? "User" : "Assistant";
}

// In nemotron_nano_v2 questions may switch thinking on and off, which is no part of their text.
std::string NemotronText(const ChatMessage& message, bool is_nano) {
  std::string text = message.content;
  if (is_nano && message.role != "assistant")
    absl::StrReplaceAll({{"/think", ""}, {"/no_think", ""}}, &text);
  return absl::StrCat(absl::StripAsciiWhitespace(text), "\n");
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Make(absl::string_view name,
                                                const Tokenizer& tokenizer) {
  ChatTemplate made(name, tokenizer);
  if (tokenizer.eod() >= 0) made.end_tokens_.push_back(tokenizer.eod());
  const int32_t eos = tokenizer.special().eos;
  if (eos >= 0 && eos != tokenizer.eod()) made.end_tokens_.push_back(eos);
  if (name == "chatml") {
    MEGATRON_ASSIGN_OR_RETURN(made.marks_, FindMarks(name, kChatmlMarks, tokenizer));
    made.end_ = made.marks_[kImEnd];
    made.end_tokens_.push_back(made.end_);
  } else if (name == "llama3") {
    MEGATRON_ASSIGN_OR_RETURN(made.marks_, FindMarks(name, kLlama3Marks, tokenizer));
    made.end_ = made.marks_[kEot];
    made.end_tokens_.push_back(made.end_);
  } else if (name == kAligned || name == kNano) {
    const auto marks = absl::MakeConstSpan(kNemotronMarks).first(name == kAligned ? 2 : 3);
    MEGATRON_ASSIGN_OR_RETURN(made.marks_, FindMarks(name, marks, tokenizer));
    made.end_tokens_.push_back(made.marks_.back());  // the end, or the beginning of what follows
  } else if (name == "plain") {
    made.end_ = tokenizer.eod();
    made.stops_ = {"\nUser:"};
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no chat template ", Quoted(name),
                     "; there are chatml, llama3, nemotron_h_aligned, nemotron_nano_v2 and plain"));
  }
  return made;
}

// The text of an answer is encoded on its own, because the model writes it behind the end of a
// prompt; that of another message together with what is around it.
absl::Status ChatTemplate::AppendHead(absl::string_view role, absl::string_view text,
                                      std::vector<int32_t>* ids) const {
  if (is("plain")) {
    return tokenizer_->Encode(absl::StrCat(PlainRole(role), ":", text), ids);
  }
  if (is("chatml")) {
    ids->push_back(marks_[kImStart]);
    return tokenizer_->Encode(absl::StrCat(role, "\n", text), ids);
  }
  if (is_nemotron()) {
    ids->push_back(marks_[role == "system" ? kSystem : kTurn]);
    return tokenizer_->Encode(absl::StrCat(PlainRole(role), "\n", text), ids);
  }
  ids->push_back(marks_[kStartHeader]);
  MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(role, ids));
  ids->push_back(marks_[kEndHeader]);
  return tokenizer_->Encode(absl::StrCat("\n\n", text), ids);
}

bool ChatTemplate::is_nemotron() const { return is(kAligned) || is(kNano); }

absl::Status ChatTemplate::AppendNemotron(const ChatMessage& message, ChatTokens* chat) const {
  std::vector<int32_t>& ids = chat->tokens;
  const std::string text = NemotronText(message, is(kNano));
  if (message.role != "assistant") return AppendHead(message.role, text, &ids);
  MEGATRON_RETURN_IF_ERROR(AppendHead(message.role, "", &ids));
  const int64_t begin = static_cast<int64_t>(ids.size());
  MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(text, &ids));
  if (is(kNano)) {
    ids.push_back(marks_[kEndOfTurn]);
    MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode("\n", &ids));
  }
  chat->answers.push_back({begin, static_cast<int64_t>(ids.size())});
  return absl::OkStatus();
}

absl::Status ChatTemplate::AppendMessage(const ChatMessage& message, ChatTokens* chat) const {
  if (is_nemotron()) return AppendNemotron(message, chat);
  std::vector<int32_t>& ids = chat->tokens;
  const bool is_answer = message.role == "assistant";
  const bool ends_with_line = is("plain") && (!is_answer || end_ < 0);
  const absl::string_view content =
      is("llama3") ? absl::StripAsciiWhitespace(message.content) : message.content;
  const std::string text =
      absl::StrCat(is("plain") ? " " : "", content, ends_with_line ? "\n" : "");
  MEGATRON_RETURN_IF_ERROR(AppendHead(message.role, is_answer ? "" : text, &ids));
  const int64_t begin = static_cast<int64_t>(ids.size());
  if (is_answer) {
    MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(text, &ids));
  }
  if (!ends_with_line) ids.push_back(end_);
  if (is_answer) chat->answers.push_back({begin, static_cast<int64_t>(ids.size())});
  return is("chatml") ? tokenizer_->Encode("\n", &ids) : absl::OkStatus();
}

absl::Status ChatTemplate::Append(absl::Span<const ChatMessage> messages, ChatTokens* chat) const {
  if (is("llama3")) chat->tokens.push_back(marks_[kBeginOfText]);
  for (const ChatMessage& message : messages)
    MEGATRON_RETURN_IF_ERROR(AppendMessage(message, chat));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Prompt(
    absl::Span<const ChatMessage> messages) const {
  ChatTokens chat;
  MEGATRON_RETURN_IF_ERROR(Append(messages, &chat));
  MEGATRON_RETURN_IF_ERROR(AppendHead("assistant", "", &chat.tokens));
  return std::move(chat.tokens);
}

absl::StatusOr<ChatTokens> ChatTemplate::Conversation(
    absl::Span<const ChatMessage> messages) const {
  ChatTokens chat;
  MEGATRON_RETURN_IF_ERROR(Append(messages, &chat));
  chat.tokens.resize(chat.answers.empty() ? 0 : chat.answers.back().end);
  if (is(kAligned) && !chat.answers.empty() && tokenizer_->eod() >= 0) {
    chat.tokens.push_back(tokenizer_->eod());
    ++chat.answers.back().end;
  }
  return chat;
}

}  // namespace megatron
