#include "megatron/serve/chat_template.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"

namespace megatron::serve {
namespace {

// Places in the lists below.
constexpr size_t kImStart = 0, kImEnd = 1;
constexpr size_t kBeginOfText = 0, kStartHeader = 1, kEndHeader = 2, kEot = 3;

constexpr const char* kChatmlMarks[] = {"<|im_start|>", "<|im_end|>"};
constexpr const char* kLlama3Marks[] = {"<|begin_of_text|>", "<|start_header_id|>",
                                        "<|end_header_id|>", "<|eot_id|>"};

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

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Make(absl::string_view name,
                                                const Tokenizer& tokenizer) {
  ChatTemplate made(name, tokenizer);
  if (tokenizer.eod() >= 0) made.end_tokens_.push_back(tokenizer.eod());
  const int32_t eos = tokenizer.special().eos;
  if (eos >= 0 && eos != tokenizer.eod()) made.end_tokens_.push_back(eos);
  if (name == "chatml") {
    MEGATRON_ASSIGN_OR_RETURN(made.marks_, FindMarks(name, kChatmlMarks, tokenizer));
    made.end_tokens_.push_back(made.marks_[kImEnd]);
  } else if (name == "llama3") {
    MEGATRON_ASSIGN_OR_RETURN(made.marks_, FindMarks(name, kLlama3Marks, tokenizer));
    made.end_tokens_.push_back(made.marks_[kEot]);
  } else if (name == "plain") {
    made.stops_ = {"\nUser:"};
  } else {
    return absl::InvalidArgumentError(absl::StrCat("there is no chat template ", Quoted(name),
                                                   "; there are chatml, llama3 and plain"));
  }
  return made;
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Prompt(
    absl::Span<const ChatMessage> messages) const {
  std::vector<int32_t> ids;
  if (name_ == "plain") {
    std::string text;
    for (const ChatMessage& message : messages)
      absl::StrAppend(&text, PlainRole(message.role), ": ", message.content, "\n");
    MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(absl::StrCat(text, "Assistant:"), &ids));
    return ids;
  }
  const bool is_chatml = name_ == "chatml";
  if (!is_chatml) ids.push_back(marks_[kBeginOfText]);
  const auto begin = [&](const std::string& role, absl::string_view text) -> absl::Status {
    if (is_chatml) {
      ids.push_back(marks_[kImStart]);
      return tokenizer_->Encode(absl::StrCat(role, "\n", text), &ids);
    }
    ids.push_back(marks_[kStartHeader]);
    MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(role, &ids));
    ids.push_back(marks_[kEndHeader]);
    return tokenizer_->Encode(absl::StrCat("\n\n", absl::StripAsciiWhitespace(text)), &ids);
  };
  for (const ChatMessage& message : messages) {
    MEGATRON_RETURN_IF_ERROR(begin(message.role, message.content));
    ids.push_back(marks_[is_chatml ? kImEnd : kEot]);
    if (is_chatml) {
      MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode("\n", &ids));
    }
  }
  MEGATRON_RETURN_IF_ERROR(begin("assistant", ""));
  return ids;
}

}  // namespace megatron::serve
