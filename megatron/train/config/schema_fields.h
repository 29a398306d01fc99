// The fields of the configuration with what the schema alone says of them, read once in a process.
// What looks at every field of a configuration starts from here; Resolve() (config_paths.h) finds a
// single one by its path.

#ifndef MEGATRON_TRAIN_CONFIG_SCHEMA_FIELDS_H_
#define MEGATRON_TRAIN_CONFIG_SCHEMA_FIELDS_H_

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"

namespace megatron {

struct SchemaField {
  std::string path;  // "train.rampup_batch_size.start"
  // The messages around the field, from the outermost, and the field itself.
  std::vector<const google::protobuf::FieldDescriptor*> chain;
  std::vector<std::vector<Condition>> conditions;  // ConditionsOf() the field

  const google::protobuf::FieldDescriptor& field() const { return *chain.back(); }
  bool is_message() const { return field().message_type() != nullptr; }

  // Returns what Resolve() returns for the path, without a search by names.
  FieldRef In(const config::PretrainConfig& config) const;
};

// Returns the fields at AllPaths() of the configuration, in their order. The first call reads the
// schema, with the sections that the program adds; any thread may make it.
const std::vector<SchemaField>& SchemaFields();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_SCHEMA_FIELDS_H_
