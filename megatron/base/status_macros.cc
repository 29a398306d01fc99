#include "megatron/base/status_macros.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace megatron {

absl::Status StatusBuilder::Build() const {
  const std::string text = text_.str();
  std::string message(status_.message());
  if (!text.empty())
    message = prepend_ ? absl::StrCat(text, message) : absl::StrCat(message, "; ", text);
  absl::Status built(status_.code(), message);
  status_.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { built.SetPayload(url, payload); });
  return built;
}

}  // namespace megatron
