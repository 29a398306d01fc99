#include "megatron/train/preflight/check_world_size.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

int64_t RanksOfModel(const config::ParallelConfig& parallel) {
  return parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
         parallel.pipeline_model_parallel_size();
}

}  // namespace

std::optional<int64_t> DataParallelSizeOfWorld(const LaunchEnvironment& launch,
                                               const config::ParallelConfig& parallel) {
  if (launch.world_size == 1 || parallel.has_data_parallel_size()) return std::nullopt;
  const int64_t model = RanksOfModel(parallel);
  if (model < 1 || launch.world_size % model != 0) return std::nullopt;
  return launch.world_size / model;
}

absl::Status CheckWorldSize(const LaunchEnvironment& launch,
                            const config::ParallelConfig& parallel) {
  if (launch.world_size == 1) return absl::OkStatus();
  const int64_t model = RanksOfModel(parallel);
  const int64_t ranks = model * parallel.data_parallel_size();
  if (launch.world_size == ranks) return absl::OkStatus();
  const std::string way_out =
      launch.world_size % model == 0
          ? absl::StrCat("parallel.data_parallel_size = ", launch.world_size / model, " would fit")
          : absl::StrCat("they would have to be a multiple of ", model);
  return absl::InvalidArgumentError(absl::StrCat(
      launch.world_size, " processes were started (", launch.Describe(),
      "), but 'parallel' asks for ", ranks, ranks == 1 ? " rank: " : " ranks: ", way_out,
      "; with MEGATRON_LAUNCH=single each process ignores the launcher and runs all ranks"));
}

}  // namespace megatron
