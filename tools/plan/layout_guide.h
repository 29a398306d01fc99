// A guide by model size: the fastest predicted layouts of models of many sizes, as a page.
//
//   MEGATRON_ASSIGN_OR_RETURN(const std::string page, LayoutGuide(facts, kernels, {}));
#ifndef MEGATRON_TOOLS_PLAN_LAYOUT_GUIDE_H_
#define MEGATRON_TOOLS_PLAN_LAYOUT_GUIDE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

struct GuideOptions {
  std::vector<std::string> models;  // names of GuideModels(); empty: all
  std::vector<std::string> gpus = {"H100", "A100"};
  std::vector<int64_t> counts = {8, 64, 512, 4096};
};

// A model of the guide.
struct GuideModel {
  std::string name;
  std::string config;  // as text, with its global batch
};

// Returns them by size.
const std::vector<GuideModel>& GuideModels();

// Returns a page in Markdown: a table for each kind of GPU, with a row for each model and number of
// GPUs, and what of the layouts can be counted. kInvalidArgument where a name is unknown.
absl::StatusOr<std::string> LayoutGuide(const PlanFacts& facts, const MeasuredKernels& kernels,
                                        const GuideOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PLAN_LAYOUT_GUIDE_H_
