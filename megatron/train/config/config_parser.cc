#include "megatron/train/config/config_parser.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "megatron/train/config/config_nearest_name.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"
#include "megatron/train/config/config_syntax.h"
#include "megatron/train/config/schema_fields.h"

namespace megatron {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

constexpr size_t kLongestShownValue = 60;
constexpr int kMostShownFields = 3;

// TextFormat's own words name neither the field nor what it accepts; ours take their place.
class SilentErrors : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

std::string Shown(absl::string_view value) {
  return value.size() <= kLongestShownValue
             ? std::string(value)
             : absl::StrCat(value.substr(0, kLongestShownValue), "...");
}

// Returns what stands between quotes, or `value` if it has none around it.
absl::string_view WithoutQuotes(absl::string_view value) {
  const bool is_quoted =
      value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0];
  return is_quoted ? value.substr(1, value.size() - 2) : value;
}

std::string Joined(absl::string_view parent, absl::string_view name) {
  return parent.empty() ? std::string(name) : absl::StrCat(parent, ".", name);
}

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (const FieldDescriptor* field : FieldsOf(type)) names.push_back(field->name());
  return names;
}

std::string UnknownFieldMessage(const Descriptor& type, absl::string_view name) {
  for (const SchemaField& field : SchemaFields()) {
    if (field.field().name() == name)
      return absl::StrCat("no such field here; did you mean ", field.path, "?");
  }
  const std::string nearest = NearestName(name, FieldNames(type));
  return nearest.empty() ? "no such field"
                         : absl::StrCat("no such field; did you mean ", nearest, "?");
}

// Returns "{start: ... increment: ... samples: ...}", with the values where there is one for each
// field.
std::string MessageSpelling(const Descriptor& type, const std::vector<std::string>& values) {
  const int shown = std::min(type.field_count(), kMostShownFields);
  const bool complete = static_cast<int>(values.size()) == type.field_count();
  std::vector<std::string> fields;
  for (int i = 0; i < shown; ++i)
    fields.push_back(absl::StrCat(type.field(i)->name(), ": ", complete ? values[i] : "..."));
  if (shown < type.field_count()) fields.push_back("...");
  return absl::StrCat("{", absl::StrJoin(fields, " "), "}");
}

std::string WrongTypeMessage(const FieldDescriptor& field, const std::vector<std::string>& values) {
  if (field.message_type() != nullptr)
    return absl::StrCat("expects fields in braces: ",
                        MessageSpelling(*field.message_type(), values));
  const absl::string_view value =
      values.empty() ? "" : WithoutQuotes(absl::string_view(values.front()));
  std::string message = absl::StrCat("expects ", DescribeAccepted(field));
  if (field.enum_type() == nullptr) return message;
  std::vector<std::string> names;
  for (int i = 0; i < field.enum_type()->value_count(); ++i)
    names.push_back(field.enum_type()->value(i)->name());
  const std::string nearest = NearestName(value, names);
  if (!nearest.empty()) absl::StrAppend(&message, "; did you mean ", nearest, "?");
  return message;
}

// Writes fields of a syntax tree into messages. One object serves the file, and one each override.
class Binder {
 public:
  // If `override_text` is given, all fields come from it and it is their place; else places are
  // lines and columns of the source.
  Binder(ParsedConfig* parsed, absl::string_view override_text)
      : parsed_(*parsed), override_text_(override_text) {}

  std::string Where(const TextPosition& position) const {
    if (!override_text_.empty()) return absl::StrCat("--set ", Shown(override_text_));
    return absl::StrCat(parsed_.locations.source(), ":", position.line, ":", position.column);
  }

  void AddError(const TextPosition& position, absl::string_view path, absl::string_view value,
                absl::string_view message) {
    parsed_.errors.push_back(
        {Where(position), std::string(path), Shown(value), std::string(message)});
  }

  void BindFields(const std::vector<SyntaxField>& fields, absl::string_view parent,
                  Message* message) {
    for (const SyntaxField& field : fields) BindField(field, parent, message);
  }

  void BindField(const SyntaxField& field, absl::string_view parent, Message* message) {
    const std::string path = Joined(parent, field.name);
    const FieldDescriptor* const known = FindField(*message->GetDescriptor(), field.name);
    if (known == nullptr) {
      AddError(field.position, path, "",
               UnknownFieldMessage(*message->GetDescriptor(), field.name));
      return;
    }
    if (parsed_.locations.IsSet(path) && !known->is_repeated()) {
      AddError(
          field.position, path, "",
          absl::StrCat("is set a second time; the first is at ", parsed_.locations.Where(path)));
      return;
    }
    if (!parsed_.locations.IsSet(path)) parsed_.locations.Set(path, Where(field.position));
    if (field.is_message != (known->message_type() != nullptr) ||
        (field.is_list && !known->is_repeated())) {
      Refuse(field, path, field.values, WrongTypeMessage(*known, field.values));
    } else if (field.is_message) {
      BindFields(field.fields, path, message->GetReflection()->MutableMessage(message, known));
    } else {
      for (const std::string& value : field.values) BindValue(field, value, *known, path, message);
    }
  }

 private:
  void Refuse(const SyntaxField& field, const std::string& path,
              const std::vector<std::string>& values, const std::string& message) {
    AddError(field.position, path, absl::StrJoin(values, ", "), message);
    parsed_.locations.MarkBroken(path);
  }

  void BindValue(const SyntaxField& field, const std::string& value, const FieldDescriptor& known,
                 const std::string& path, Message* message) {
    SilentErrors silent;
    TextFormat::Parser parser;
    parser.RecordErrorsTo(&silent);
    if (parser.ParseFieldValueFromString(value, &known, message)) return;
    message->GetReflection()->ClearField(message, &known);  // "4 5" would leave a 4
    const std::string bare(WithoutQuotes(value));
    const std::unique_ptr<Message> scratch(message->New());
    const bool fits_bare =
        bare != value && parser.ParseFieldValueFromString(bare, &known, scratch.get());
    Refuse(field, path, {value},
           fits_bare ? absl::StrCat("is written without quotes: ", bare)
                     : WrongTypeMessage(known, {value}));
  }

  ParsedConfig& parsed_;
  const std::string override_text_;
};

bool IsQuoted(absl::string_view value) {
  return absl::StartsWith(value, "\"") || absl::StartsWith(value, "'");
}

// Returns one value of an override, in which a string needs no quotes, as the text format spells
// it.
std::string AsWritten(const FieldDescriptor& field, absl::string_view value) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING || IsQuoted(value))
    return std::string(value);
  return absl::StrCat("\"", absl::CEscape(value), "\"");
}

class Override {
 public:
  Override(const std::string& text, ParsedConfig* parsed)
      : text_(text), parsed_(*parsed), binder_(parsed, text) {}

  void Apply() {
    const size_t equals = text_.find('=');
    if (equals == std::string::npos) return Fail("", "", "expected path.to.field=value");
    path_ = std::string(absl::StripAsciiWhitespace(absl::string_view(text_).substr(0, equals)));
    value_ = std::string(absl::StripAsciiWhitespace(absl::string_view(text_).substr(equals + 1)));
    if (FindTarget()) Replace();
  }

 private:
  void Fail(absl::string_view path, absl::string_view value, absl::string_view message) {
    binder_.AddError({}, path, value, message);
  }

  // Walks to the message that holds the field, creating the ones on the way.
  bool FindTarget() {
    const std::vector<std::string> names = absl::StrSplit(path_, '.');
    message_ = &parsed_.config;
    for (size_t i = 0; i < names.size(); ++i) {
      field_ = FindField(*message_->GetDescriptor(), names[i]);
      if (field_ == nullptr) {
        Fail(path_, "", UnknownFieldMessage(*message_->GetDescriptor(), names[i]));
        return false;
      }
      if (i + 1 == names.size()) return true;
      if (field_->message_type() == nullptr) {
        Fail(path_, "", absl::StrCat(field_->name(), " is a value and has no fields"));
        return false;
      }
      message_ = message_->GetReflection()->MutableMessage(message_, field_);
    }
    return false;
  }

  void Replace() {
    message_->GetReflection()->ClearField(message_, field_);
    parsed_.locations.Erase(path_);
    if (value_.empty()) return;
    SyntaxField field;
    field.name = field_->name();
    if (field_->message_type() != nullptr || absl::StartsWith(value_, "{")) {
      if (!ReadMessage(&field)) return;
    } else if (field_->is_repeated()) {
      if (!ReadList(&field)) return;
    } else {
      field.values = {AsWritten(*field_, value_)};
    }
    const size_t dot = path_.rfind('.');
    binder_.BindField(
        field, dot == std::string::npos ? "" : absl::string_view(path_).substr(0, dot), message_);
  }

  bool ReadMessage(SyntaxField* field) {
    const std::string text =
        absl::StartsWith(value_, "{") ? value_ : absl::StrCat("{", value_, "}");
    SyntaxTree tree = ParseSyntax(absl::StrCat(field->name, text));
    if (!tree.errors.empty() && field_->message_type() != nullptr &&
        !absl::StartsWith(value_, "{")) {
      Fail(path_, value_, WrongTypeMessage(*field_, ListedValues()));
      return false;
    }
    for (const SyntaxError& error : tree.errors) Fail(path_, value_, error.message);
    if (!tree.errors.empty() || tree.fields.size() != 1) return false;
    *field = std::move(tree.fields.front());
    return true;
  }

  // Returns the parts of `[2,2,20]` or `2 2 20`: other programs take the fields of a message in
  // these forms.
  std::vector<std::string> ListedValues() const {
    return absl::StrSplit(value_, absl::ByAnyChar("[], "), absl::SkipEmpty());
  }

  // Names and bare strings are split at commas; a list with quotes is read as in a file.
  bool ReadList(SyntaxField* field) {
    absl::string_view items = value_;
    if (absl::ConsumePrefix(&items, "[") && !absl::ConsumeSuffix(&items, "]")) {
      Fail(path_, value_, "expected ']' at the end");
      return false;
    }
    field->is_list = true;
    if (items.find_first_of("\"'") == absl::string_view::npos) {
      for (absl::string_view item : absl::StrSplit(items, ',', absl::SkipWhitespace())) {
        field->values.push_back(AsWritten(*field_, absl::StripAsciiWhitespace(item)));
      }
      return true;
    }
    SyntaxTree tree = ParseSyntax(absl::StrCat(field->name, ": [", items, "]"));
    for (const SyntaxError& error : tree.errors) Fail(path_, value_, error.message);
    if (!tree.errors.empty() || tree.fields.size() != 1) return false;
    *field = std::move(tree.fields.front());
    return true;
  }

  const std::string& text_;
  ParsedConfig& parsed_;
  Binder binder_;
  std::string path_;
  std::string value_;
  Message* message_ = nullptr;
  const FieldDescriptor* field_ = nullptr;
};

}  // namespace

ParsedConfig ParseConfig(absl::string_view text, absl::string_view source,
                         const std::vector<std::string>& overrides,
                         UnknownSections unknown_sections) {
  ParsedConfig parsed;
  parsed.locations = ConfigLocations(source);
  SyntaxTree tree = ParseSyntax(text);
  if (unknown_sections == UnknownSections::kIgnore) {
    const auto is_unknown = [](const SyntaxField& field) {
      return field.is_message &&
             FindField(*config::PretrainConfig::descriptor(), field.name) == nullptr;
    };
    tree.fields.erase(std::remove_if(tree.fields.begin(), tree.fields.end(), is_unknown),
                      tree.fields.end());
  }
  Binder binder(&parsed, /*override_text=*/"");
  for (const SyntaxError& error : tree.errors)
    binder.AddError(error.position, "", "", error.message);
  binder.BindFields(tree.fields, /*parent=*/"", &parsed.config);
  for (const std::string& override_text : overrides) Override(override_text, &parsed).Apply();
  return parsed;
}

}  // namespace megatron
