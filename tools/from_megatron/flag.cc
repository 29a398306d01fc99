#include "tools/from_megatron/flag.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/from_megatron/config_builder.h"

namespace megatron {
namespace {

constexpr size_t kLongestShown = 80;

}  // namespace

std::string Shortened(std::string text) {
  if (text.size() > kLongestShown) text = absl::StrCat(text.substr(0, kLongestShown), "...");
  return text;
}

std::string Shown(const Flag& flag) {
  std::string text = absl::StrCat("--", flag.name);
  if (!flag.values.empty()) absl::StrAppend(&text, " ", absl::StrJoin(flag.values, " "));
  return Shortened(OneLine(text));
}

}  // namespace megatron
