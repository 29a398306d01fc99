#include "megatron/train/config/config_checker.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_ranges.h"

namespace megatron {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

ConfigChecker::ConfigChecker(const config::PretrainConfig& config, const ConfigLocations& locations)
    : raw_(config), resolved_(config), locations_(locations) {
  CheckRanges();
  // What is out of range stays out of sums and products.
  for (const std::string& path : out_of_range_) ClearField(&resolved_, path);
  ResolveDefaults(&resolved_);
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
  const FieldRef ref = Resolve(raw_, path);
  if (!IsPresent(ref)) return true;
  const Message& empty = *ref.message->GetReflection()->GetMessageFactory()->GetPrototype(
      ref.message->GetDescriptor());
  return ref.field->has_default_value() && ValueText(ref) == ValueText({&empty, ref.field});
}

std::string ConfigChecker::ValueOf(absl::string_view path) const { return ValueText(Ref(path)); }

std::string ConfigChecker::Named(absl::string_view path) const {
  const char* const unwritten = IsPresent(Ref(path)) ? "computed" : "default";
  return absl::StrCat(path, " = ", ValueOf(path), " (",
                      locations_.IsSet(path) ? locations_.Where(path) : unwritten, ")");
}

std::string ConfigChecker::Accepted(absl::string_view path) const {
  return DescribeAccepted(*Ref(path).field, path);
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
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const FieldRef ref = Resolve(raw_, path);
    if (!IsPresent(ref) || ref.field->is_repeated()) continue;
    const Reflection& reflection = *ref.message->GetReflection();
    double value;
    if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      value = reflection.GetDouble(*ref.message, ref.field);
    } else if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      value = static_cast<double>(reflection.GetInt64(*ref.message, ref.field));
    } else {
      continue;
    }
    if (RangeOf(path).Contains(value)) continue;
    errors_.push_back(
        {locations_.Where(path), path, ValueText(ref), absl::StrCat("expects ", Accepted(path))});
    out_of_range_.insert(path);
  }
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
    if (!IsDefault(path)) Error(path, absl::StrCat("has no effect ", because));
  }
}

}  // namespace megatron
