// What the schema says of each field, for people: the comments and rules of config.proto as the
// reference in docs/configuration.md and as the answer of --explain.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_REFERENCE_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_REFERENCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// The page with the text between its two lines "<!-- reference: begin ... -->" and
// "<!-- reference: end -->" replaced by the reference of all fields. InvalidArgument where the page
// lacks one of these lines.
absl::StatusOr<std::string> WithReference(absl::string_view page);

// What a user wants to know of a field: type, range, unit, default, conditions and prose. `name` is
// a path ("parallel.sequence_parallel") or the end of one ("sequence_parallel"). NotFound, with the
// nearest name, where there is no such field; InvalidArgument, with their paths, where there are
// several.
absl::StatusOr<std::string> ExplainField(absl::string_view name);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_REFERENCE_H_
