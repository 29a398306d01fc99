// The page of tools:plan --explain --html: the tables, the timeline of the simulated step, and how
// the speed grows with the number of GPUs.
#ifndef MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_PAGE_H_
#define MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_PAGE_H_

#include <string>

#include "megatron/plan/measured_kernels.h"
#include "tools/plan/plan_explain_text.h"

namespace megatron {

std::string ExplanationPage(const Explanation& explanation, const MeasuredKernels& kernels);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PLAN_PLAN_EXPLAIN_PAGE_H_
