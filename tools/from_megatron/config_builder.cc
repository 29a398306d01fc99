#include "tools/from_megatron/config_builder.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"

namespace megatron {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr double kLargestWhole = 1e15;

absl::Status Expects(const FieldDescriptor& field, absl::string_view value) {
  return absl::InvalidArgumentError(
      absl::StrCat("expects ", DescribeAccepted(field), ", not ", Quoted(value)));
}

// Megatron reads some whole numbers as floats: "1000.0".
bool ReadWhole(absl::string_view text, int64_t* value) {
  if (absl::SimpleAtoi(text, value)) return true;
  double number;
  if (!absl::SimpleAtod(text, &number) || !(std::fabs(number) < kLargestWhole)) return false;
  *value = static_cast<int64_t>(number);
  return static_cast<double>(*value) == number;
}

// Sets the field, or appends to it if it is repeated.
absl::Status SetOne(const std::string& value, const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t number;
      if (!ReadWhole(value, &number)) return Expects(*field, value);
      repeated ? reflection.AddInt64(message, field, number)
               : reflection.SetInt64(message, field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double number;
      if (!absl::SimpleAtod(value, &number) || !std::isfinite(number))
        return Expects(*field, value);
      repeated ? reflection.AddDouble(message, field, number)
               : reflection.SetDouble(message, field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const std::string name = absl::StrReplaceAll(value, {{"-", "_"}, {"+", "_"}});
      const EnumValueDescriptor* const known = field->enum_type()->FindValueByName(name);
      if (known == nullptr) {
        return absl::NotFoundError(
            absl::StrCat("there is ", DescribeAccepted(*field), ", no ", Quoted(value)));
      }
      repeated ? reflection.AddEnum(message, field, known)
               : reflection.SetEnum(message, field, known);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      repeated ? reflection.AddString(message, field, value)
               : reflection.SetString(message, field, value);
      return absl::OkStatus();
    default:
      return Expects(*field, value);
  }
}

absl::Status SetAll(const std::vector<std::string>& values, const FieldDescriptor* field,
                    Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    Message* const inner = reflection.MutableMessage(message, field);
    const Descriptor& type = *field->message_type();
    if (values.empty()) return absl::OkStatus();
    if (static_cast<int>(values.size()) != type.field_count()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expects ", type.field_count(), " values, not ", values.size()));
    }
    for (int i = 0; i < type.field_count(); ++i)
      MEGATRON_RETURN_IF_ERROR(SetOne(values[i], type.field(i), inner));
    return absl::OkStatus();
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    const bool plain = values.empty() || (values.size() == 1 && values[0] == "true");
    if (!plain && !(values.size() == 1 && values[0] == "false"))
      return absl::InvalidArgumentError(absl::StrCat("takes no value, and has ", values[0]));
    reflection.SetBool(message, field, plain);
    return absl::OkStatus();
  }
  if (values.empty()) return absl::InvalidArgumentError("needs a value");
  if (!field->is_repeated() && values.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("takes one value, and has ", values.size(),
                                                   ": the second is ", Quoted(values[1])));
  }
  reflection.ClearField(message, field);
  for (const std::string& value : values) {
    // Megatron has lists of numbers with spaces or with commas between them.
    const bool commas = field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
    const std::vector<std::string> parts =
        commas ? absl::StrSplit(value, absl::ByAnyChar(", "), absl::SkipEmpty())
               : std::vector<std::string>{value};
    for (const std::string& part : parts) MEGATRON_RETURN_IF_ERROR(SetOne(part, field, message));
  }
  return absl::OkStatus();
}

class Writer {
 public:
  explicit Writer(const std::map<std::string, std::string, std::less<>>& origins)
      : origins_(origins) {}

  std::string Write(const Message& message) {
    WriteFields(message, "", "");
    return std::move(text_);
  }

 private:
  std::string Comment(const std::string& path) const {
    const auto origin = origins_.find(path);
    if (origin == origins_.end() || origin->second.empty()) return "";
    return absl::StrCat("  # ", OneLine(origin->second));
  }

  void WriteFields(const Message& message, const std::string& parent, const std::string& indent) {
    const Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const FieldRef ref = {&message, &field};
      if (!IsPresent(ref)) continue;
      const std::string path = absl::StrCat(parent, parent.empty() ? "" : ".", field.name());
      if (field.message_type() == nullptr) {
        absl::StrAppend(&text_, indent, field.name(), ": ", ValueText(ref), Comment(path), "\n");
        continue;
      }
      if (parent.empty() && !text_.empty()) text_ += "\n";
      absl::StrAppend(&text_, indent, field.name(), " {", Comment(path), "\n");
      WriteFields(message.GetReflection()->GetMessage(message, &field), path, indent + "  ");
      absl::StrAppend(&text_, indent, "}\n");
    }
  }

  const std::map<std::string, std::string, std::less<>>& origins_;
  std::string text_;
};

}  // namespace

absl::Status ConfigBuilder::Set(absl::string_view path, const std::vector<std::string>& values,
                                absl::string_view origin) {
  config::PretrainConfig changed = config_;
  Message* message = &changed;
  const FieldDescriptor* field = nullptr;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    if (field != nullptr) message = message->GetReflection()->MutableMessage(message, field);
    field = message->GetDescriptor()->FindFieldByName(std::string(name));
  }
  MEGATRON_RETURN_IF_ERROR(SetAll(values, field, message));
  config_ = std::move(changed);
  origins_[std::string(path)] = std::string(origin);
  return absl::OkStatus();
}

absl::Status ConfigBuilder::SetNumber(absl::string_view path, int64_t value,
                                      absl::string_view origin) {
  return Set(path, std::vector<std::string>{absl::StrCat(value)}, origin);
}

void ConfigBuilder::Clear(absl::string_view path) {
  ClearField(&config_, path);
  origins_.erase(std::string(path));
}

bool ConfigBuilder::IsSet(absl::string_view path) const {
  return IsPresent(Resolve(config_, path));
}

std::string ConfigBuilder::Origin(absl::string_view path) const {
  const auto origin = origins_.find(path);
  return origin == origins_.end() ? "" : origin->second;
}

ConfigLocations ConfigBuilder::Locations() const {
  ConfigLocations locations;
  for (const auto& [path, origin] : origins_) locations.Set(path, OneLine(origin));
  return locations;
}

std::string ConfigBuilder::Text() const { return Writer(origins_).Write(config_); }

std::string OneLine(absl::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool control = absl::ascii_iscntrl(static_cast<unsigned char>(c));
    control ? absl::StrAppend(&result, absl::CEscape(absl::string_view(&c, 1)))
            : absl::StrAppend(&result, absl::string_view(&c, 1));
  }
  return result;
}

}  // namespace megatron
