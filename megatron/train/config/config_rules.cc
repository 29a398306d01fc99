#include "megatron/train/config/config_rules.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"

namespace megatron {
namespace {

using google::protobuf::FieldDescriptor;

// The upper end of a range that states none.
constexpr double kAnyCount = 1e12;

std::string DescribeRange(absl::string_view kind, const FieldRange& range) {
  // Six digits would round 4294967295; fifteen write every limit exactly as in the schema.
  return absl::StrFormat("%s from %.15g%s to %.15g%s", kind, range.min,
                         range.min_excluded ? " (excluded)" : "", range.max,
                         range.max_excluded ? " (excluded)" : "");
}

Condition ParseCondition(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if (words.size() == 1) return {words[0], Condition::Kind::kPresent, ""};
  if (words.size() == 2 && words[0] == "not") return {words[1], Condition::Kind::kAbsent, ""};
  CHECK(words.size() == 3 && (words[1] == "=" || words[1] == "!=" || words[1] == ">"))
      << "config.proto has a condition of effect that cannot be read: " << text;
  const Condition::Kind kind = words[1] == "="    ? Condition::Kind::kEqual
                               : words[1] == "!=" ? Condition::Kind::kNotEqual
                                                  : Condition::Kind::kAbove;
  return {words[0], kind, words[2]};
}

}  // namespace

const config::FieldRules& RulesOf(const FieldDescriptor& field) {
  return field.options().GetExtension(config::rules);
}

bool FieldRange::Contains(double value) const {
  return (min_excluded ? value > min : value >= min) && (max_excluded ? value < max : value <= max);
}

FieldRange RangeOf(const FieldDescriptor& field) {
  const config::FieldRules& rules = RulesOf(field);
  CHECK(rules.has_min() || rules.has_above()) << field.full_name() << " has no range";
  FieldRange range;
  range.min_excluded = rules.has_above();
  range.min = range.min_excluded ? rules.above() : rules.min();
  range.max_excluded = rules.has_below();
  range.max = range.max_excluded ? rules.below() : rules.has_max() ? rules.max() : kAnyCount;
  return range;
}

std::vector<std::string> AcceptedNames(const FieldDescriptor& field) {
  std::vector<std::string> names;
  if (field.enum_type() == nullptr) return names;
  const auto& unavailable = RulesOf(field).unavailable();
  for (int i = 0; i < field.enum_type()->value_count(); ++i) {
    const std::string& name = field.enum_type()->value(i)->name();
    if (std::find(unavailable.begin(), unavailable.end(), name) == unavailable.end())
      names.push_back(name);
  }
  return names;
}

std::string DescribeAccepted(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "a string in quotes";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("one of ", absl::StrJoin(AcceptedNames(field), ", "));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "fields in braces";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return DescribeRange("a number", RangeOf(field));
    default:
      return DescribeRange("an integer", RangeOf(field));
  }
}

std::vector<std::vector<Condition>> ConditionsOf(const FieldDescriptor& field) {
  std::vector<std::vector<Condition>> conditions;
  for (const std::string& text : RulesOf(field).only_if()) {
    std::vector<Condition>& alternatives = conditions.emplace_back();
    for (absl::string_view alternative : absl::StrSplit(text, " or "))
      alternatives.push_back(ParseCondition(alternative));
  }
  return conditions;
}

}  // namespace megatron
