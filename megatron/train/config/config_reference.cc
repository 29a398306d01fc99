#include "megatron/train/config/config_reference.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "google/protobuf/compiler/parser.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_nearest_name.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"
#include "megatron/train/config/page_part.h"
#include "megatron/train/console/wrap_text.h"

namespace megatron {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::SourceLocation;

// Fields that contain a word are offered if the word is so long, and they are so few.
constexpr size_t kShortestPart = 3, kMostOffered = 20;

// The least room for sentences beside names: formulas are not cut.
constexpr size_t kNarrowestProse = 41;

constexpr char kSchemaText[] =
#include "megatron/train/config/config_schema_text.inc"
    ;

// The schema with its comments, which the descriptors that are compiled into a program lack.
const DescriptorPool& CommentedSchema() {
  static const auto* const pool = [] {
    google::protobuf::io::ArrayInputStream text(kSchemaText, sizeof(kSchemaText) - 1);
    google::protobuf::io::Tokenizer tokenizer(&text, /*error_collector=*/nullptr);
    FileDescriptorProto schema;
    CHECK(google::protobuf::compiler::Parser().Parse(&tokenizer, &schema));
    const FileDescriptor& compiled = *config::PretrainConfig::descriptor()->file();
    schema.set_name(compiled.name());
    auto* const commented = new DescriptorPool;
    for (const FileDescriptor* needed :
         {google::protobuf::FileDescriptorProto::descriptor()->file(),
          config::FieldRules::descriptor()->file()}) {
      FileDescriptorProto copy;
      needed->CopyTo(&copy);
      CHECK(commented->BuildFile(copy) != nullptr);
    }
    CHECK(commented->BuildFile(schema) != nullptr);
    return commented;
  }();
  return *pool;
}

bool IsInSchema(const FileDescriptor& file) {
  return &file == config::PretrainConfig::descriptor()->file();
}

// Returns the comment above a field or a value of an enumeration, as one paragraph.
template <typename Commented>
std::string CommentOf(const Commented* commented) {
  CHECK(commented != nullptr);
  SourceLocation location;
  CHECK(commented->GetSourceLocation(&location));
  const std::vector<std::string> words =
      absl::StrSplit(location.leading_comments, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return absl::StrJoin(words, " ");
}

std::string ProseOf(const FieldDescriptor& field) {
  if (!IsInSchema(*field.file())) return RulesOf(field).help();
  return CommentOf(CommentedSchema().FindFieldByName(field.full_name()));
}

std::string ProseOf(const EnumValueDescriptor& value) {
  if (!IsInSchema(*value.type()->file())) return "";
  return CommentOf(CommentedSchema()
                       .FindEnumTypeByName(value.type()->full_name())
                       ->FindValueByNumber(value.number()));
}

// An output format: plain text for a terminal, or Markdown.
class Style {
 public:
  explicit Style(bool markdown) : markdown_(markdown) {}

  std::string Code(absl::string_view text) const {
    return markdown_ ? absl::StrCat("`", text, "`") : std::string(text);
  }

  // Names of fields become code, names of pages become links.
  std::string Prose(absl::string_view text) const {
    if (!markdown_) return std::string(text);
    std::string out;
    bool in_code = false;
    while (!text.empty()) {
      const size_t length = WordLength(text);
      const absl::string_view word = text.substr(0, length == 0 ? 1 : length);
      text.remove_prefix(word.size());
      if (word == "`") in_code = !in_code;
      if (in_code) {
        absl::StrAppend(&out, word);
      } else if (absl::StartsWith(word, "docs/")) {
        absl::StrAppend(&out, "[", word.substr(5), "](", word.substr(5), ")");
      } else if (word.size() > 1 && absl::StrContains(word, '_')) {
        absl::StrAppend(&out, Code(word));
      } else {
        absl::StrAppend(&out, word);
      }
    }
    return out;
  }

 private:
  // Returns the length of the name at the beginning of `text`: letters, digits and the characters
  // between them, without a full stop at the end.
  static size_t WordLength(absl::string_view text) {
    size_t length = 0;
    while (length < text.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text[length])) ||
                                    absl::StrContains("_./", text[length]))) {
      ++length;
    }
    while (length > 0 && text[length - 1] == '.') --length;
    return length;
  }

  const bool markdown_;
};

std::string DescribeType(const FieldDescriptor& field, const Style& style) {
  std::string text = field.is_repeated() ? "a list; each element is " : "";
  if (field.message_type() == nullptr) {
    absl::StrAppend(&text, DescribeAccepted(field));
  } else {
    std::vector<std::string> names;
    for (int i = 0; i < field.message_type()->field_count(); ++i)
      names.push_back(style.Code(field.message_type()->field(i)->name()));
    absl::StrAppend(&text, "fields in braces: ", absl::StrJoin(names, ", "));
  }
  const std::string& unit = RulesOf(field).unit();
  if (!unit.empty()) absl::StrAppend(&text, " (", unit, ")");
  return text;
}

// Returns "default 0.1", "required", "computed: ...", or "unset".
std::string DescribeDefault(const FieldDescriptor& field, const Style& style) {
  if (RulesOf(field).required()) return "required";
  if (RulesOf(field).has_computed())
    return absl::StrCat("computed: ", style.Prose(RulesOf(field).computed()));
  if (!field.has_default_value()) return "unset";
  const google::protobuf::Message& empty =
      *google::protobuf::MessageFactory::generated_factory()->GetPrototype(field.containing_type());
  return absl::StrCat("default ", style.Code(ValueText({&empty, &field})));
}

std::string Describe(const Condition& condition, const Style& style) {
  const FieldRef ref = Resolve(config::PretrainConfig::default_instance(), condition.path);
  const bool is_bool = ref.field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
  const std::string path = style.Code(condition.path);
  switch (condition.kind) {
    case Condition::Kind::kPresent:
      return absl::StrCat(path, is_bool ? " is true" : " is set");
    case Condition::Kind::kAbsent:
      return absl::StrCat(path, is_bool ? " is false" : " is not set");
    case Condition::Kind::kEqual:
      return absl::StrCat(path, " is ", condition.value);
    case Condition::Kind::kNotEqual:
      return absl::StrCat(path, " is not ", condition.value);
    case Condition::Kind::kAbove:
      return absl::StrCat(path, " is greater than ", condition.value);
  }
  return "";
}

// Returns "It has an effect only if ...", or nothing.
std::string DescribeConditions(const FieldDescriptor& field, const Style& style) {
  std::vector<std::string> conditions;
  for (const std::vector<Condition>& alternatives : ConditionsOf(field)) {
    conditions.push_back(
        absl::StrJoin(alternatives, " or ", [&](std::string* out, const Condition& condition) {
          absl::StrAppend(out, Describe(condition, style));
        }));
  }
  if (conditions.empty()) return "";
  return absl::StrCat("It has an effect only if ", absl::StrJoin(conditions, ", and "), ".");
}

// Appends a line for each value of an enumeration that has a comment.
void AppendValues(const FieldDescriptor& field, const Style& style, absl::string_view mark,
                  absl::string_view indent, size_t columns, std::string* text) {
  if (field.enum_type() == nullptr) return;
  for (int i = 0; i < field.enum_type()->value_count(); ++i) {
    const EnumValueDescriptor& value = *field.enum_type()->value(i);
    const std::string prose = ProseOf(value);
    if (prose.empty()) continue;
    absl::StrAppend(text,
                    WrapText(absl::StrCat(mark, style.Code(value.name()), ": ", style.Prose(prose)),
                             indent, columns),
                    "\n");
  }
}

void AppendFields(const Descriptor& type, absl::string_view parent, std::string* text) {
  const Style style(/*markdown=*/true);
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string name = absl::StrCat(parent, field.name());
    std::string entry = absl::StrCat("- **", style.Code(name), "**: ", DescribeType(field, style),
                                     "; ", DescribeDefault(field, style), ".");
    for (const std::string& sentence :
         {style.Prose(ProseOf(field)), DescribeConditions(field, style)}) {
      if (!sentence.empty()) absl::StrAppend(&entry, " ", sentence);
    }
    absl::StrAppend(text, WrapText(entry, "  ", kReferenceColumns), "\n");
    AppendValues(field, style, "  - ", "    ", kReferenceColumns, text);
    if (field.message_type() != nullptr)
      AppendFields(*field.message_type(), absl::StrCat(name, "."), text);
  }
}

std::string Reference() {
  const Style style(/*markdown=*/true);
  const Descriptor& schema = *config::PretrainConfig::descriptor();
  std::string text;
  for (int i = 0; i < schema.field_count(); ++i) {
    const FieldDescriptor& section = *schema.field(i);
    absl::StrAppend(&text, "\n### ", section.name(), "\n\n",
                    WrapText(style.Prose(ProseOf(section)), "", kReferenceColumns), "\n\n");
    AppendFields(*section.message_type(), "", &text);
  }
  return text + "\n";
}

// Returns the text's first sentence without the full stop.
std::string FirstSentence(absl::string_view text) {
  const size_t end = text.find(". ");
  return std::string(absl::StripSuffix(text.substr(0, end), "."));
}

// Appends an entry for each field of a message: its name, and the first sentence about it.
void AppendFieldList(const Descriptor& type, absl::string_view path, size_t columns,
                     std::string* text) {
  size_t width = 0;
  for (int i = 0; i < type.field_count(); ++i)
    width = std::max(width, type.field(i)->name().size());
  // Beside long names little room is left on a narrow terminal; sentences then go below them.
  const bool beside = width + 4 + kNarrowestProse <= columns;
  const std::string indent(beside ? width + 4 : 6, ' ');
  absl::StrAppend(text, "\n");
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string& name = type.field(i)->name();
    std::string start = absl::StrCat("  ", name, std::string(width + 2 - name.size(), ' '));
    if (!beside) {
      absl::StrAppend(text, "  ", name, "\n");
      start = indent;
    }
    const std::string sentence = FirstSentence(ProseOf(*type.field(i)));
    absl::StrAppend(text, WrapText(absl::StrCat(start, sentence), indent, columns), "\n");
  }
  const std::string more =
      absl::StrCat("--explain ", path, ".", type.field(0)->name(), " prints all about one field.");
  absl::StrAppend(text, "\n", WrapText(more, "", columns), "\n");
}

std::string LastName(absl::string_view path) {
  return std::string(path.substr(path.rfind('.') + 1));
}

// Returns whether what the reference says about the field has the word, in whatever case.
bool SpeaksOf(const std::string& path, absl::string_view word) {
  const FieldDescriptor& field = *Resolve(config::PretrainConfig::default_instance(), path).field;
  return absl::StrContains(absl::AsciiStrToLower(ProseOf(field)), absl::AsciiStrToLower(word));
}

absl::Status UnknownField(absl::string_view name, const std::vector<std::string>& paths) {
  std::vector<std::string> candidates = paths;
  for (const std::string& path : paths) candidates.push_back(LastName(path));
  std::vector<std::string> containing, about;
  for (const std::string& path : paths) {
    if (name.size() < kShortestPart) break;
    if (absl::StrContains(path, name)) {
      containing.push_back(path);
    } else if (SpeaksOf(path, name)) {
      about.push_back(path);
    }
  }
  std::string offer;
  for (const auto& [fields, what] :
       {std::pair(&containing, "; these contain it: "), {&about, "; these speak of it: "}}) {
    if (!fields->empty() && fields->size() <= kMostOffered)
      absl::StrAppend(&offer, what, absl::StrJoin(*fields, ", "));
  }
  const std::string nearest = NearestName(name, candidates);
  if (!nearest.empty()) absl::StrAppend(&offer, "; did you mean ", nearest, "?");
  return absl::NotFoundError(absl::StrCat(
      "there is no field ", name, offer.empty() ? "; docs/configuration.md lists them" : offer));
}

}  // namespace

absl::StatusOr<std::string> WithReference(absl::string_view page) {
  return WithPart(page, "reference", Reference());
}

absl::StatusOr<std::string> ExplainField(absl::string_view name, size_t columns) {
  const std::vector<std::string> paths = AllPaths(*config::PretrainConfig::descriptor());
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    if (path == name) found = {path};
    if (path == name) break;
    if (absl::EndsWith(path, absl::StrCat(".", name))) found.push_back(path);
  }
  if (found.empty()) return UnknownField(name, paths);
  if (found.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is the name of several fields: ", absl::StrJoin(found, ", ")));
  }
  const Style style(/*markdown=*/false);
  const std::string& path = found.front();
  const FieldDescriptor& field = *Resolve(config::PretrainConfig::default_instance(), path).field;
  const bool is_section = field.containing_type() == config::PretrainConfig::descriptor();
  std::string text = absl::StrCat(path, "\n");
  if (!is_section) {
    for (const std::string& line : {absl::StrCat("  takes ", DescribeType(field, style)),
                                    absl::StrCat("  ", DescribeDefault(field, style))}) {
      absl::StrAppend(&text, WrapText(line, "    ", columns), "\n");
    }
  }
  AppendValues(field, style, "  ", "    ", columns, &text);
  for (const std::string& prose : {ProseOf(field), DescribeConditions(field, style)}) {
    if (!prose.empty()) absl::StrAppend(&text, "\n", WrapText(prose, "", columns), "\n");
  }
  if (field.message_type() != nullptr) AppendFieldList(*field.message_type(), path, columns, &text);
  return text;
}

}  // namespace megatron
