#include "megatron/train/config/config_checker.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "megatron/train/config/schema_fields.h"

namespace megatron {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

// Returns the first element of a field that is outside its range, or names a value that is not
// available; empty if there is none.
std::string WrongElement(const FieldRef& ref) {
  const FieldDescriptor& field = *ref.field;
  const Reflection& reflection = *ref.message->GetReflection();
  const int count = field.is_repeated() ? reflection.FieldSize(*ref.message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      const double value = field.is_repeated()
                               ? reflection.GetRepeatedDouble(*ref.message, &field, i)
                               : reflection.GetDouble(*ref.message, &field);
      if (!RangeOf(field).Contains(value)) return absl::StrCat(value);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      const int64_t value = field.is_repeated()
                                ? reflection.GetRepeatedInt64(*ref.message, &field, i)
                                : reflection.GetInt64(*ref.message, &field);
      if (!RangeOf(field).Contains(static_cast<double>(value))) return absl::StrCat(value);
    } else if (!RulesOf(field).unavailable().empty()) {
      const std::string& value =
          (field.is_repeated() ? reflection.GetRepeatedEnum(*ref.message, &field, i)
                               : reflection.GetEnum(*ref.message, &field))
              ->name();
      if (absl::c_linear_search(RulesOf(field).unavailable(), value)) return value;
    }
  }
  return "";
}

// Returns "a, b and c".
std::string JoinWithAnd(const std::vector<std::string>& parts) {
  const auto last = parts.empty() ? parts.end() : parts.end() - 1;
  const std::string first = absl::StrJoin(parts.begin(), last, ", ");
  return absl::StrCat(first, first.empty() ? "" : " and ", parts.empty() ? "" : parts.back());
}

// Returns ": it needs PATH = true" if the condition is on a switch alone; else nothing.
std::string SwitchNeededBy(const std::string& path, const std::vector<Condition>& alternatives) {
  const Condition& condition = alternatives.front();
  if (alternatives.size() > 1 || condition.path == path ||
      condition.kind != Condition::Kind::kPresent)
    return "";
  const FieldRef ref = Resolve(config::PretrainConfig::default_instance(), condition.path);
  const bool is_switch =
      !ref.field->is_repeated() && ref.field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
  return is_switch ? absl::StrCat(": it needs ", condition.path, " = true") : "";
}

// Whether the field is absent, or has its default value.
bool HasItsDefault(const FieldRef& ref) {
  if (!IsPresent(ref)) return true;
  const Message& empty = *ref.message->GetReflection()->GetMessageFactory()->GetPrototype(
      ref.message->GetDescriptor());
  return ref.field->has_default_value() && ValueText(ref) == ValueText({&empty, ref.field});
}

// Whether the field is a message, whose text is that of all its fields, on several lines.
bool IsMessage(const FieldRef& ref) {
  return ref.field->message_type() != nullptr && !ref.field->is_repeated();
}

}  // namespace

ConfigChecker::ConfigChecker(const config::PretrainConfig& config, const ConfigLocations& locations,
                             absl::FunctionRef<void(config::PretrainConfig*)> resolve)
    : raw_(config), resolved_(config), locations_(locations) {
  CheckRanges();
  // Values out of range are removed, so that no sum or product overflows.
  for (const std::string& path : out_of_range_) ClearField(&resolved_, path);
  resolve(&resolved_);
}

FieldRef ConfigChecker::Ref(absl::string_view path) const { return Resolve(resolved_, path); }

bool ConfigChecker::IsWritten(absl::string_view path) const {
  return IsPresent(Resolve(raw_, path));
}

bool ConfigChecker::HasValue(absl::string_view path) const {
  const FieldRef ref = Ref(path);
  return IsPresent(ref) || ref.field->has_default_value() || ref.field->is_repeated();
}

bool ConfigChecker::Usable(std::initializer_list<absl::string_view> paths) const {
  return std::all_of(paths.begin(), paths.end(), [this](absl::string_view path) {
    return HasValue(path) && !locations_.IsBroken(path) && !out_of_range_.contains(path);
  });
}

bool ConfigChecker::IsDefault(absl::string_view path) const {
  return HasItsDefault(Resolve(raw_, path));
}

std::string ConfigChecker::ValueOf(absl::string_view path) const { return ValueText(Ref(path)); }

std::string ConfigChecker::Named(absl::string_view path) const {
  const char* const unwritten = IsPresent(Ref(path)) ? "computed" : "default";
  return absl::StrCat(path, IsMessage(Ref(path)) ? "" : absl::StrCat(" = ", ValueOf(path)), " (",
                      locations_.IsSet(path) ? locations_.Where(path) : unwritten, ")");
}

std::string ConfigChecker::Accepted(absl::string_view path) const {
  return DescribeAccepted(*Ref(path).field);
}

void ConfigChecker::Error(absl::string_view path, absl::string_view message) {
  const FieldRef ref = Ref(path);
  const bool shown = HasValue(path) && !(ref.field->is_repeated() && !IsPresent(ref));
  errors_.push_back({locations_.Where(path), std::string(path), shown ? ValueText(ref) : "",
                     std::string(message)});
}

void ConfigChecker::MessageError(absl::string_view path, absl::string_view message) {
  errors_.push_back({locations_.Where(path), std::string(path), "", std::string(message)});
}

void ConfigChecker::CheckRanges() {
  for (const SchemaField& field : SchemaFields()) {
    if (field.is_message()) continue;
    const FieldRef ref = field.In(raw_);
    if (!IsPresent(ref)) continue;
    const std::string wrong = WrongElement(ref);
    if (wrong.empty()) continue;
    const std::string& path = field.path;
    const std::string message = ref.field->enum_type() != nullptr
                                    ? absl::StrCat("is not available; expects ", Accepted(path))
                                : ref.field->is_repeated()
                                    ? absl::StrCat("holds ", wrong, "; each is ", Accepted(path))
                                    : absl::StrCat("expects ", Accepted(path));
    errors_.push_back({locations_.Where(path), path, ValueText(ref), message});
    out_of_range_.insert(path);
  }
}

void ConfigChecker::CheckRequired() {
  for (const SchemaField& field : SchemaFields()) {
    if (field.is_message() || !RulesOf(field.field()).required()) continue;
    const std::string& path = field.path;
    if (IsWritten(path) || IsPresent(Ref(path)) || locations_.IsBroken(path)) continue;
    const std::string parent = path.substr(0, path.rfind('.'));
    // A section that the program adds is there only if it is written.
    if (parent.find('.') == std::string::npos && !Ref(parent).field->is_extension()) {
      Error(path, absl::StrCat("is required: ", Accepted(path)));
    } else if (IsWritten(parent)) {
      Error(path, absl::StrCat("is required by ", parent));
    }
  }
}

void ConfigChecker::CheckEffects() {
  for (const SchemaField& field : SchemaFields()) {
    if (field.conditions.empty() || HasItsDefault(field.In(raw_))) continue;
    const std::string& path = field.path;
    for (const std::vector<Condition>& alternatives : field.conditions) {
      const auto holds = [this](const Condition& condition) { return Holds(condition); };
      if (absl::c_any_of(alternatives, holds)) continue;
      std::vector<std::string> reasons;
      for (const Condition& condition : alternatives) {
        if (condition.path == path) continue;  // the error names this field already
        const FieldRef ref = Ref(condition.path);
        const std::string reason = IsPresent(ref) || ref.field->has_default_value()
                                       ? absl::StrCat("with ", Named(condition.path))
                                       : absl::StrCat("without ", condition.path);
        if (!absl::c_linear_search(reasons, reason)) reasons.push_back(reason);
      }
      NoEffectError(path, absl::StrCat(JoinWithAnd(reasons), SwitchNeededBy(path, alternatives)));
      break;  // the conditions after this one often follow from it
    }
  }
}

bool ConfigChecker::Holds(const Condition& condition) const {
  // A condition on a field that is wrong itself counts as met.
  if (locations_.IsBroken(condition.path) || out_of_range_.contains(condition.path)) return true;
  const std::vector<std::string> values = ElementTexts(Ref(condition.path));
  const auto is_on = [](const std::string& value) { return value != "false"; };
  const auto is_equal = [&](const std::string& value) { return value == condition.value; };
  switch (condition.kind) {
    case Condition::Kind::kPresent:
      return absl::c_any_of(values, is_on);
    case Condition::Kind::kAbsent:
      return absl::c_none_of(values, is_on);
    case Condition::Kind::kEqual:
      return absl::c_any_of(values, is_equal);
    case Condition::Kind::kNotEqual:
      return absl::c_none_of(values, is_equal);
    case Condition::Kind::kAbove: {
      double limit;
      CHECK(absl::SimpleAtod(condition.value, &limit)) << condition.value;
      return absl::c_any_of(values, [limit](const std::string& value) {
        double number;
        return absl::SimpleAtod(value, &number) && number > limit;
      });
    }
  }
  return true;
}

void ConfigChecker::MustDivide(absl::string_view divisor, absl::string_view path,
                               int64_t divisor_value, int64_t value) {
  if (Usable({divisor, path}) && value % divisor_value != 0) {
    Error(path, absl::StrCat("must be divisible by ", Named(divisor)));
  }
}

void ConfigChecker::MustNotExceed(absl::string_view path, absl::string_view limit, double value,
                                  double limit_value) {
  if (Usable({path, limit}) && value > limit_value)
    Error(path, absl::StrCat("must be at most ", Named(limit)));
}

void ConfigChecker::HaveNoEffect(std::initializer_list<absl::string_view> paths,
                                 absl::string_view because) {
  for (absl::string_view path : paths) {
    if (!IsDefault(path)) NoEffectError(path, because);
  }
}

void ConfigChecker::NoEffectError(absl::string_view path, absl::string_view because) {
  // A file may be a shipped one, which the user cannot edit.
  const bool is_in_file = locations_.IsSet(path) && !absl::StartsWith(locations_.Where(path), "--");
  const std::string message = absl::StrCat(
      "has no effect ", because, is_in_file ? absl::StrCat("; --set ", path, "= removes it") : "");
  if (IsMessage(Ref(path))) return MessageError(path, message);
  Error(path, message);
}

}  // namespace megatron
