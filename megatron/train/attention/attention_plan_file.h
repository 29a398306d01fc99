// Reads the file that says in which order attention's kernels are tried
// (system.attention_plan_file), attention_plans.proto as text.
#ifndef MEGATRON_TRAIN_ATTENTION_ATTENTION_PLAN_FILE_H_
#define MEGATRON_TRAIN_ATTENTION_ATTENTION_PLAN_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/train/attention/attention_plans.pb.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns kInvalidArgument with line and column, or with the place in the file, if the text is not
// such a file, says two things about one GPU's heads, or orders `auto`.
absl::StatusOr<train::AttentionPlanFile> ParseAttentionPlans(absl::string_view text);

// Returns kNotFound if there is no such file.
absl::StatusOr<train::AttentionPlanFile> ReadAttentionPlans(FileSystem& fs,
                                                            const std::string& path);

// Returns the backends in the order of the file; empty if it says nothing of these heads on this
// GPU.
std::vector<config::AttentionBackend::Type> OrderInFile(const train::AttentionPlanFile& file,
                                                        absl::string_view gpu, int64_t kv_channels);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_ATTENTION_ATTENTION_PLAN_FILE_H_
