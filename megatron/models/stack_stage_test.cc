#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

using Gradients = std::map<std::string, std::vector<float>>;

struct NamedModel {
  const char* name;
  ModelOptions options;
};

ModelOptions With(ModelOptions options, const std::function<void(ModelOptions*)>& change) {
  change(&options);
  return options;
}

// Every option that changes arithmetic, in at least one model.
std::vector<NamedModel> Models() {
  return {
      {"gpt2", SmallGpt2()},
      {"llama", SmallLlama()},
      // All experts are chosen: another choice would be a jump of the loss.
      {"mixtral", With(SmallMixtral(),
                       [](ModelOptions* o) {
                         o->transformer.moe.router.topk = 4;
                         o->transformer.moe.capacity_factor.reset();
                       })},
      {"deepseek",
       With(SmallDeepSeek(), [](ModelOptions* o) { o->transformer.moe.router.topk = 8; })},
      {"sinkhorn, jitter, post-norm", With(SmallBalanced(),
                                           [](ModelOptions* o) {
                                             o->transformer.moe.router.topk = 4;
                                             o->transformer.moe.capacity_factor.reset();
                                             o->transformer.moe.pad_to_capacity = false;
                                             // Differences would see both sides of a limit.
                                             o->transformer.gate_limit = 7;
                                           })},
      {"exact GELU, no biases but on QKV, scaled norm",
       With(SmallGpt2(),
            [](ModelOptions* o) {
              o->transformer.activation = ops::Activation::kGeluErf;
              o->transformer.linear_bias = false;
              o->transformer.norm.zero_centered_gamma = true;
            })},
      {"QK norm, one query group, interleaved and partial rotation",
       With(SmallLlama(),
            [](ModelOptions* o) {
              o->transformer.qk_norm = true;
              o->transformer.num_query_groups = 1;
              o->transformer.rotary_options.interleaved = true;
              o->transformer.rotary_options.percent = 0.5;
            })},
      {"dropout everywhere, LayerNorm on QK", With(SmallGpt2(),
                                                   [](ModelOptions* o) {
                                                     o->transformer.hidden_dropout = 0.2f;
                                                     o->transformer.attention_dropout = 0.3f;
                                                     o->transformer.qk_norm = true;
                                                   })},
      {"wide heads, scaled rotary, gated with biases, tied",
       With(SmallLlama(),
            [](ModelOptions* o) {
              o->transformer.kv_channels = 12;
              o->transformer.rotary_options.scaling_factor = 8;
              o->transformer.rotary_options.interpolation_factor = 2;
              o->transformer.linear_bias = true;
              o->tied_embeddings = true;
            })},
      {"windows, sinks, YaRN, layers without rotation", SmallWindowed()},
      {"norms on both sides, scaled embedding and scores, GELU gate",
       With(SmallLlama(),
            [](ModelOptions* o) {
              o->transformer.sandwich_norm = o->transformer.qk_norm = true;
              o->transformer.norm.zero_centered_gamma = true;
              o->transformer.gate = ops::Activation::kGeluTanh;
              o->transformer.softmax_scale = 0.25f;
              o->transformer.hidden_dropout = 0.2f;
              o->embedding_scale = 1.5f;
              o->tied_embeddings = true;
            })},
      {"norms of all heads and behind branches alone, capped scores and logits, LongRoPE",
       With(SmallLlama(),
            [](ModelOptions* o) {
              o->transformer.qk_norm = o->transformer.qk_norm_all_heads = true;
              o->transformer.reordered_norm = true;
              o->transformer.score_softcap = 1;
              o->logit_softcap = 1.5f;
              LongRopeOptions& longrope = o->transformer.rotary_options.longrope;
              longrope.long_factors.assign(static_cast<size_t>(o->transformer.kv_channels / 2), 3);
              longrope.is_long = true;
              longrope.magnitude = 1.2;
            })},
      {"gates of attention's output, multiplied branches, scaled logits, dropout",
       With(SmallLlama(),
            [](ModelOptions* o) {
              o->transformer.qk_norm = o->transformer.output_gate = true;
              o->transformer.norm.zero_centered_gamma = true;
              o->transformer.rotary_options.percent = 0.5;
              o->transformer.residual_multiplier = 0.6f;
              o->transformer.hidden_dropout = 0.2f;
              o->output_scale = 0.5f;
            })},
      {"parallel branches with a norm each, dropout", With(SmallGpt2(),
                                                           [](ModelOptions* o) {
                                                             o->transformer.parallel_residual =
                                                                 true;
                                                             o->transformer.hidden_dropout = 0.2f;
                                                           })},
      {"parallel branches that share a norm, multiplied",
       With(SmallLlama(),
            [](ModelOptions* o) {
              o->transformer.parallel_residual = o->transformer.parallel_shared_norm = true;
              o->transformer.residual_multiplier = 0.6f;
            })},
      {"parallel branches that share a norm, biases of MLPs and of no norm, gains of each head, "
       "dropout",
       With(SmallGpt2(),
            [](ModelOptions* o) {
              TransformerOptions& transformer = o->transformer;
              transformer.parallel_residual = transformer.parallel_shared_norm = true;
              transformer.linear_bias = transformer.qkv_bias = transformer.norm.bias = false;
              transformer.mlp_bias = true;
              transformer.qk_norm = transformer.qk_norm_each_head = true;
              transformer.hidden_dropout = 0.2f;
            })},
      {"sinks with score zero", With(SmallGpt2(),
                                     [](ModelOptions* o) {
                                       o->transformer.sink = AttentionSink::kZero;
                                       o->transformer.hidden_dropout = 0.2f;
                                       o->transformer.attention_dropout = 0.3f;
                                     })},
      {"latent attention", SmallLatent()},
      {"latent attention without a vector for queries, dropout everywhere",
       With(SmallLatentMixture(),
            [](ModelOptions* o) {
              o->transformer.moe.router.topk = 8;
              o->transformer.hidden_dropout = 0.2f;
              o->transformer.attention_dropout = 0.3f;
            })},
      {"values wider than keys", With(SmallLlama(),
                                      [](ModelOptions* o) {
                                        o->transformer.value_channels = 12;
                                        o->transformer.linear_bias = true;
                                        o->transformer.qkv_bias = true;
                                      })},
      {"multi-token prediction", SmallMtp()},
      {"scaled embedding and logits, dropout", With(SmallGpt2(),
                                                    [](ModelOptions* o) {
                                                      o->embedding_output_scale = 1.5f;
                                                      o->output_scale = 0.5f;
                                                      o->transformer.hidden_dropout = 0.2f;
                                                    })},
      {"multi-token prediction, scaled embedding and logits", With(SmallMtp(),
                                                                   [](ModelOptions* o) {
                                                                     o->embedding_scale = 1.25f;
                                                                     o->embedding_output_scale =
                                                                         1.5f;
                                                                     o->output_scale = 0.5f;
                                                                   })},
      {"multi-token prediction of experts, dropout everywhere",
       With(SmallMtpMixture(),
            [](ModelOptions* o) {
              o->transformer.moe.router.topk = 8;
              o->transformer.hidden_dropout = 0.2f;
              o->transformer.attention_dropout = 0.3f;
            })},
      {"hybrid", SmallHybrid()},
      {"hybrid with experts, latent attention and biases, dropout everywhere",
       With(SmallLatentMixture(),
            [](ModelOptions* o) {
              TransformerOptions& transformer = o->transformer;
              const TransformerOptions hybrid = SmallHybrid().transformer;
              transformer.num_layers = 5;
              transformer.norm.epsilon = hybrid.norm.epsilon;
              transformer.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kMlp,
                                           HybridLayer::kAttention, HybridLayer::kMlp,
                                           HybridLayer::kDelta};
              transformer.mamba = hybrid.mamba;
              transformer.delta = hybrid.delta;
              transformer.moe.layers = {false, true, false, false, false};
              transformer.moe.router.topk = 8;
              transformer.linear_bias = true;
              transformer.moe.shared_ffn_hidden_size = 0;
              transformer.moe.shared_expert_gate = false;
              transformer.hidden_dropout = 0.2f;
              transformer.attention_dropout = 0.3f;
            })},
      {"bert", SmallBert()},
      {"bert, GELU by tanh in its head",
       With(SmallBert(),
            [](ModelOptions* o) { o->masked_lm_activation = ops::Activation::kGeluTanh; })},
      {"post-norm bert", SmallPostNormBert()},
      {"post-norm bert without a sentence-order head, dropout everywhere",
       With(SmallPostNormBert(),
            [](ModelOptions* o) {
              o->transformer.hidden_dropout = 0.2f;
              o->transformer.attention_dropout = 0.3f;
              o->sentence_order_head = false;
            })},
      {"t5 as Megatron's, dropout everywhere", With(SmallMegatronT5(),
                                                    [](ModelOptions* o) {
                                                      o->transformer.hidden_dropout = 0.2f;
                                                      o->transformer.attention_dropout = 0.3f;
                                                    })},
      // A difference may not see both sides of a kink.
      {"t5 with GELU",
       With(SmallT5(),
            [](ModelOptions* o) { o->transformer.activation = ops::Activation::kGeluTanh; })},
      {"t5 1.1", With(SmallT5(),
                      [](ModelOptions* o) {
                        o->transformer.gated = true;
                        o->transformer.gate = ops::Activation::kGeluTanh;
                        o->tied_embeddings = false;
                        o->output_scale = 1;
                      })},
  };
}

Gradients Collect(ModelHarness& model) {
  Gradients gradients;
  for (Parameter* parameter : model.parameters()) {
    const float* values = parameter->grad.data<float>();
    gradients[parameter->name].assign(values, values + parameter->grad.numel());
  }
  return gradients;
}

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (double v : values) sum += v * v;
  return std::sqrt(sum);
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum);
}

// Along a random direction of each parameter, the loss changes as its gradient says.
TEST(StackStageTest, GradientsAreFiniteDifferencesOfTheLoss) {
  for (const NamedModel& named : Models()) {
    SCOPED_TRACE(named.name);
    ModelHarness model(named.options, ProcessGroup(), 1234);
    HostBatch batch = RandomBatch({11, 7}, named.options.vocab_size, 5);
    model.LossAndGradients(&batch);
    const Gradients gradients = Collect(model);
    std::mt19937 random(7);
    for (Parameter* parameter : model.parameters()) {
      SCOPED_TRACE(parameter->name);
      float* weights = parameter->data.data<float>();
      const std::vector<float> original(weights, weights + parameter->data.numel());
      const std::vector<float>& gradient = gradients.at(parameter->name);
      // The gradient's own direction, roughened: the change of the loss is then far above its
      // rounding.
      std::vector<double> direction(original.size());
      double length = 0, expected = 0;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] = gradient[i] + 0.3 * Norm(gradient) / std::sqrt(double(direction.size())) *
                                         (static_cast<double>(random() % 2001) / 1000 - 1);
        length += direction[i] * direction[i];
      }
      ASSERT_GT(length, 0);
      auto loss_at = [&](double step) {
        for (size_t i = 0; i < direction.size(); ++i)
          weights[i] = static_cast<float>(original[i] + step * direction[i] / std::sqrt(length));
        return model.Loss(&batch, /*training=*/true);
      };
      for (size_t i = 0; i < direction.size(); ++i)
        expected += gradient[i] * direction[i] / std::sqrt(length);
      // The smaller the gradient, the longer the step: rounding changes the loss by about 1e-6.
      const double step = std::clamp(2e-4 / std::abs(expected), 4e-3, 3e-2);
      // Richardson's extrapolation: the error of the difference is of fourth order.
      const double coarse = (loss_at(2 * step) - loss_at(-2 * step)) / (4 * step);
      const double fine = (loss_at(step) - loss_at(-step)) / (2 * step);
      EXPECT_NEAR((4 * fine - coarse) / 3, expected, 4e-3 * std::max(std::abs(expected), 0.02));
      std::copy(original.begin(), original.end(), weights);
    }
  }
}

TEST(StackStageTest, PackedSequencesDoNotSeeEachOther) {
  for (const NamedModel& named : Models()) {
    SCOPED_TRACE(named.name);
    // The means of its losses are of what is predicted further on.
    if (named.options.mtp_num_layers > 0) continue;
    ModelHarness model(named.options, ProcessGroup(), 1);
    HostBatch both = RandomBatch({9, 14}, named.options.vocab_size, 3, /*first_sample=*/40);
    double tokens = 0, lm_loss = 0, order_loss = 0;
    for (int s = 0; s < 2; ++s) {
      HostBatch alone;
      const int begin = both.cu_seqlens[s], end = both.cu_seqlens[s + 1];
      auto cut = [&](const auto& from, auto* to) {
        to->assign(from.begin() + begin, from.begin() + end);
      };
      cut(both.tokens, &alone.tokens), cut(both.labels, &alone.labels),
          cut(both.positions, &alone.positions), cut(both.types, &alone.types);
      cut(both.sample_positions, &alone.sample_positions), cut(both.samples, &alone.samples);
      cut(both.loss_weights, &alone.loss_weights),
          cut(both.gradient_weights, &alone.gradient_weights);
      alone.cu_seqlens = {0, end - begin};
      const int encoder_begin = both.encoder_cu_seqlens[s],
                encoder_end = both.encoder_cu_seqlens[s + 1];
      auto cut_encoder = [&](const auto& from, auto* to) {
        to->assign(from.begin() + encoder_begin, from.begin() + encoder_end);
      };
      cut_encoder(both.encoder_tokens, &alone.encoder_tokens);
      cut_encoder(both.encoder_positions, &alone.encoder_positions);
      cut_encoder(both.encoder_samples, &alone.encoder_samples);
      alone.encoder_cu_seqlens = {0, encoder_end - encoder_begin};
      alone.sequence_labels = {both.sequence_labels[s]};
      alone.sequence_weights = {1};
      alone.sequence_gradient_weights = {both.sequence_gradient_weights[s]};
      double weight = 0;
      for (float w : alone.loss_weights) weight += w;
      model.LossAndGradients(&alone);
      tokens += weight;
      lm_loss += model.means().at("lm loss") * weight;
      if (named.options.sentence_order_head) order_loss += model.means().at("sop loss");
    }
    const Gradients apart = Collect(model);
    model.ZeroGradients();
    EXPECT_NEAR(model.LossAndGradients(&both), lm_loss / tokens + order_loss / 2, 2e-6);
    for (const auto& [name, gradient] : Collect(model))
      EXPECT_LE(Distance(gradient, apart.at(name)), 1e-5 * (Norm(gradient) + 0.1)) << name;
  }
}

TEST(StackStageTest, RecomputationChangesNoBit) {
  std::vector<std::pair<const char*, std::function<void(ModelOptions*)>>> ways = {
      {"uniform",
       [](ModelOptions* o) {
         o->layer_recompute = {LayerRecompute::kUniform, 1};
       }},
      {"uniform, both layers at once",
       [](ModelOptions* o) {
         o->layer_recompute = {LayerRecompute::kUniform, 2};
       }},
      {"uniform, an uneven group",
       [](ModelOptions* o) {
         o->layer_recompute = {LayerRecompute::kUniform, 3};
       }},
      {"block",
       [](ModelOptions* o) {
         o->layer_recompute = {LayerRecompute::kBlock, 1};
       }},
      {"attention", [](ModelOptions* o) { o->transformer.recompute.core_attention = true; }},
      {"mlp", [](ModelOptions* o) { o->transformer.recompute.mlp = true; }},
      {"norm", [](ModelOptions* o) { o->transformer.recompute.norm = true; }},
      {"experts", [](ModelOptions* o) { o->transformer.recompute.experts = true; }},
      {"all parts",
       [](ModelOptions* o) {
         o->transformer.recompute = {true, true, true, true, true};
       }},
      {"all parts and layers", [](ModelOptions* o) {
         o->transformer.recompute = {true, true, true, true, true};
         o->layer_recompute = {LayerRecompute::kBlock, 1};
       }}};
  for (const NamedModel& named : Models()) {
    ModelHarness plain(named.options, ProcessGroup(), 9);
    HostBatch batch = RandomBatch({20, 13}, named.options.vocab_size, 2);
    const double loss = plain.LossAndGradients(&batch);
    const Gradients gradients = Collect(plain);
    for (const auto& [name, change] : ways) {
      SCOPED_TRACE(std::string(named.name) + ": " + name);
      ModelHarness model(With(named.options, change), ProcessGroup(), 9);
      EXPECT_EQ(model.LossAndGradients(&batch), loss);
      EXPECT_EQ(Collect(model), gradients);
    }
  }
}

TEST(StackStageTest, RecomputationTakesLessMemory) {
  HostBatch batch = RandomBatch({64}, 50, 2);
  ModelOptions options = SmallGpt2();
  options.transformer.num_layers = 6;
  const int64_t all = MeasureStage(options, 1, batch.View()).slots[0].bytes;
  options.transformer.recompute = {true, true, true};
  const int64_t selective = MeasureStage(options, 1, batch.View()).slots[0].bytes;
  options.transformer.recompute = {};
  options.layer_recompute = {LayerRecompute::kUniform, 1};
  const int64_t full = MeasureStage(options, 1, batch.View()).slots[0].bytes;
  EXPECT_LT(selective, 0.7 * all);
  EXPECT_LT(full, 0.6 * selective);
  options = SmallMixtral();
  options.transformer.moe.router.topk = 4;
  const int64_t with_rows = MeasureStage(options, 1, batch.View()).slots[0].bytes;
  options.transformer.recompute.experts = true;
  EXPECT_LT(MeasureStage(options, 1, batch.View()).slots[0].bytes, 0.6 * with_rows);
}

// muP and Muon know the weights of hidden layers by it.
TEST(StackStageTest, WeightsOfHiddenLayersOfAGptHaveMatrices) {
  for (const NamedModel& named : Models()) {
    if (named.options.kind != ModelKind::kGpt) continue;
    ModelHarness model(named.options, ProcessGroup(), 1);
    for (const Parameter* parameter : model.parameters()) {
      const bool outer = parameter->is_embedding_or_output ||
                         parameter->name == "embedding.position_embeddings.weight" ||
                         absl::EndsWith(parameter->name, ".gate_weight") ||  // one row
                         absl::EndsWith(parameter->name, ".conv1d.weight");  // filters of channels
      const bool hidden =
          !outer && parameter->weight_decay && parameter->sharding.global_shape.rank() > 1;
      EXPECT_EQ(parameter->matrix.has_value(), hidden) << named.name << ": " << parameter->name;
    }
  }
}

TEST(StackStageTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const NamedModel& named : Models()) {
    SCOPED_TRACE(named.name);
    HostBatch batch = RandomBatch({33, 17}, named.options.vocab_size, 2);
    ModelHarness one(named.options, ProcessGroup(), 3, /*threads=*/1);
    const double loss = one.LossAndGradients(&batch);
    for (int threads : {2, 3}) {
      ModelHarness many(named.options, ProcessGroup(), 3, threads);
      EXPECT_EQ(many.LossAndGradients(&batch), loss);
      EXPECT_EQ(Collect(many), Collect(one));
    }
  }
}

// Compares this rank's gradients with the blocks of the whole that it holds.
// The gradients of experts, which this test gives each rank whole, are summands until then too.
void ExpectBlocksOf(const Gradients& whole, ModelHarness& model) {
  for (Parameter* parameter : model.parameters()) {
    const Sharding& sharding = parameter->sharding;
    if (sharding.partial.contains(Axis::kTensor) || sharding.expert_grid)
      continue;  // a summand: checked where gradients are finished
    const std::vector<float>& all = whole.at(parameter->name);
    Tensor block(const_cast<float*>(all.data()), DType::kFloat32, sharding.global_shape);
    for (int d = 0; d < block.rank(); ++d)
      block = block.Slice(d, sharding.offset[d], sharding.offset[d] + sharding.local_shape[d]);
    double distance = 0, norm = 0;
    const float* mine = parameter->grad.data<float>();
    std::vector<int64_t> index(block.rank(), 0);
    for (int64_t i = 0; i < block.numel(); ++i) {
      int64_t offset = 0, rest = i;
      for (int d = block.rank() - 1; d >= 0; --d) {
        offset += rest % block.dim(d) * block.stride(d);
        rest /= block.dim(d);
      }
      const double want = block.data<float>()[offset];
      distance += (mine[i] - want) * (mine[i] - want);
      norm += want * want;
    }
    EXPECT_LE(std::sqrt(distance), 1e-5 * (std::sqrt(norm) + 0.1)) << parameter->name;
  }
}

TEST(StackStageTest, TensorParallelRanksComputeWhatOneRankComputes) {
  for (const NamedModel& named : Models()) {
    if (named.options.transformer.num_query_groups < 2) continue;
    SCOPED_TRACE(named.name);
    HostBatch batch = RandomBatch({15, 18}, named.options.vocab_size, 2);
    ModelHarness one(named.options, ProcessGroup(), 77);
    const double loss = one.LossAndGradients(&batch);
    const Gradients gradients = Collect(one);
    ASSERT_TRUE(RunRanks(2, [&](int, const ProcessGroup& world) {
                  ModelHarness model(named.options, world, 77);
                  HostBatch mine = batch;
                  EXPECT_NEAR(model.LossAndGradients(&mine), loss, 2e-6);
                  ExpectBlocksOf(gradients, model);
                  return world.status();
                }).ok());
  }
}

TEST(StackStageTest, LogitsInChunksGiveTheSameLossAndGradients) {
  for (const NamedModel& named : Models()) {
    SCOPED_TRACE(named.name);
    HostBatch batch = RandomBatch({15, 18}, named.options.vocab_size, 2);
    ModelHarness whole(named.options, ProcessGroup(), 77);
    const double loss = whole.LossAndGradients(&batch);
    const Gradients gradients = Collect(whole);
    ModelOptions options = named.options;
    options.logits_chunk = 8;  // 33 tokens, or three more: the last chunk is smaller
    ModelHarness chunked(options, ProcessGroup(), 77);
    EXPECT_EQ(chunked.LossAndGradients(&batch), loss);
    for (const auto& [name, mean] : whole.means()) {
      // There may be no spans.
      if (std::isnan(mean)) continue;
      EXPECT_EQ(chunked.means().at(name), mean) << name;
    }
    for (const auto& [name, gradient] : Collect(chunked)) {
      EXPECT_LE(Distance(gradient, gradients.at(name)), 1e-6 * Norm(gradients.at(name))) << name;
    }
    EXPECT_EQ(chunked.Loss(&batch, /*training=*/false), whole.Loss(&batch, /*training=*/false));
    if (options.transformer.num_query_groups < 2) continue;
    ASSERT_TRUE(RunRanks(2, [&](int, const ProcessGroup& world) {
                  ModelHarness model(options, world, 77);
                  HostBatch mine = batch;
                  EXPECT_NEAR(model.LossAndGradients(&mine), loss, 2e-6);
                  ExpectBlocksOf(gradients, model);
                  return world.status();
                }).ok());
  }
}

TEST(StackStageTest, MlpsInChunksGiveTheSameLossAndGradients) {
  for (const NamedModel& named : Models()) {
    if (named.options.transformer.moe.num_experts > 0) continue;
    HostBatch batch = RandomBatch({15, 18}, named.options.vocab_size, 2);
    ModelHarness whole(named.options, ProcessGroup(), 77);
    const double loss = whole.LossAndGradients(&batch);
    const Gradients gradients = Collect(whole);
    for (const bool recomputes_layers : {false, true}) {
      SCOPED_TRACE(std::string(named.name) + (recomputes_layers ? ", layers recomputed" : ""));
      ModelOptions options = named.options;
      options.transformer.recompute.mlp_chunk_tokens = 8;
      if (recomputes_layers) {
        options.layer_recompute = {LayerRecompute::kUniform, 1};
      } else {
        options.transformer.recompute.norm = true;
      }
      ModelHarness chunked(options, ProcessGroup(), 77);
      EXPECT_EQ(chunked.LossAndGradients(&batch), loss);
      for (const auto& [name, gradient] : Collect(chunked)) {
        // The bits of all but the weights of MLPs: no other gradient has a sum of chunks in it.
        if (name.find(".mlp.linear") == std::string::npos) {
          EXPECT_EQ(gradient, gradients.at(name)) << name;
        }
        EXPECT_LE(Distance(gradient, gradients.at(name)), 1e-6 * Norm(gradients.at(name))) << name;
      }
      EXPECT_EQ(chunked.Loss(&batch, /*training=*/false), whole.Loss(&batch, /*training=*/false));
      if (options.transformer.num_query_groups < 2) continue;
      ASSERT_TRUE(RunRanks(2, [&](int, const ProcessGroup& world) {
                    ModelHarness model(options, world, 77);
                    HostBatch mine = batch;
                    EXPECT_NEAR(model.LossAndGradients(&mine), loss, 2e-6);
                    ExpectBlocksOf(gradients, model);
                    return world.status();
                  }).ok());
    }
  }
}

TEST(StackStageTest, AttentionInChunksGivesTheSameLossAndGradients) {
  for (const NamedModel& named : Models()) {
    const TransformerOptions& layers = named.options.transformer;
    const bool is_chunked = !layers.qk_norm_all_heads && !layers.output_gate;
    if (named.options.kind != ModelKind::kGpt || !is_chunked) continue;
    HostBatch batch = RandomBatch({15, 18}, named.options.vocab_size, 2);
    ModelHarness whole(named.options, ProcessGroup(), 77);
    const double loss = whole.LossAndGradients(&batch);
    const Gradients gradients = Collect(whole);
    for (const bool recomputes_layers : {false, true}) {
      SCOPED_TRACE(std::string(named.name) + (recomputes_layers ? ", layers recomputed" : ""));
      ModelOptions options = named.options;
      options.transformer.recompute.attention_chunk_tokens = 8;
      if (recomputes_layers) {
        options.layer_recompute = {LayerRecompute::kUniform, 1};
      } else {
        options.transformer.recompute.norm = options.transformer.recompute.core_attention = true;
      }
      ModelHarness chunked(options, ProcessGroup(), 77);
      EXPECT_NEAR(chunked.LossAndGradients(&batch), loss, 1e-6);
      for (const auto& [name, gradient] : Collect(chunked)) {
        EXPECT_LE(Distance(gradient, gradients.at(name)), 1e-5 * (Norm(gradients.at(name)) + 0.1))
            << name;
      }
      EXPECT_NEAR(chunked.Loss(&batch, /*training=*/false), whole.Loss(&batch, /*training=*/false),
                  1e-6);
    }
  }
}

TEST(StackStageTest, AttentionInChunksTakesLessMemory) {
  ModelOptions options = SmallGpt2();
  HostBatch batch = RandomBatch({256}, options.vocab_size, 1);
  const auto bytes = [&] { return MeasureStage(options, 1, batch.View()).total(); };
  // Otherwise MLPs and logits take the most temporary memory.
  options.transformer.recompute.mlp_chunk_tokens = 16;
  options.logits_chunk = 16;
  const int64_t whole = bytes();
  options.transformer.recompute.attention_chunk_tokens = 16;
  // In backward, there are no gradients of all keys and values, in fp32.
  EXPECT_GE(whole - bytes(), 256 * options.transformer.hidden_size * 4);
}

TEST(StackStageTest, MlpsInChunksTakeLessMemory) {
  ModelOptions options = SmallGpt2();
  HostBatch batch = RandomBatch({256}, options.vocab_size, 1);
  const auto bytes = [&] { return MeasureStage(options, 1, batch.View()).total(); };
  const int64_t whole = bytes();
  options.transformer.recompute.mlp_chunk_tokens = 16;
  // Each layer keeps no intermediate, before and behind the activation, in fp32.
  EXPECT_GE(whole - bytes(),
            options.transformer.num_layers * 2 * 256 * options.transformer.ffn_hidden_size * 4);
}

TEST(StackStageTest, LogitsInChunksTakeLessMemory) {
  ModelOptions options = SmallGpt2();
  HostBatch batch = RandomBatch({32, 32}, options.vocab_size, 1);
  const auto bytes = [&] { return MeasureStage(options, 1, batch.View()).total(); };
  const int64_t whole = bytes();
  options.logits_chunk = 16;
  // Three quarters of the logits, in fp32.
  EXPECT_GE(whole - bytes(), 48 * options.padded_vocab_size * 4);
}

TEST(StackStageTest, SixteenBitModelsStayCloseToFp32) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (ModelOptions options : {SmallGpt2(), SmallLlama(), SmallBert(), SmallPostNormBert(),
                                 SmallMegatronT5(), SmallT5()}) {
      options.transformer.init_std = options.transformer.output_init_std =
          options.embedding_init_std = 0.1f;
      // ReLU's slope jumps where rounding changes a sign.
      if (options.transformer.activation == ops::Activation::kRelu)
        options.transformer.activation = ops::Activation::kGeluTanh;
      HostBatch batch = RandomBatch({20, 12}, options.vocab_size, 2);
      ModelHarness exact(options, ProcessGroup(), 5);
      const double loss = exact.LossAndGradients(&batch);
      options.transformer.dtype = dtype;
      ModelHarness rounded(options, ProcessGroup(), 5);
      EXPECT_NEAR(rounded.LossAndGradients(&batch), loss, 0.01) << dtype;
      const Gradients want = Collect(exact);
      for (const auto& [name, gradient] : Collect(rounded)) {
        EXPECT_LE(Distance(gradient, want.at(name)), 0.05 * Norm(want.at(name)) + 1e-3)
            << dtype << " " << name;
      }
    }
  }
}

TEST(StackStageTest, EvaluationIsTrainingWithoutDropout) {
  for (const NamedModel& named : Models()) {
    SCOPED_TRACE(named.name);
    HostBatch batch = RandomBatch({30, 3}, named.options.vocab_size, 2);
    ModelHarness model(named.options, ProcessGroup(), 3);
    const double evaluated = model.Loss(&batch, /*training=*/false);
    const double trained = model.Loss(&batch, /*training=*/true);
    const TransformerOptions& transformer = named.options.transformer;
    if (transformer.hidden_dropout > 0 || transformer.moe.input_jitter_eps > 0) {
      EXPECT_NE(evaluated, trained);
    } else {
      EXPECT_EQ(evaluated, trained);
    }
  }
}

TEST(StackStageTest, PredictsTheLogitsThatTheLossIsMadeOf) {
  for (ModelOptions options : {SmallGpt2(), SmallLlama(), SmallBert(), SmallPostNormBert(),
                               SmallMegatronT5(), SmallT5()}) {
    options.sentence_order_head = false;
    ModelHarness model(options, ProcessGroup(), 3);
    HostBatch batch = RandomBatch({12}, options.vocab_size, 4);
    std::fill(batch.loss_weights.begin(), batch.loss_weights.end(), 0.0f);
    batch.loss_weights[7] = 1;
    const double loss = model.Loss(&batch, /*training=*/false);
    const std::vector<float> logits = model.Logits(&batch, 7);
    double sum = 0;
    for (int v = 0; v < options.vocab_size; ++v) sum += std::exp(double{logits[v]});
    EXPECT_NEAR(std::log(sum) - logits[batch.labels[7]], loss, 1e-5);
  }
}

}  // namespace
}  // namespace megatron
