#include "megatron/train/config/own_sections.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"

namespace megatron {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

absl::Status Wrong(const FieldDescriptor& field, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("the section or field ", field.full_name(), " of the configuration ", what));
}

bool HasRange(const FieldDescriptor& field) {
  return RulesOf(field).has_min() || RulesOf(field).has_above();
}

absl::Status CheckField(const FieldDescriptor& field) {
  if (RulesOf(field).help().empty()) return Wrong(field, "has no help");
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
    case FieldDescriptor::CPPTYPE_STRING:
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return HasRange(field) ? absl::OkStatus() : Wrong(field, "has neither min nor above");
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
    default:
      return Wrong(field, absl::StrCat("has the type ", field.cpp_type_name(),
                                       ": take int64, double, bool, string or an enumeration"));
  }
  if (field.is_repeated()) return Wrong(field, "is a list of messages");
  const Descriptor& type = *field.message_type();
  for (int i = 0; i < type.field_count(); ++i) MEGATRON_RETURN_IF_ERROR(CheckField(*type.field(i)));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOwnSection(const FieldDescriptor& section) {
  if (section.message_type() == nullptr) return Wrong(section, "is no message");
  for (const FieldDescriptor* other : FieldsOf(*section.containing_type())) {
    if (other != &section && other->name() == section.name())
      return Wrong(section, "has the name of another section");
  }
  return CheckField(section);
}

void CheckOwnSections() {
  for (const FieldDescriptor* section : FieldsOf(*config::PretrainConfig::descriptor())) {
    if (!section->is_extension()) continue;
    const absl::Status status = CheckOwnSection(*section);
    CHECK(status.ok()) << status.message();
  }
}

}  // namespace megatron
