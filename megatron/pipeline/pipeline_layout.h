// Megatron's notation for what each part of a model holds: "Et*3|(tt|)*29,L".
//
// A part is a run of letters: E the embedding, t a transformer layer, L the loss; `|` ends it and
// begins the next. `*n` repeats the letter or the group in parentheses before it, bars included;
// groups do not nest. Commas and spaces say nothing. The first part must begin with the only E and
// the last end with the only L; what lies between may be empty. `m` is a layer of multi-token
// prediction. All of them stand in one part, behind all transformer layers: in the last part, or in
// the one before, and then the last is L alone.
#ifndef MEGATRON_PIPELINE_PIPELINE_LAYOUT_H_
#define MEGATRON_PIPELINE_PIPELINE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct PipelineLayout {
  std::vector<int64_t> layers;   // the number of transformer layers of each part, in order
  int64_t mtp_layers = 0;        // the number of layers of multi-token prediction
  bool mtp_before_last = false;  // whether they are in the part in front of the last
};

// kInvalidArgument with the place of what is wrong; also when more than a hundred thousand parts or
// layers are described.
absl::StatusOr<PipelineLayout> ParsePipelineLayout(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_PIPELINE_LAYOUT_H_
