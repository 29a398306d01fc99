// Reaches the fields of a configuration by their paths: "train.rampup_batch_size.start".

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_PATHS_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_PATHS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace megatron {

// A field and the message that holds it.
struct FieldRef {
  const google::protobuf::Message* message;
  const google::protobuf::FieldDescriptor* field;
};

// Returns the fields of a message in the order of the schema. A configuration's end with the
// sections that the program adds to it: the extensions of PretrainConfig that are linked, in the
// order of their numbers.
std::vector<const google::protobuf::FieldDescriptor*> FieldsOf(
    const google::protobuf::Descriptor& type);

// Returns the field of this name, or null. The name of a section that the program adds is that of
// its extension, without the package.
const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor& type,
                                                   absl::string_view name);

// Returns the paths of all fields below `type` that hold values, in the order of the schema.
std::vector<std::string> LeafPaths(const google::protobuf::Descriptor& type);

// Returns the same with the fields that are messages, each before its own fields.
std::vector<std::string> AllPaths(const google::protobuf::Descriptor& type);

// CHECK-fails on a path that the schema does not have. An absent message on the path reads as its
// defaults.
FieldRef Resolve(const google::protobuf::Message& root, absl::string_view path);

// Removes the field, if it is there.
void ClearField(google::protobuf::Message* root, absl::string_view path);

// Returns whether the field was written, or has elements.
bool IsPresent(const FieldRef& ref);

// Returns the value as the text format spells it: `0.1`, `adam`, `"a b"`; a repeated field is `[a,
// b]`.
std::string ValueText(const FieldRef& ref);

// Returns ValueText() of each element of a repeated field. Another field has one element: its
// value, or its default; none if it has neither.
std::vector<std::string> ElementTexts(const FieldRef& ref);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_PATHS_H_
