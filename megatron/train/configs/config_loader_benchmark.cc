// Measures what it costs to parse, check and complete a configuration, and to refuse one.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

void LoadShipped(benchmark::State& state, const std::string& name,
                 const std::vector<std::string>& overrides) {
  const absl::StatusOr<FoundConfig> found = FindConfig(name);
  CHECK(found.ok()) << found.status();
  for (auto _ : state) {
    const absl::StatusOr<LoadedConfig> loaded =
        LoadConfigFromString(found->text, found->source, overrides, ConfigPurpose::kDryRun);
    benchmark::DoNotOptimize(loaded.ok());
  }
}

BENCHMARK_CAPTURE(LoadShipped, small, "gpt_demo", {});
BENCHMARK_CAPTURE(LoadShipped, large, "deepseek_v3", {});
BENCHMARK_CAPTURE(LoadShipped, unknown_fields, "gpt_demo", {"model.layers=2", "train.iters=3"});

}  // namespace
}  // namespace megatron
