// The memory that a run's configuration plans, as --dry_run prints it.
#ifndef MEGATRON_TOOLS_REPORT_PLANNED_MEMORY_H_
#define MEGATRON_TOOLS_REPORT_PLANNED_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace megatron::report {

// Returns the bytes by kind of a rank of each pipeline stage. `vocabulary` is the number of rows of
// the table of embeddings, which the tokenizer decided.
absl::StatusOr<std::vector<std::map<std::string, int64_t>>> PlanMemory(
    const std::string& config_text, int64_t vocabulary);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_PLANNED_MEMORY_H_
