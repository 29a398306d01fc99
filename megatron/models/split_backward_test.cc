// A backward in two parts gives what a whole one gives, bit for bit, whatever happens in between.

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

constexpr char kTable[] = "embedding.word_embeddings.weight";

using Gradients = std::map<std::string, std::vector<float>>;

std::vector<ModelOptions> Models() {
  std::vector<ModelOptions> models = {
      SmallGpt2(),   SmallLlama(),         SmallGpt2(),       SmallMixtral(),    SmallDeepSeek(),
      SmallBert(),   SmallPostNormBert(),  SmallMegatronT5(), SmallT5(),         SmallBalanced(),
      SmallLatent(), SmallLatentMixture(), SmallMtp(),        SmallMtpMixture(), SmallHybrid()};
  for (ModelOptions float8 : {SmallGpt2(), SmallWideLatent(), SmallMixtral()}) {
    float8.transformer.ffn_hidden_size = 64;
    float8.transformer.moe.ffn_hidden_size = 32;
    float8.transformer.float8.enabled = true;
    models.push_back(float8);
  }
  models[0].transformer.hidden_dropout = models[0].transformer.attention_dropout = 0.2f;
  models[1].transformer.qk_norm = true;
  models[1].logits_chunk = 16;
  models[2].transformer.linear_bias = false;  // then a branch's gradient is its sum's
  models.push_back(SmallLlama());
  models.back().transformer.output_gate = true;
  models.back().transformer.residual_multiplier = 0.6f;
  return models;
}

std::vector<ModelOptions> WithRecomputation(const ModelOptions& options) {
  std::vector<ModelOptions> ways(6, options);
  ways[1].transformer.recompute = {true, true, true, true};
  ways[2].transformer.recompute.norm = true;
  ways[3].layer_recompute = {LayerRecompute::kUniform, 2};
  ways[4].layer_recompute = {LayerRecompute::kBlock, 1};
  ways[4].transformer.recompute = {true, true, true, true};
  if (options.transformer.float8.enabled) return {ways.begin(), ways.end() - 1};
  ways[5].transformer.recompute.mlp_chunk_tokens = 16;
  // Attention in chunks is for decoders without gates alone.
  const bool has_chunks = options.kind == ModelKind::kGpt && !options.transformer.output_gate;
  if (has_chunks) ways[5].transformer.recompute.attention_chunk_tokens = 12;
  return ways;
}

// Two micro-batches, the second forwarded before the first is backwarded.
class TwoMicroBatches {
 public:
  TwoMicroBatches(const ModelOptions& options, const ProcessGroup& tensor_group)
      : options_(options), group_(tensor_group), model_(options, tensor_group, 9) {
    for (uint32_t seed : {2, 3}) host_.push_back(RandomBatch({20, 12}, options.vocab_size, seed));
    for (HostBatch& batch : host_) batches_.push_back(batch.View());
  }

  Gradients Run(bool split) {
    StageMemorySizes sizes = MeasureStage(options_, group_.size(), batches_[0], split);
    sizes.slots[0].count = 2;
    sizes.deferred[0].count = split ? 2 : 0;
    StageMemory memory({}, sizes, nullptr);
    ModelStage& stage = model_.stage();
    stage.StartStep({&memory, nullptr, &batches_, StageMode::kTrain});
    model_.ZeroGradients();
    for (int i : {0, 1}) stage.Forward(Item(i, split), {}, {}, model_.stream());
    for (int i : {0, 1}) {
      stage.Backward(Item(i, split), {}, {}, model_.stream());
      Spoil(&memory.scratch);
      Spoil(&memory.recompute);
    }
    for (int i : {0, 1}) {
      if (split) stage.BackwardWeight(Item(i, split), model_.stream());
      Spoil(&memory.scratch);
    }
    return Collect();
  }

 private:
  static WorkItem Item(int i, bool split) { return {i, 0, i, split ? i : -1}; }

  static void Spoil(Arena* arena) {
    Arena::Scope scope(arena);
    const Tensor all = arena->Allocate(DType::kUInt8, {arena->high_water()}, "spoiled");
    if (all.bytes() > 0) std::memset(all.raw(), 0xff, all.bytes());
  }

  Gradients Collect() {
    Gradients gradients;
    for (Parameter* parameter : model_.parameters()) {
      const float* values = parameter->grad.data<float>();
      gradients[parameter->name].assign(values, values + parameter->grad.numel());
    }
    return gradients;
  }

  ModelOptions options_;
  ProcessGroup group_;
  ModelHarness model_;
  std::vector<HostBatch> host_;
  std::vector<MicroBatch> batches_;
};

// The matrix to which several parts of a model add: head and embedding in turn to a tied table,
// head and multi-token prediction to the output matrix. The order is another when the head's is
// deferred.
std::string SharedMatrix(const ModelOptions& options) {
  if (options.tied_embeddings) return kTable;
  return options.mtp_num_layers > 0 ? "output_layer.weight" : "";
}

void ExpectSame(Gradients got, Gradients want, const ModelOptions& options) {
  const std::string shared = SharedMatrix(options);
  if (!shared.empty()) {
    const std::vector<float>& sum = got.at(shared);
    const std::vector<float>& whole = want.at(shared);
    for (size_t i = 0; i < whole.size(); ++i)
      ASSERT_NEAR(sum[i], whole[i], 1e-6 * (std::abs(whole[i]) + 0.1)) << shared << " " << i;
    got.erase(shared);
    want.erase(shared);
  }
  for (const auto& [name, gradient] : want) EXPECT_EQ(got.at(name), gradient) << name;
}

TEST(SplitBackwardTest, BothPartsTogetherGiveTheGradientsOfAWholeBackward) {
  for (size_t i = 0; i < Models().size(); ++i) {
    const std::vector<ModelOptions> ways = WithRecomputation(Models()[i]);
    for (size_t way = 0; way < ways.size(); ++way) {
      SCOPED_TRACE(testing::Message() << "model " << i << ", recomputation " << way);
      TwoMicroBatches run(ways[way], ProcessGroup());
      const Gradients whole = run.Run(/*split=*/false);
      ExpectSame(run.Run(/*split=*/true), whole, ways[way]);
    }
  }
}

// The layouts include more ranks than query groups, and gathers in each part.
TEST(SplitBackwardTest, TensorParallelRanksMaySplitToo) {
  for (ModelOptions model : Models()) {
    // Cross-attention and latent attention know no groups, and FP8 and gates no shared ones.
    if (model.kind != ModelKind::kT5 && !model.transformer.float8.enabled &&
        !model.transformer.is_latent() && !model.transformer.output_gate)
      model.transformer.num_query_groups = 1;
    for (bool sequence_parallel : {false, true}) {
      model.transformer.sequence_parallel = sequence_parallel;
      for (const ModelOptions& options : WithRecomputation(model)) {
        ASSERT_TRUE(RunRanks(2, [&](int, const ProcessGroup& world) {
                      TwoMicroBatches run(options, world);
                      const Gradients whole = run.Run(/*split=*/false);
                      ExpectSame(run.Run(/*split=*/true), whole, options);
                      return world.status();
                    }).ok());
      }
    }
  }
}

// Deferred gradients cost memory, of which a whole backward takes none.
TEST(SplitBackwardTest, OnlyASplitBackwardKeepsGradients) {
  HostBatch batch = RandomBatch({64}, 50, 2);
  const ModelOptions options = SmallGpt2();
  const StageMemorySizes whole = MeasureStage(options, 1, batch.View());
  const StageMemorySizes split = MeasureStage(options, 1, batch.View(), /*split=*/true);
  EXPECT_EQ(whole.put_off(), 0);
  EXPECT_EQ(split.saved(), whole.saved());
  EXPECT_LT(split.scratch, whole.scratch);
  // Each layer keeps the gradients of qkv, of fc1's output, and of the outputs of proj and fc2.
  const TransformerOptions& layer = options.transformer;
  const int64_t floats = 3 * layer.hidden_size + layer.ffn_hidden_size + 2 * layer.hidden_size;
  EXPECT_EQ(split.put_off(), layer.num_layers * 64 * floats * 4);
}

}  // namespace
}  // namespace megatron
