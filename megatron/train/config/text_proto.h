// Parses a message of Protocol Buffers from text that a program wrote. Configurations, which people
// write, have config_parser.h, which reports all their errors.
#ifndef MEGATRON_TRAIN_CONFIG_TEXT_PROTO_H_
#define MEGATRON_TRAIN_CONFIG_TEXT_PROTO_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace megatron {

// Returns kInvalidArgument with line and column of the first error.
absl::Status ParseTextProto(absl::string_view text, google::protobuf::Message* message);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_TEXT_PROTO_H_
