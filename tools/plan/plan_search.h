// Searches the layouts of a configuration for people: the part of `plan --config`.
#ifndef MEGATRON_TOOLS_PLAN_PLAN_SEARCH_H_
#define MEGATRON_TOOLS_PLAN_PLAN_SEARCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

struct PlanSearchOptions {
  std::string config;                  // a file, or the name of a shipped configuration
  std::vector<std::string> overrides;  // parts of a layout that they write are held
  int64_t gpus = 0;
  std::string gpu = "H100";
  double memory_gib = 0;  // GiB of a GPU; 0: 95 % of the hardware's, or a rank's share
  // GiB of the host for a GPU; 0: nothing lies there; none: 90 % of its share.
  std::optional<double> host_memory_gib;
  int best = 5;
  std::string output;  // where to write the fastest layout's configuration; empty: nowhere
};

// Returns what is printed. kInvalidArgument where the flags or the configuration are wrong, or
// where no layout fits: then the message has the number of GPUs that would do.
absl::StatusOr<std::string> SearchPlan(const PlanSearchOptions& options, const PlanFacts& facts,
                                       const MeasuredKernels& kernels);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PLAN_PLAN_SEARCH_H_
