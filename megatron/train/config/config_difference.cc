#include "megatron/train/config/config_difference.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace megatron {
namespace {

constexpr char kUnset[] = "unset";
constexpr char kModelType[] = "model.model_type";

struct Fields {
  std::vector<std::string> order;
  std::map<std::string, std::string> values;
};

// A line is "field: value", "message {" or "}".
Fields FieldsOf(absl::string_view text) {
  Fields fields;
  std::vector<std::string> path;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line == "}") {
      if (!path.empty()) path.pop_back();
      continue;
    }
    if (absl::ConsumeSuffix(&line, " {")) {
      path.emplace_back(line);
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (parts.first.empty()) continue;
    path.emplace_back(parts.first);
    const std::string field = absl::StrJoin(path, ".");
    path.pop_back();
    const auto [value, is_new] = fields.values.emplace(field, parts.second);
    if (is_new) fields.order.push_back(field);
    if (!is_new) absl::StrAppend(&value->second, ", ", parts.second);
  }
  return fields;
}

std::string ValueOf(const Fields& fields, const std::string& field) {
  const auto found = fields.values.find(field);
  return found == fields.values.end() ? kUnset : found->second;
}

}  // namespace

std::vector<ConfigDifference> DifferencesOf(absl::string_view first, absl::string_view other) {
  const Fields a = FieldsOf(first), b = FieldsOf(other);
  std::vector<std::string> order = a.order;
  for (const std::string& field : b.order) {
    if (a.values.count(field) == 0) order.push_back(field);
  }
  std::stable_partition(order.begin(), order.end(),
                        [](const std::string& field) { return field == kModelType; });
  std::vector<ConfigDifference> differences;
  for (const std::string& field : order) {
    ConfigDifference difference = {field, ValueOf(a, field), ValueOf(b, field)};
    if (difference.first != difference.other) differences.push_back(std::move(difference));
  }
  return differences;
}

std::string DescribeDifferences(const std::vector<ConfigDifference>& differences) {
  constexpr size_t kShown = 5;
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(differences.size(), kShown); ++i) {
    texts.push_back(absl::StrCat(differences[i].field, " is ", differences[i].other, ", on rank 0 ",
                                 differences[i].first));
  }
  if (differences.size() > kShown)
    texts.push_back(absl::StrCat("and ", differences.size() - kShown, " more"));
  return absl::StrJoin(texts, "; ");
}

}  // namespace megatron
