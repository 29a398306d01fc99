#include "megatron/train/topology/axis_traffic.h"

#include <algorithm>

#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/trainer/pipeline_section.h"

namespace megatron {
namespace {

constexpr double kGradientBytes = 4;

// The sizes that all axes need.
struct Step {
  double layers = 0, expert_layers = 0;  // of a stage
  double microbatches = 0, tokens = 0;   // tokens of a micro-batch on a rank
  double bytes = 4;                      // of an activation or weight
};

Step StepOf(const config::PretrainConfig& config) {
  const config::ModelConfig& model = config.model();
  const config::ParallelConfig& parallel = config.parallel();
  Step step;
  int64_t layers = 0;
  const ModelRules& rules = ModelRulesOf(model);
  for (const StackLayers& stack : rules.StacksOf(model)) layers += stack.num_layers;
  const double stages = static_cast<double>(parallel.pipeline_model_parallel_size());
  step.layers = static_cast<double>(layers) / stages;
  if (model.has_num_experts()) {
    const auto pattern = ParseLayerPattern(model.moe_layer_freq(), model.num_layers());
    step.expert_layers =
        pattern.ok()
            ? static_cast<double>(std::count(pattern->begin(), pattern->end(), true)) / stages
            : 0;
  }
  const double samples = static_cast<double>(config.train().micro_batch_size());
  step.microbatches = static_cast<double>(config.train().global_batch_size()) / samples /
                      static_cast<double>(parallel.data_parallel_size());
  step.tokens = samples * static_cast<double>(rules.LengthsOf(model).seq_length) /
                static_cast<double>(parallel.context_parallel_size());
  step.bytes = config.precision().bf16() || config.precision().fp16() ? 2 : 4;
  return step;
}

// Adds what ranks with copies of `weights` weights exchange.
void AddCopies(const config::ParallelConfig& parallel, const Step& step, AxisTraffic row,
               double weights, std::vector<AxisTraffic>* rows) {
  double reductions = 2, gathers = 0;
  if (parallel.use_distributed_optimizer()) {
    const auto sharding = parallel.data_parallel_sharding_strategy();
    const bool all = sharding == config::DataParallelSharding::optim_grads_params;
    reductions = sharding == config::DataParallelSharding::optim ? 1 : step.microbatches;
    gathers = all ? 2 * step.microbatches : 1;
  }
  row.calls = reductions;
  row.bytes = weights * kGradientBytes;
  rows->push_back(row);
  row.calls = gathers;
  row.bytes = weights * step.bytes;
  rows->push_back(row);
}

}  // namespace

std::vector<AxisTraffic> TrafficOf(const config::PretrainConfig& config,
                                   int64_t padded_vocab_size) {
  const config::ModelConfig& model = config.model();
  const config::ParallelConfig& parallel = config.parallel();
  const LayerShape layer = ToLayerShape(model);
  const Step step = StepOf(config);
  const auto tensor = static_cast<double>(parallel.tensor_model_parallel_size());
  const auto context = static_cast<double>(parallel.context_parallel_size());
  const auto stages = static_cast<double>(parallel.pipeline_model_parallel_size());
  const double passes = step.microbatches * step.layers;
  const double stream = step.tokens * static_cast<double>(layer.hidden) * step.bytes;
  std::vector<AxisTraffic> rows;

  // Two all-reduces forward and two backward; sequence parallelism gathers two inputs again.
  rows.push_back({"tp",
                  {Axis::kTensor},
                  false,
                  false,
                  passes * (parallel.sequence_parallel() ? 10 : 8),
                  stream});
  // Keys and values once forward; they and their gradients backward.
  const double keys_and_values =
      2 * static_cast<double>(model.num_query_groups() * model.kv_channels());
  rows.push_back({"cp",
                  {Axis::kContext},
                  false,
                  false,
                  passes * 3,
                  step.tokens * context * keys_and_values / tensor * step.bytes});
  const double sent_rows = step.tokens / tensor * static_cast<double>(layer.experts_per_token) *
                           static_cast<double>(parallel.expert_tensor_parallel_size());
  rows.push_back({"ep",
                  {Axis::kTensor, Axis::kExpert},
                  true,
                  false,
                  4 * step.microbatches * step.expert_layers,
                  sent_rows * static_cast<double>(layer.hidden) * step.bytes});

  const double of_experts = static_cast<double>(layer.num_experts) * (layer.is_gated ? 3 : 2) *
                            static_cast<double>(layer.hidden * layer.expert_ffn) *
                            step.expert_layers;
  const double all =
      static_cast<double>(ModelRulesOf(model).CountParameters(model, padded_vocab_size)) / stages;
  const auto expert_ranks =
      static_cast<double>(std::max<int64_t>(1, parallel.expert_model_parallel_size()) *
                          std::max<int64_t>(1, parallel.expert_tensor_parallel_size()));
  AxisTraffic copies;
  copies.name = "dp";
  copies.axes = {Axis::kData, Axis::kContext};
  AddCopies(parallel, step, copies, (all - of_experts) / tensor, &rows);
  copies.is_of_experts = true;
  AddCopies(parallel, step, copies, of_experts / expert_ranks, &rows);

  if (stages > 1) {
    const double chunks = static_cast<double>(ChunksOf(config));
    rows.push_back({"pp",
                    {Axis::kPipeline},
                    false,
                    true,
                    2 * step.microbatches * chunks,
                    stream / (parallel.sequence_parallel() ? tensor : 1)});
  }
  rows.erase(std::remove_if(rows.begin(), rows.end(),
                            [](const AxisTraffic& row) { return row.calls * row.bytes == 0; }),
             rows.end());
  return rows;
}

}  // namespace megatron
