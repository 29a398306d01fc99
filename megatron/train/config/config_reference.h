// Writes the comments and rules of config.proto for users: as the reference in
// docs/configuration.md, and as the answer of --explain.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_REFERENCE_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_REFERENCE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

inline constexpr size_t kReferenceColumns = 100;

// Returns the page with the text between its two lines "<!-- reference: begin ... -->" and "<!--
// reference: end -->" replaced by the reference of all fields. Returns InvalidArgument if the page
// lacks one of these lines.
absl::StatusOr<std::string> WithReference(absl::string_view page);

// Returns the description of a field: type, range, unit, default, conditions and prose; of a
// section or another message, also the first sentence about each of its fields. `name` is a path
// ("parallel.sequence_parallel") or the end of one ("sequence_parallel"). Lines are broken so that
// none is longer than `columns`, but for long words and formulas. Returns NotFound, with the
// nearest name, if there is no such field; InvalidArgument, with their paths, if there are several.
absl::StatusOr<std::string> ExplainField(absl::string_view name,
                                         size_t columns = kReferenceColumns);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_REFERENCE_H_
