#include "megatron/train/config/config_text.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "megatron/train/config/config_paths.h"

namespace megatron {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class Printer {
 public:
  explicit Printer(const ConfigLocations* locations) : locations_(locations) {}

  std::string Print(const Message& message) {
    PrintFields(message, /*parent=*/"", /*indent=*/"");
    return std::move(text_);
  }

 private:
  void PrintFields(const Message& message, const std::string& parent, const std::string& indent) {
    for (const FieldDescriptor* field : FieldsOf(*message.GetDescriptor())) {
      const std::string path = absl::StrCat(parent, parent.empty() ? "" : ".", field->name());
      if (field->message_type() == nullptr) {
        PrintValue({&message, field}, path, indent);
      } else if (IsPresent({&message, field})) {
        absl::StrAppend(&text_, indent, field->name(), " {\n");
        PrintFields(message.GetReflection()->GetMessage(message, field), path, indent + "  ");
        absl::StrAppend(&text_, indent, "}\n");
      }
    }
  }

  void PrintValue(const FieldRef& ref, const std::string& path, const std::string& indent) {
    const bool present = IsPresent(ref);
    if (!present && !ref.field->has_default_value()) return;
    absl::StrAppend(&text_, indent, ref.field->name(), ": ", ValueText(ref));
    if (locations_ != nullptr) {
      absl::string_view origin = present ? "computed" : "default";
      const std::string where =
          locations_->IsSet(path) ? locations_->Where(path) : std::string(origin);
      // An override may hold a line feed, which would end the comment.
      absl::StrAppend(&text_, "  # ", absl::StrReplaceAll(where, {{"\n", "\\n"}, {"\r", "\\r"}}));
    }
    absl::StrAppend(&text_, "\n");
  }

  const ConfigLocations* locations_;
  std::string text_;
};

}  // namespace

std::string EffectiveConfigText(const config::PretrainConfig& config) {
  return Printer(nullptr).Print(config);
}

std::string EffectiveConfigText(const config::PretrainConfig& config,
                                const ConfigLocations& locations) {
  return Printer(&locations).Print(config);
}

}  // namespace megatron
