// Sections of the configuration that a program adds: extensions of PretrainConfig. They are read,
// checked and explained like those of config.proto, by what their fields' rules say.

#ifndef MEGATRON_TRAIN_CONFIG_OWN_SECTIONS_H_
#define MEGATRON_TRAIN_CONFIG_OWN_SECTIONS_H_

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"

namespace megatron {

// Returns whether the configuration can have this section. It must be an optional message with a
// name that no other section has. It and all of its fields must have the rule `help`; each field is
// an int64, a double, a bool, a string, an enumeration or an optional message of such fields, and
// numbers have a lower end. The error says what is wrong.
absl::Status CheckOwnSection(const google::protobuf::FieldDescriptor& section);

// CHECK-fails where a section that the program adds is wrong by CheckOwnSection: that is a bug of
// the program.
void CheckOwnSections();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_OWN_SECTIONS_H_
