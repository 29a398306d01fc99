// Models whose linear layers multiply 8-bit floats, in fp32 otherwise, so that differences are
// those of FP8 alone.

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

using Gradients = std::map<std::string, std::vector<float>>;

// Features of all matrices are multiples of 16, on two ranks, too.
std::vector<ModelOptions> Models() {
  std::vector<ModelOptions> models = {SmallGpt2(),       SmallLlama(),      SmallPostNormBert(),
                                      SmallMegatronT5(), SmallWideLatent(), SmallMtp(),
                                      SmallGpt2()};
  for (ModelOptions& model : models) {
    model.transformer.ffn_hidden_size = 64;
    model.transformer.float8.enabled = true;
  }
  models[0].transformer.hidden_dropout = models[0].transformer.attention_dropout = 0.2f;
  // Two linear layers read the output of one norm.
  models[6].transformer.parallel_residual = models[6].transformer.parallel_shared_norm = true;
  return models;
}

// Each expert has scales of its own, made of the rows that a rank has of it: so other layouts have
// other scales.
std::vector<ModelOptions> ModelsAndMixture() {
  std::vector<ModelOptions> models = Models();
  ModelOptions mixture = SmallDeepSeek();
  mixture.transformer.ffn_hidden_size = 64;
  mixture.transformer.moe.ffn_hidden_size = mixture.transformer.moe.shared_ffn_hidden_size = 32;
  mixture.transformer.float8.enabled = true;
  models.push_back(mixture);
  return models;
}

ModelOptions Without(ModelOptions options) {
  options.transformer.float8.enabled = false;
  return options;
}

Gradients Collect(ModelHarness& model) {
  Gradients gradients;
  for (Parameter* parameter : model.parameters()) {
    const float* values = parameter->grad.data<float>();
    gradients[parameter->name].assign(values, values + parameter->grad.numel());
  }
  return gradients;
}

// Returns |a - b| / |b|.
double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    distance += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(distance / norm);
}

TEST(Float8StageTest, LossAndGradientsAreNearThoseWithoutAndNotThem) {
  for (ModelOptions options : ModelsAndMixture()) {
    // These weights are as small as real ones: attention that larger weights make sharp blows up
    // errors.
    options.transformer.init_std = options.transformer.output_init_std = 0.1f;
    HostBatch batch = RandomBatch({20, 12}, options.vocab_size, 2);
    ModelHarness plain(Without(options), ProcessGroup(), 9), model(options, ProcessGroup(), 9);
    const double want = plain.LossAndGradients(&batch), loss = model.LossAndGradients(&batch);
    EXPECT_NEAR(loss, want, 0.01 * want);
    EXPECT_NE(loss, want);
    const Gradients gradients = Collect(model);
    for (const auto& [name, gradient] : Collect(plain)) {
      const double difference = Difference(gradients.at(name), gradient);
      EXPECT_GT(difference, 0) << name;
      // An element in E5M2 loses up to an eighth, and errors add up through the layers.
      // Besides, a token may choose another expert.
      EXPECT_LT(difference, absl::StrContains(name, "experts") ? 0.4 : 0.3) << name;
    }
  }
}

TEST(Float8StageTest, LayersAtTheEndsMayStayAsTheyWere) {
  ModelOptions all = Models()[1];
  HostBatch batch = RandomBatch({20, 12}, all.vocab_size, 2);
  const auto loss = [&](int64_t first, int64_t last) {
    ModelOptions options = all;
    options.transformer.float8.first_layers_without = first;
    options.transformer.float8.last_layers_without = last;
    return ModelHarness(options, ProcessGroup(), 9).Loss(&batch, /*training=*/false);
  };
  ASSERT_EQ(all.transformer.num_layers, 2);
  const double none = ModelHarness(Without(all), ProcessGroup(), 9).Loss(&batch, false);
  EXPECT_EQ(loss(1, 1), none);
  EXPECT_EQ(loss(2, 0), none);
  EXPECT_NE(loss(1, 0), none);
  EXPECT_NE(loss(0, 1), none);
  EXPECT_NE(loss(1, 0), loss(0, 1));
  EXPECT_NE(loss(0, 0), loss(1, 0));
}

TEST(Float8StageTest, RecomputationGivesTheSameBits) {
  const std::vector<std::pair<const char*, std::function<void(ModelOptions*)>>> ways = {
      {"layers",
       [](ModelOptions* o) {
         o->layer_recompute = {LayerRecompute::kUniform, 2};
       }},
      {"block",
       [](ModelOptions* o) {
         o->layer_recompute = {LayerRecompute::kBlock, 1};
       }},
      {"attention", [](ModelOptions* o) { o->transformer.recompute.core_attention = true; }},
      {"mlp", [](ModelOptions* o) { o->transformer.recompute.mlp = true; }},
      {"norm", [](ModelOptions* o) { o->transformer.recompute.norm = true; }},
      {"all parts", [](ModelOptions* o) {
         o->transformer.recompute = {true, true, true};
       }}};
  for (const ModelOptions& options : ModelsAndMixture()) {
    HostBatch batch = RandomBatch({20, 12}, options.vocab_size, 2);
    ModelHarness plain(options, ProcessGroup(), 9);
    const double loss = plain.LossAndGradients(&batch);
    const Gradients gradients = Collect(plain);
    for (const auto& [name, change] : ways) {
      SCOPED_TRACE(name);
      ModelOptions again = options;
      change(&again);
      ModelHarness model(again, ProcessGroup(), 9, /*threads=*/3);
      EXPECT_EQ(model.LossAndGradients(&batch), loss);
      EXPECT_EQ(Collect(model), gradients);
    }
  }
}

// Forward keeps a byte, and not four, of each input of QKV, fc1 and fc2, and a few scales.
TEST(Float8StageTest, ForwardKeepsCodesAndNotInputs) {
  const ModelOptions options = Models()[0];
  HostBatch batch = RandomBatch({32, 16}, options.vocab_size, 2);
  const auto kept = [&](const ModelOptions& of) {
    return MeasureStage(of, 1, batch.View()).slots[0].bytes;
  };
  const TransformerOptions& transformer = options.transformer;
  const int64_t inputs = 2 * transformer.hidden_size + transformer.ffn_hidden_size;
  const int64_t saving = 3 * 48 * inputs * transformer.num_layers;
  const int64_t scales = 12 * Buffer::kAlignment * transformer.num_layers;
  EXPECT_LE(kept(options), kept(Without(options)) - saving + scales);
  ModelOptions recomputing = options;
  recomputing.transformer.recompute = {false, true, true};
  EXPECT_LT(kept(recomputing), kept(options));
}

// Experts do so, too, each with its rows padded to a multiple of 16.
TEST(Float8StageTest, ForwardKeepsCodesAndNotInputsOfExperts) {
  ModelOptions options = ModelsAndMixture().back();
  TransformerOptions& transformer = options.transformer;
  transformer.float8.first_layers_without = 1;
  ASSERT_EQ(transformer.num_layers, 2);
  MoeOptions& moe = transformer.moe;
  moe.shared_ffn_hidden_size = 0;
  moe.shared_expert_gate = false;
  HostBatch batch = RandomBatch({32, 16}, options.vocab_size, 2);
  const auto kept = [&](const ModelOptions& of) {
    return MeasureStage(of, 1, batch.View()).slots[0].bytes;
  };
  ModelOptions inputs = options;
  inputs.transformer.float8.weight_gradient = false;
  const int64_t rows = 48 * moe.router.topk,
                features = transformer.hidden_size + moe.ffn_hidden_size;
  const int64_t saving = 3 * rows * features;
  const int64_t padding = moe.num_experts * 16 * features;
  const int64_t scales = (2 * moe.num_experts + 1) * Buffer::kAlignment;
  EXPECT_LE(kept(options), kept(inputs) - saving + padding + scales);
}

// The elements of a whole weight's gradient that a rank has, where it is cut along one dim.
std::vector<float> BlockOf(const std::vector<float>& whole, const Sharding& sharding) {
  const int64_t columns = sharding.global_shape[-1], mine = sharding.local_shape[-1];
  const int64_t rows = sharding.local_shape.numel() / mine;
  const int64_t first_row = sharding.offset[0] * (rows / sharding.local_shape[0]);
  std::vector<float> block;
  for (int64_t r = first_row; r < first_row + rows; ++r) {
    const float* const row = whole.data() + r * columns + sharding.offset[-1];
    block.insert(block.end(), row, row + mine);
  }
  return block;
}

// Whether the gradient is whole on a rank, but for the cut: under sequence parallelism that of a
// weight that every rank has is a summand.
bool IsCompared(const std::string& name, bool sequence_parallel) {
  return absl::EndsWith(name, "linear_fc2.weight") || absl::EndsWith(name, "up_proj.weight") ||
         (!sequence_parallel &&
          (absl::EndsWith(name, "down_proj.weight") || absl::EndsWith(name, "eh_proj.weight")));
}

// They differ by roundings of fp32 alone, which take an element to another code now and then.
TEST(Float8StageTest, TensorParallelRanksComputeWhatOneRankComputes) {
  for (const ModelOptions& model : Models()) {
    HostBatch batch = RandomBatch({20, 12}, model.vocab_size, 2);
    for (bool sequence_parallel : {false, true}) {
      ModelOptions options = model;
      options.transformer.sequence_parallel = sequence_parallel;
      ModelHarness one(model, ProcessGroup(), 77);
      const double loss = one.LossAndGradients(&batch);
      const Gradients whole = Collect(one);
      ASSERT_TRUE(
          RunRanks(2, [&](int, const ProcessGroup& world) {
            ModelHarness ranks(options, world, 77);
            HostBatch mine = batch;
            EXPECT_NEAR(ranks.LossAndGradients(&mine), loss, 3e-4 * loss);
            for (Parameter* parameter : ranks.parameters()) {
              if (!IsCompared(parameter->name, sequence_parallel)) continue;
              const std::vector<float> part =
                  BlockOf(whole.at(parameter->name), parameter->sharding);
              const float* values = parameter->grad.data<float>();
              EXPECT_LT(Difference({values, values + part.size()}, part), 0.01) << parameter->name;
            }
            return world.status();
          }).ok());
    }
  }
}

}  // namespace
}  // namespace megatron
