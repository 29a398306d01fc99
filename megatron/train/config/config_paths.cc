#include "megatron/train/config/config_paths.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace megatron {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

void AppendPaths(const Descriptor& type, const std::string& parent, bool with_messages,
                 std::vector<std::string>* paths) {
  for (const FieldDescriptor* field : FieldsOf(type)) {
    const std::string path = absl::StrCat(parent, parent.empty() ? "" : ".", field->name());
    if (field->message_type() == nullptr || with_messages) paths->push_back(path);
    if (field->message_type() != nullptr)
      AppendPaths(*field->message_type(), path, with_messages, paths);
  }
}

std::string ElementText(const FieldRef& ref, int index) {
  std::string text;
  TextFormat::PrintFieldValueToString(*ref.message, ref.field, index, &text);
  return text;
}

}  // namespace

std::vector<const FieldDescriptor*> FieldsOf(const Descriptor& type) {
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < type.field_count(); ++i) fields.push_back(type.field(i));
  if (type.extension_range_count() == 0) return fields;
  std::vector<const FieldDescriptor*> added;
  type.file()->pool()->FindAllExtensions(&type, &added);
  std::sort(added.begin(), added.end(), [](const FieldDescriptor* a, const FieldDescriptor* b) {
    return a->number() < b->number();
  });
  fields.insert(fields.end(), added.begin(), added.end());
  return fields;
}

const FieldDescriptor* FindField(const Descriptor& type, absl::string_view name) {
  const FieldDescriptor* const known = type.FindFieldByName(std::string(name));
  if (known != nullptr || type.extension_range_count() == 0) return known;
  for (const FieldDescriptor* field : FieldsOf(type)) {
    if (field->name() == name) return field;
  }
  return nullptr;
}

std::vector<std::string> LeafPaths(const Descriptor& type) {
  std::vector<std::string> paths;
  AppendPaths(type, "", /*with_messages=*/false, &paths);
  return paths;
}

std::vector<std::string> AllPaths(const Descriptor& type) {
  std::vector<std::string> paths;
  AppendPaths(type, "", /*with_messages=*/true, &paths);
  return paths;
}

FieldRef Resolve(const Message& root, absl::string_view path) {
  FieldRef ref = {&root, nullptr};
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    if (ref.field != nullptr)
      ref.message = &ref.message->GetReflection()->GetMessage(*ref.message, ref.field);
    ref.field = FindField(*ref.message->GetDescriptor(), name);
    CHECK(ref.field != nullptr) << "the configuration has no field " << path;
  }
  return ref;
}

void ClearField(Message* root, absl::string_view path) {
  if (!IsPresent(Resolve(*root, path))) return;  // the messages on the path need not be made
  const FieldDescriptor* field = nullptr;
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    if (field != nullptr) root = root->GetReflection()->MutableMessage(root, field);
    field = FindField(*root->GetDescriptor(), name);
  }
  root->GetReflection()->ClearField(root, field);
}

bool IsPresent(const FieldRef& ref) {
  const google::protobuf::Reflection& reflection = *ref.message->GetReflection();
  return ref.field->is_repeated() ? reflection.FieldSize(*ref.message, ref.field) > 0
                                  : reflection.HasField(*ref.message, ref.field);
}

std::string ValueText(const FieldRef& ref) {
  if (!ref.field->is_repeated()) return ElementText(ref, -1);
  std::string text = "[";
  const int size = ref.message->GetReflection()->FieldSize(*ref.message, ref.field);
  for (int i = 0; i < size; ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", ElementText(ref, i));
  return text + "]";
}

std::vector<std::string> ElementTexts(const FieldRef& ref) {
  if (!ref.field->is_repeated()) {
    if (!IsPresent(ref) && !ref.field->has_default_value()) return {};
    return {ElementText(ref, -1)};
  }
  std::vector<std::string> texts;
  const int size = ref.message->GetReflection()->FieldSize(*ref.message, ref.field);
  for (int i = 0; i < size; ++i) texts.push_back(ElementText(ref, i));
  return texts;
}

}  // namespace megatron
