// Megatron's notation for what each part of a model holds: "Et*3|(tt|)*29,L".
//
// A part is a run of letters: E the embedding, t a transformer layer, L the loss; `|` ends it and
// begins the next. `*n` repeats the letter or the group in parentheses before it, bars included;
// groups do not nest. Commas and spaces say nothing. The first part must begin with the only E and
// the last end with the only L; what lies between may be empty. `m` is a layer of multi-token
// prediction, which must stand in the last part, behind its transformer layers.
#ifndef MEGATRON_PIPELINE_PIPELINE_LAYOUT_H_
#define MEGATRON_PIPELINE_PIPELINE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// The number of transformer layers of each part, in order. kInvalidArgument with the place of what
// is wrong; also when more than a hundred thousand parts or layers are described.
absl::StatusOr<std::vector<int64_t>> ParsePipelineLayout(absl::string_view text);
// The number of layers of multi-token prediction, with the same errors.
absl::StatusOr<int64_t> CountMtpLayers(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_PIPELINE_LAYOUT_H_
