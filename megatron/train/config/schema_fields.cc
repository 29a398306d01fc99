#include "megatron/train/config/schema_fields.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace megatron {
namespace {

using google::protobuf::Descriptor;

std::vector<SchemaField> ReadSchema() {
  std::vector<SchemaField> fields;
  for (const std::string& path : AllPaths(*config::PretrainConfig::descriptor())) {
    SchemaField& field = fields.emplace_back();
    field.path = path;
    const Descriptor* type = config::PretrainConfig::descriptor();
    for (absl::string_view name : absl::StrSplit(path, '.')) {
      field.chain.push_back(FindField(*type, name));
      type = field.chain.back()->message_type();
    }
    field.conditions = ConditionsOf(field.field());
  }
  return fields;
}

}  // namespace

FieldRef SchemaField::In(const config::PretrainConfig& config) const {
  FieldRef ref = {&config, chain.front()};
  for (size_t i = 1; i < chain.size(); ++i) {
    ref.message = &ref.message->GetReflection()->GetMessage(*ref.message, ref.field);
    ref.field = chain[i];
  }
  return ref;
}

const std::vector<SchemaField>& SchemaFields() {
  static const auto* const fields = new std::vector<SchemaField>(ReadSchema());
  return *fields;
}

}  // namespace megatron
