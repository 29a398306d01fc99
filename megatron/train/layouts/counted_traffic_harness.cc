#include "megatron/train/layouts/counted_traffic_harness.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"

namespace megatron::counted_traffic {
namespace {

PlanContext ToPlan(ContextParallel form) {
  switch (form) {
    case ContextParallel::kRing:
      return PlanContext::kRing;
    case ContextParallel::kAllToAll:
      return PlanContext::kAllToAll;
    case ContextParallel::kGather:
      return PlanContext::kGather;
    case ContextParallel::kHierarchical:
      return PlanContext::kTeams;
  }
  return PlanContext::kRing;
}

PlanCompression ToPlan(const GradientCompressionOptions& options) {
  PlanCompression compression;
  switch (options.type) {
    case CompressionType::kInt8:
      compression.form = PlanCompression::kCodes;
      break;
    case CompressionType::kTopK:
      compression.form = PlanCompression::kLargest;
      compression.density = options.density;
      break;
    case CompressionType::kThreshold:
      compression.form = PlanCompression::kLargest;
      compression.density = options.max_density;
      break;
    case CompressionType::kPowerSgd:
      compression.form = PlanCompression::kLowRank;
      compression.rank = options.rank;
      compression.least_gain = options.min_compression_rate;
      break;
    default:
      break;
  }
  return compression;
}

std::string GroupOf(const TrafficRow& row) {
  switch (row.axis) {
    case TrafficAxis::kTensor:
      return "tp";
    case TrafficAxis::kContext:
      return "cp";
    case TrafficAxis::kExpert:
      return "etp-ep";
    case TrafficAxis::kPipeline:
      return "pp";
    case TrafficAxis::kData:
      return row.is_of_experts ? "edp" : "dp-cp";
  }
  return "";
}

}  // namespace

TrainerOptions LlamaRun() {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  TransformerOptions& transformer = run.model.transformer;
  transformer.hidden_dropout = transformer.attention_dropout = 0;
  transformer.num_layers = kLayers;
  transformer.hidden_size = kHidden;
  transformer.ffn_hidden_size = kFfn;
  transformer.num_attention_heads = kHeads;
  transformer.num_query_groups = kGroups;
  transformer.kv_channels = kChannels;
  return run;
}

PlanModel LlamaModel() {
  PlanModel model;
  model.set_layers(kLayers);
  model.set_hidden(kHidden);
  model.set_ffn(kFfn);
  model.set_heads(kHeads);
  model.set_kv_heads(kGroups);
  model.set_head_dim(kChannels);
  model.set_vocab(kVocab);
  model.set_is_gated(true);
  return model;
}

PlanLayout ToPlan(const Layout& layout) {
  PlanLayout plan;
  plan.tp = layout.tensor;
  plan.cp = layout.context;
  plan.context = ToPlan(layout.context_parallel);
  plan.cp_team = layout.context_team_size;
  plan.pp = layout.pipeline;
  plan.vpp = layout.chunks;
  plan.dp = layout.data;
  plan.ep = layout.expert;
  plan.etp = layout.expert_tensor;
  plan.micro_batch = layout.micro_batch_size;
  plan.micro_batches = kBatch / layout.data / layout.micro_batch_size;
  plan.sequence = CountingSource::kLength;
  plan.precision = PlanPrecision::k32Bits;
  plan.is_sequence_parallel = layout.sequence_parallel;
  plan.shards_parameters = layout.sharding == DataSharding::kWeights;
  plan.shards_gradients = layout.sharding == DataSharding::kGradients;
  plan.ranks_per_host = layout.ranks_per_host;
  plan.deduplicates_dispatch = layout.deduplicated_dispatch;
  plan.hosts = layout.hosts;
  plan.instances = layout.optimizer_instances;
  plan.shards_states_over_instances = layout.shards_states_over_instances;
  return plan;
}

TrafficStage FirstStage(const Layout& layout, int mixtures) {
  const int layers = kLayers / layout.pipeline;
  TrafficStage stage;
  stage.layers = {layers - mixtures, mixtures};
  stage.has_head = layout.pipeline == 1;
  stage.messages = (2.0 * layout.chunks - 1) * kBatch / layout.data;
  return stage;
}

double CountedBytes(const BytesSent& sent, const std::string& group) {
  double bytes = 0;
  for (const Collective call :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kAllToAll, Collective::kAllToAllV, Collective::kExchange}) {
    bytes += static_cast<double>(sent.Of(group, call));
  }
  return bytes;
}

Sent SentBy(const TrainerOptions& run, const PlanModel& model, const Layout& layout,
            const TrafficStage& stage, const SampleSource& source, int64_t length) {
  LayoutRun how;
  how.layout = layout;
  how.steps = std::max<int>(1, static_cast<int>(run.outer.sync_every));
  const LayoutOutcome outcome = TrainOnLayout(run, how, source);
  Implementation program;
  program.set_shards_optimizer(layout.sharding != DataSharding::kNone);
  PlanLayout plan = ToPlan(layout);
  plan.sequence = length;
  plan.quantizes_weights = run.data_parallel.quantized_weights;
  plan.quantizes_gradients = run.data_parallel.quantized_gradients;
  plan.attention_chunk = run.model.transformer.recompute.attention_chunk_tokens;
  plan.sync_every = run.outer.sync_every;
  if (run.optimizer.kind == OptimizerOptions::kMuon) {
    plan.muon_steps = run.optimizer.muon.num_ns_steps;
    plan.muon_mode = static_cast<PlanMuonMode>(run.optimizer.muon.tensor_mode);
    plan.muon_in_16_bits = run.optimizer.muon.product_dtype == DType::kBFloat16;
  }
  plan.is_lamb = run.optimizer.kind == OptimizerOptions::kLamb;
  plan.clips_scores = run.qk_clip.enabled;
  if (run.data_parallel.gradient_dtype != DType::kFloat32) program.set_gradient_bytes(2);
  plan.compression = ToPlan(run.data_parallel.compression);
  if (run.outer.gradient_type == OuterGradientType::kInt8) plan.outer_code_bytes = 1 + 4.0 / 256;
  if (run.outer.gradient_type == OuterGradientType::kE3M0) plan.outer_code_bytes = 0.5 + 1.0 / 128;
  Sent sent;
  sent.all = outcome.sent;
  sent.rows = StepTraffic(program, model, plan, stage);
  for (const TrafficRow& row : sent.rows) sent.planned[GroupOf(row)] += how.steps * SentBytes(row);
  for (const char* group : {"tp", "cp", "pp", "dp-cp", "edp", "etp-ep"}) {
    sent.counted[group] = CountedBytes(*outcome.sent, group);
    for (const Collective call :
         {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
          Collective::kAllToAll, Collective::kAllToAllV, Collective::kExchange}) {
      sent.calls[group] += outcome.sent->CallsOf(group, call);
    }
  }
  return sent;
}

Sent SentOn(const TrainerOptions& run, const PlanModel& model, const Layout& layout, int mixtures) {
  return SentBy(run, model, layout, FirstStage(layout, mixtures), CountingSource(),
                CountingSource::kLength);
}

void ExpectWithinOnePercent(const Sent& sent) {
  EXPECT_FALSE(sent.planned.empty());
  for (const auto& [group, counted] : sent.counted) {
    const auto planned = sent.planned.find(group);
    const double bytes = planned == sent.planned.end() ? 0 : planned->second;
    // Single numbers are left out.
    EXPECT_NEAR(bytes, counted, 0.01 * counted + 256) << group;
  }
}

}  // namespace megatron::counted_traffic
