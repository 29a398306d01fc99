#include "megatron/train/trainer/named_changes.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace megatron {
namespace {

constexpr absl::string_view kBetween = "; ", kEquals = " = ";

std::vector<std::pair<absl::string_view, absl::string_view>> Split(absl::string_view list) {
  std::vector<std::pair<absl::string_view, absl::string_view>> values;
  for (const absl::string_view part : absl::StrSplit(list, kBetween)) {
    const std::pair<absl::string_view, absl::string_view> named =
        absl::StrSplit(part, absl::MaxSplits(kEquals, 1));
    values.push_back(named);
  }
  return values;
}

}  // namespace

std::string JoinNamed(const std::vector<std::pair<std::string, std::string>>& values) {
  return absl::StrJoin(values, kBetween, absl::PairFormatter(kEquals));
}

std::string NameChanges(absl::string_view before, absl::string_view now) {
  std::map<absl::string_view, absl::string_view> old;
  for (const auto& [name, value] : Split(before)) old[name] = value;
  std::vector<std::string> changes;
  for (const auto& [name, value] : Split(now)) {
    const auto found = old.find(name);
    if (found == old.end() || found->second == value) continue;
    changes.push_back(absl::StrCat(name, " was ", found->second, " and is ", value));
  }
  return absl::StrJoin(changes, ", ");
}

}  // namespace megatron
