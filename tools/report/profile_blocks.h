// What the profile and the pipeline's timeline of a run show: where a step's time went on each
// rank, what ran when, what ranks told each other, and the memory that they held.
#ifndef MEGATRON_TOOLS_REPORT_PROFILE_BLOCKS_H_
#define MEGATRON_TOOLS_REPORT_PROFILE_BLOCKS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/pipeline/timeline_text.h"
#include "tools/report/document.h"
#include "tools/report/run_profile.h"

namespace megatron::report {

// Titles end with `of_run`, and ids begin with `id`. A profile without ranks has no blocks.

// A table of rank by kind of part, in milliseconds of a step. Cells are the warmer the more they
// are above the median of all ranks. Then the parts of a step, a lane for each rank.
std::vector<Block> StepBlocks(const RunProfile& profile, const std::string& of_run,
                              absl::string_view id);
std::vector<Block> CommunicationBlocks(const RunProfile& profile, const std::string& of_run);
std::vector<Block> CounterBlocks(const RunProfile& profile, const std::string& of_run,
                                 absl::string_view id);

// A step of a pipeline as its mean costs predict it, and as it was measured, on one scale.
std::vector<Block> PipelineBlocks(const MeasuredSchedule& measured, const std::string& of_run,
                                  absl::string_view id);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_PROFILE_BLOCKS_H_
