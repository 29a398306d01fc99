#include "megatron/train/trainer/pipeline_section.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "megatron/pipeline/pipeline_layout.h"
#include "megatron/plan/model_costs.h"
#include "megatron/train/recipes/model_rules_of.h"

namespace megatron {

int64_t LayersToShare(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  return TotalLayers(config.model()) + parallel.account_for_embedding_in_pipeline_split() +
         parallel.account_for_loss_in_pipeline_split();
}

int64_t ChunksOf(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  const int64_t stages = parallel.pipeline_model_parallel_size();
  if (parallel.has_pipeline_model_parallel_layout()) {
    const auto layout = ParsePipelineLayout(parallel.pipeline_model_parallel_layout());
    return layout.ok() ? static_cast<int64_t>(layout->layers.size()) / stages : 1;
  }
  if (parallel.pipeline_schedule() == "zb_v") return stages > 1 ? 2 : 1;
  if (parallel.has_num_virtual_stages_per_pipeline_rank())
    return parallel.num_virtual_stages_per_pipeline_rank();
  if (parallel.has_num_layers_per_virtual_pipeline_stage()) {
    return std::max<int64_t>(
        1, LayersToShare(config) / (stages * parallel.num_layers_per_virtual_pipeline_stage()));
  }
  return 1;
}

ScheduleKind ToScheduleKind(const config::ParallelConfig& config) {
  const std::string& name = config.pipeline_schedule();
  if (name == "gpipe") return ScheduleKind::kGPipe;
  if (name == "zb_h1") return ScheduleKind::kZeroBubbleH1;
  return name == "zb_v" ? ScheduleKind::kZeroBubbleV : ScheduleKind::kOneForwardOneBackward;
}

StagePlacement ToPlacement(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  StagePlacement placement;
  placement.stages = static_cast<int>(parallel.pipeline_model_parallel_size());
  placement.chunks = static_cast<int>(ChunksOf(config));
  placement.order = OrderOf(ToScheduleKind(parallel));
  const int64_t parts = int64_t{placement.stages} * placement.chunks;
  if (parallel.has_pipeline_model_parallel_layout()) {
    const PipelineLayout layout =
        ParsePipelineLayout(parallel.pipeline_model_parallel_layout()).value();
    placement.layers = layout.layers;
    placement.mtp_before_last = layout.mtp_before_last;
    return placement;
  }
  if (parallel.has_pipeline_model_parallel_split_rank()) {
    const int64_t split = parallel.pipeline_model_parallel_split_rank();
    const std::vector<StackLayers> stacks = ModelRulesOf(config.model()).StacksOf(config.model());
    placement.layers.assign(split, stacks[0].num_layers / split);
    placement.layers.resize(parts, stacks[1].num_layers / (parts - split));
    return placement;
  }
  const bool first = parallel.has_decoder_first_pipeline_num_layers(),
             last = parallel.has_decoder_last_pipeline_num_layers();
  if (!first && !last) {
    if (LayersToShare(config) == TotalLayers(config.model())) return placement;  // even
    placement.layers.assign(parts, LayersToShare(config) / parts);
    placement.layers.front() -= parallel.account_for_embedding_in_pipeline_split();
    placement.layers.back() -= parallel.account_for_loss_in_pipeline_split();
    return placement;
  }
  const int64_t ends = (first ? parallel.decoder_first_pipeline_num_layers() : 0) +
                       (last ? parallel.decoder_last_pipeline_num_layers() : 0);
  const int64_t others = parts - first - last;
  placement.layers.assign(parts, others == 0 ? 0 : (config.model().num_layers() - ends) / others);
  if (first) placement.layers.front() = parallel.decoder_first_pipeline_num_layers();
  if (last) placement.layers.back() = parallel.decoder_last_pipeline_num_layers();
  return placement;
}

namespace {

// A part that only embeds or measures takes some time too: that of a layer divided by this number.
constexpr double kEmptyPartsOfALayer = 2;

// The arithmetic that is done again, in pairs of a multiplication and an addition.
double Recomputed(const config::RecomputeConfig& recompute, const MatrixProducts& layer) {
  double again = recompute.has_mlp_chunk_tokens() ? MlpInputMultiplyAdds(layer) : 0;
  if (recompute.recompute_granularity() == config::RecomputeGranularity::full)
    return again + MultiplyAdds(layer);
  if (recompute.recompute_granularity() != config::RecomputeGranularity::selective) return again;
  // The whole of a mixture of experts goes before its parts.
  const double mixture =
      absl::c_linear_search(recompute.recompute_modules(), config::RecomputeModule::moe)
          ? MixtureMultiplyAdds(layer)
          : 0;
  for (int module : recompute.recompute_modules()) {
    if (module == config::RecomputeModule::core_attn) again += ActivationMultiplyAdds(layer);
    if (module == config::RecomputeModule::mlp && mixture == 0)
      again += MlpInputMultiplyAdds(layer);
    if (module == config::RecomputeModule::mla_up_proj) again += FromLatentMultiplyAdds(layer);
  }
  return again + mixture;
}

// The arithmetic of weight gradients that are not deferred: those of attention and MLPs in chunks.
double NotDeferred(const config::PretrainConfig& config, const MatrixProducts& layer) {
  const config::RecomputeConfig& recompute = config.recompute();
  const double attention =
      recompute.has_attention_chunk_tokens() ? AttentionWeightMultiplyAdds(layer) : 0;
  if (!recompute.has_mlp_chunk_tokens()) return attention;
  const bool gated = config.model().swiglu() || config.model().gated_linear_unit();
  // The first matrix and the second have these.
  return attention + MlpInputMultiplyAdds(layer) * (gated ? 1.5 : 2);
}

// A product of activations has two gradients, both of which belong to the inputs' part, as does
// what is recomputed.
ActionCosts CostsOf(const config::PretrainConfig& config, const MatrixProducts& layer) {
  const double weights = WeightMultiplyAdds(layer), attention = ActivationMultiplyAdds(layer);
  const double at_once = NotDeferred(config, layer);
  return {weights + attention,
          weights + 2 * attention + Recomputed(config.recompute(), layer) + at_once,
          weights - at_once};
}

ActionCosts Divided(const ActionCosts& costs, double divisor) {
  return {costs.forward / divisor, costs.backward_input / divisor, costs.backward_weight / divisor};
}

ActionCosts Sum(const ActionCosts& a, const ActionCosts& b) {
  return {a.forward + b.forward, a.backward_input + b.backward_input,
          a.backward_weight + b.backward_weight};
}

// Scales the costs of all parts so that their means are those that the configuration has, in
// forward passes.
void SetMeans(const config::ParallelConfig& parallel, std::vector<ActionCosts>* costs) {
  if (parallel.pipeline_pass_costs_size() != 3) return;
  const ActionCosts mean = PartCosts(*costs).Mean();
  const double forward = parallel.pipeline_pass_costs(0);
  for (ActionCosts& part : *costs) {
    if (mean.backward_input > 0)
      part.backward_input *= parallel.pipeline_pass_costs(1) / forward / mean.backward_input;
    if (mean.backward_weight > 0)
      part.backward_weight *= parallel.pipeline_pass_costs(2) / forward / mean.backward_weight;
  }
}

}  // namespace

PartCosts ToActionCosts(const config::PretrainConfig& config) {
  const std::vector<MatrixProducts> layers =
      ModelRulesOf(config.model()).ProductsOfLayers(config.model(), FlopsConvention::kCausalHalved);
  const StagePlacement placement = ToPlacement(config);
  std::vector<int64_t> counts = placement.layers;
  if (counts.empty()) {
    const int64_t parts = int64_t{placement.stages} * placement.chunks;
    counts.assign(parts, static_cast<int64_t>(layers.size()) / parts);
  }
  std::vector<ActionCosts> costs;
  auto layer = layers.begin();
  for (const int64_t count : counts) {
    ActionCosts part = {0, 0, 0};
    if (count == 0) part = Divided(CostsOf(config, layers.front()), kEmptyPartsOfALayer);
    for (int64_t i = 0; i < count; ++i) part = Sum(part, CostsOf(config, *layer++));
    costs.push_back(part);
  }
  // Each layer of multi-token prediction is like the last. In the last part they count as nothing,
  // as the heads do.
  if (placement.mtp_before_last) {
    ActionCosts& part = costs[placement.mtp_part()];
    if (counts[placement.mtp_part()] == 0) part = {0, 0, 0};
    for (int64_t depth = 0; depth < config.model().mtp_num_layers(); ++depth)
      part = Sum(part, CostsOf(config, layers.back()));
  }
  const double unit = PartCosts(costs).Mean().forward;
  for (ActionCosts& part : costs) part = Divided(part, unit);
  SetMeans(config.parallel(), &costs);
  return PartCosts(std::move(costs));
}

}  // namespace megatron
