// tools:plan --explain: what a step of a configuration costs, and why.
#ifndef MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_H_
#define MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

struct ExplainArguments {
  std::string config;  // a file, or the name of a shipped configuration
  std::vector<std::string> set;
  std::string gpu;
  std::string program;   // whose efficiencies are taken
  int64_t gpus = 0;      // 0: as many as the layout has; else data parallelism has what is left
  double price = 0;      // dollars of a GPU's hour; 0: unknown
  double watts = 0;      // a GPU's, with its share of the machine; 0: unknown
  double tokens = 0;     // the whole run's; 0: those of train.train_iters steps
  std::string html;      // a page to write; empty: none
  std::string timeline;  // a trace to write; empty: none
  std::string measured;  // the profile of a run, which the trace and the pictures have besides
  std::string picture;   // a picture of the step to write; empty: none
};

// Prints the screen, and writes the page and the trace.
absl::Status ExplainPlan(const ExplainArguments& arguments, const PlanFacts& facts,
                         const MeasuredKernels& kernels);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_H_
