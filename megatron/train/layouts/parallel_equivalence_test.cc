// Trains on layouts that together cover every pair of values of every two settings, and expects the
// losses, gradient norms and weights that one rank gives. These cases are a covering array. With
// $MEGATRON_CASES others are drawn at random until there are so many.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/models/model_harness.h"
#include "megatron/optim/mup.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int kSteps = 10;
constexpr double kLossTolerance = 2e-6;
// Scores are about 1 and differ between layouts by about 1e-7.
constexpr double kRouterMargin = 1e-5;
constexpr double kSgdTolerance = 2e-6, kAdamTolerance = 1e-5;  // relative L2 of a tensor

// The ways to divide the model and its work over the pipeline.
enum Parts {
  kEven,
  kInterleaved,
  kUneven,
  kGPipe,
  kZeroBubbleH1,
  kZeroBubbleV,
  kUnevenV,
  kEmptyParts,
  kNumParts,
  kMtpAlone = kNumParts  // has a covering array of its own, with SGD
};

// The settings. A case holds for each the index of its value.
enum Setting {
  kModel,
  kOptimizer,
  kTensor,
  kContext,
  kSequence,
  kPipeline,
  kParts,
  kData,
  kExpert,
  kExpertTensor,
  kZero,
  kInstances,
  kOverlap,
  kMicroBatch,
  kRecompute,
  kDocuments,
  kNumSettings
};
constexpr std::array<int, kNumSettings> kValues = {9, 2, 6, 8, 2, 3, kNumParts, 4,
                                                   3, 2, 4, 7, 2, 3, 4,         2};
using Case = std::array<int, kNumSettings>;

enum Model { kGpt2, kLlama, kWindowed, kLatent, kMtp, kHybrid, kMixtral, kDeepSeek, kBalanced };

bool HasExperts(const Case& c) { return c[kModel] >= kMixtral; }

Layout LayoutOf(const Case& c) {
  Layout layout;
  // One to four ranks in 1D, a square, two squares and a cube.
  layout.tensor = 1 << (c[kTensor] < 3 ? c[kTensor] : c[kTensor] == 3 ? 2 : 3);
  if (c[kTensor] >= 3) layout.tensor_side = 2;
  if (c[kTensor] >= 4) layout.tensor_depth = 2;
  layout.tensor_cube = c[kTensor] == 5;
  if (c[kContext] > 0) {
    layout.context = c[kContext] < 4 ? 2 : 4;
    layout.context_parallel = static_cast<ContextParallel>((c[kContext] - 1) % 3);
    if (c[kContext] == 7) layout.context_parallel = ContextParallel::kHierarchical;
    layout.context_team_size = 2;
  }
  layout.sequence_parallel = c[kSequence] == 1;
  layout.pipeline = 1 << c[kPipeline];
  layout.data = std::array<int, 4>{1, 2, 4, 8}[c[kData]];
  layout.expert = 1 << c[kExpert];
  layout.expert_tensor = 1 << c[kExpertTensor];
  layout.sharding = static_cast<DataSharding>(c[kZero]);
  layout.optimizer_instances = c[kInstances] == 1 || c[kInstances] == 2 ? 2 : 1;
  layout.shards_states_over_instances = c[kInstances] == 2;
  // Instead of instances, hierarchical collectives over two hosts, or secondary shards on two.
  if (c[kInstances] == 3) layout.ranks_per_host = layout.ranks() / 2;
  if (c[kInstances] == 4) layout.hosts = 2;
  // Or each group of ranks that share experts is on two hosts, with deduplicated dispatch.
  if (c[kInstances] == 5) {
    layout.ranks_per_host = layout.expert * layout.expert_tensor / 2;
    layout.deduplicated_dispatch = true;
  }
  // Or sums are those of a tree, which a mesh and a ring do not make.
  if (c[kInstances] == 6) layout.algorithm = CollectiveAlgorithm::kTree;
  layout.overlap = c[kOverlap] == 1;
  layout.tp_comm_overlap = layout.overlap && layout.tensor > 1 && layout.tensor_side == 1;
  layout.micro_batch_size = 1 << c[kMicroBatch];
  if (c[kParts] == kInterleaved) layout.chunks = 2;
  if (c[kParts] == kUneven) layout.layers = {1, 3};
  if (c[kParts] == kGPipe) layout.schedule = ScheduleKind::kGPipe;
  if (c[kParts] == kZeroBubbleH1) layout.schedule = ScheduleKind::kZeroBubbleH1;
  if (c[kParts] == kZeroBubbleV || c[kParts] == kUnevenV) {
    layout.schedule = ScheduleKind::kZeroBubbleV;
    layout.chunks = 2;
  }
  if (c[kParts] == kUnevenV) layout.layers = {2, 0, 1, 1};
  if (c[kParts] == kEmptyParts) {
    layout.chunks = 2;
    layout.layers = {0, 3, 1, 0};
  }
  // Multi-token prediction is behind no layer on the third stage of four, or behind one on the
  // second stage of a V, whose first has the heads.
  if (c[kParts] == kMtpAlone) {
    layout.mtp_before_last = true;
    layout.layers = {2, 2, 0, 0};
    if (layout.pipeline == 2) {
      layout.schedule = ScheduleKind::kZeroBubbleV;
      layout.chunks = 2;
      layout.layers = {2, 1, 1, 0};
    }
  }
  return layout;
}

bool HasHierarchicalGroups(const Layout& layout, bool has_experts) {
  const ParallelSizes sizes = SizesOf(layout, has_experts);
  const auto dense = RankGrid::Create(sizes, layout.ranks()),
             expert = RankGrid::CreateExpert(sizes, layout.ranks());
  return dense.ok() && expert.ok() && CheckHierarchicalGroups(*dense, *expert).ok();
}

// Neither the model nor the optimizer counts.
bool IsTooLarge(const Case& c) {
  const Layout layout = LayoutOf(c);
  return layout.ranks() > 8 || layout.micro_batch_size * layout.data > 8;
}

bool IsValid(const Case& c) {
  const Layout layout = LayoutOf(c);
  if (layout.sequence_parallel && layout.tensor == 1) return false;
  if (layout.tensor_side > 1 &&
      (layout.sequence_parallel || layout.context > 1 || HasExperts(c) || c[kRecompute] == 3 ||
       c[kModel] == kWindowed || c[kModel] == kLatent || c[kModel] == kMtp ||
       c[kModel] == kHybrid ||
       layout.micro_batch_size % (layout.tensor_side * layout.tensor_depth) != 0)) {
    return false;
  }
  // Its groups of heads are shared out over tensor- and context-parallel ranks.
  if (c[kModel] == kHybrid &&
      (4 % (layout.tensor * layout.context) != 0 ||
       (layout.context > 1 && layout.context_parallel == ContextParallel::kHierarchical))) {
    return false;
  }
  if ((layout.sharding != DataSharding::kNone || layout.overlap) &&
      layout.data * layout.context == 1) {
    return false;
  }
  if (layout.algorithm != CollectiveAlgorithm::kMesh && layout.ranks() < 4) return false;
  if (layout.hosts > 1 && layout.sharding != DataSharding::kWeights) return false;
  if (const int runs = layout.optimizer_instances * layout.hosts; runs > 1) {
    const int expert_copies =
        layout.tensor * layout.context * layout.data / (layout.expert * layout.expert_tensor);
    if (layout.sharding == DataSharding::kNone || layout.data * layout.context % runs != 0 ||
        expert_copies % runs != 0) {
      return false;
    }
  }
  if (layout.deduplicated_dispatch) {
    // kBalanced pads its messages.
    if (!HasExperts(c) || c[kModel] == kBalanced || layout.expert == 1) return false;
  } else if (layout.ranks_per_host > 0 && layout.data * layout.context < 4) {
    return false;
  }
  TransformerOptions transformer;
  transformer.context_parallel = layout.context_parallel;
  transformer.context_team_size = layout.context_team_size;
  const int team_size = transformer.TeamSize(layout.context);
  const bool has_groups = c[kModel] != kGpt2 && c[kModel] != kLatent;
  if (team_size > 1 && (has_groups ? 2 : 4) % (layout.tensor * team_size) != 0) return false;
  if (!HasExperts(c) && layout.expert * layout.expert_tensor > 1) return false;
  if (HasExperts(c) && c[kDocuments] == 1) return false;
  if (layout.tensor * layout.context * layout.data % (layout.expert * layout.expert_tensor) != 0)
    return false;
  if (c[kParts] == kMtpAlone) {
    if (layout.pipeline == 1) return false;
  } else if (c[kParts] != kEven && layout.pipeline != 2) {
    return false;
  }
  const int64_t micro_batches = 8 / (layout.micro_batch_size * layout.data);
  const bool interleaved = c[kParts] == kInterleaved || c[kParts] == kEmptyParts;
  if (interleaved && micro_batches % layout.pipeline != 0) return false;
  return layout.ranks_per_host == 0 || HasHierarchicalGroups(layout, HasExperts(c));
}

// Returns all cases that have the values of `c` in the settings that `is_fixed` names.
std::vector<Case> AllCases(Case c, const std::array<bool, kNumSettings>& is_fixed) {
  std::vector<Case> cases;
  static_assert(kModel == 0 && kOptimizer == 1 && kTensor == 2);
  while (true) {
    int axis = 0;
    if (IsTooLarge(c)) {
      // Most layouts are, and no model has a part in it.
      for (; axis < kTensor; ++axis) c[axis] = is_fixed[axis] ? c[axis] : 0;
    } else if (IsValid(c)) {
      cases.push_back(c);
    }
    while (axis < kNumSettings) {
      if (is_fixed[axis]) {
        ++axis;
      } else if (++c[axis] < kValues[axis]) {
        break;
      } else {
        c[axis++] = 0;
      }
    }
    if (axis == kNumSettings) return cases;
  }
}

// Multi-token prediction in the part in front of the last. AdamW divides gradients by themselves,
// and so magnifies the rounding of those that nearly cancel, and three stages sum up those of the
// tied table: these cases have SGD. mtp_stage_test has the bits of AdamW.
std::vector<Case> MtpAloneCases() {
  Case c{};
  c[kModel] = kMtp;
  c[kParts] = kMtpAlone;
  std::array<bool, kNumSettings> is_fixed{};
  is_fixed[kModel] = is_fixed[kOptimizer] = is_fixed[kParts] = true;
  return AllCases(c, is_fixed);
}

// The pairs of two settings and their values, by number.
constexpr int kMostValues = 9;
using Pairs = std::array<int, kNumSettings*(kNumSettings - 1) / 2>;
constexpr int kNumPairs = kNumSettings * kMostValues * kNumSettings * kMostValues;

Pairs PairsOf(const Case& c) {
  Pairs pairs;
  size_t next = 0;
  for (int a = 0; a < kNumSettings; ++a) {
    for (int b = a + 1; b < kNumSettings; ++b) {
      pairs[next++] =
          (a * kMostValues + c[a]) * kNumSettings * kMostValues + b * kMostValues + c[b];
    }
  }
  return pairs;
}

// Adds greedily the case that covers the most pairs not covered yet, until all pairs that can occur
// are covered.
std::vector<Case> CoveringArray(const std::vector<Case>& all) {
  std::vector<char> open(kNumPairs);
  for (const Case& c : all) {
    for (int pair : PairsOf(c)) open[pair] = 1;
  }
  std::vector<Case> chosen;
  // What each case covered when it was last looked at. It covers no more later, so that few cases
  // are looked at each time.
  std::vector<int> covered(all.size(), kNumPairs);
  while (true) {
    const Case* best = nullptr;
    int most = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (covered[i] <= most) continue;
      covered[i] = 0;
      for (int pair : PairsOf(all[i])) covered[i] += open[pair];
      if (covered[i] > most) {
        most = covered[i];
        best = &all[i];
      }
    }
    if (best == nullptr) return chosen;
    for (int pair : PairsOf(*best)) open[pair] = 0;
    chosen.push_back(*best);
  }
}

TrainerOptions RunOf(const Case& c) {
  const ModelOptions models[] = {SmallGpt2(),    SmallLlama(),    SmallWindowed(),
                                 SmallLatent(),  SmallMtp(),      SmallHybrid(),
                                 SmallMixtral(), SmallDeepSeek(), SmallBalanced()};
  TrainerOptions run = TinyRun(
      models[c[kModel]], c[kOptimizer] == 0 ? OptimizerOptions::kSgd : OptimizerOptions::kAdamW);
  if (c[kModel] == kGpt2) {
    run.model.embedding_output_scale = 1.25f;
    run.model.output_scale = 0.75f;
    run.model.mup_width_mult = 2;
    run.schedule.scaled_lr_factor = MupLrFactor(run.optimizer.kind, run.model.mup_width_mult);
  }
  if (c[kModel] == kLlama) {
    run.model.transformer.qk_norm = run.model.transformer.sandwich_norm = true;
    run.model.embedding_scale = 1.5f;
  }
  if (c[kModel] == kWindowed) {
    TransformerOptions& layer = run.model.transformer;
    layer.score_softcap = 0.7f;
    run.model.output_bias = true;
    layer.parallel_residual = true;
    const bool shares_norm = c[kOptimizer] == 0;
    layer.parallel_shared_norm = layer.mlp_bias = shares_norm;
    if (shares_norm) {
      layer.norm.kind = ops::Norm::kLayerNorm;
      layer.norm.bias = false;
    }
  }
  if (c[kModel] == kMtp) {
    TransformerOptions& layer = run.model.transformer;
    layer.num_query_groups = layer.num_attention_heads;  // norms of all heads share no group
    layer.qk_norm = layer.qk_norm_all_heads = layer.reordered_norm = true;
    layer.init_std = 0.08f;  // norms behind branches magnify the rounding of small ones
    run.model.logit_softcap = 1.2f;
  }
  // States matter where the norms of what they give are those of small rows too.
  if (c[kModel] == kHybrid) {
    TransformerOptions& layer = run.model.transformer;
    layer.norm.epsilon = 1e-5f;
    layer.num_query_groups = layer.num_attention_heads;  // gates and norms share no group
    layer.output_gate = layer.qk_norm = layer.qk_norm_each_head = true;
    layer.residual_multiplier = 0.8f;
    run.model.output_scale = 0.75f;
  }
  // Routers make few decisions, with scores far apart; one stage has no experts.
  if (HasExperts(c)) {
    run.model.transformer.moe.layers = {false, true, false, true};
    run.model.transformer.moe.dispatch_in_parts = c[kOverlap] == 1;
    run.model.transformer.init_std = 0.08f;
  }
  RecomputeOptions& selective = run.model.transformer.recompute;
  if (c[kRecompute] == 1) {
    selective.core_attention = selective.mlp = selective.norm = true;
    selective.latent_heads = true;
    selective.experts = c[kModel] == kDeepSeek || c[kModel] == kBalanced;
  }
  if (c[kRecompute] == 2) run.model.layer_recompute = {LayerRecompute::kUniform, 1};
  if (c[kRecompute] == 3) {
    run.model.layer_recompute = {LayerRecompute::kBlock, 1};
    selective.mlp_chunk_tokens = 7;
  }
  return run;
}

std::string Describe(const Case& c) {
  static constexpr const char* kRecomputes[] = {"none", "selective", "uniform",
                                                "block, MLPs in chunks"};
  static constexpr const char* kModels[] = {
      "gpt2",   "llama",   "windowed", "latent attention", "multi-token prediction",
      "hybrid", "mixtral", "deepseek", "balanced"};
  return absl::StrCat(kModels[c[kModel]], c[kOptimizer] == 0 ? " sgd " : " adamw ",
                      ToString(LayoutOf(c)), " recompute ", kRecomputes[c[kRecompute]],
                      c[kDocuments] == 1 ? " documents" : "");
}

// Returns the L2 norm of a - b relative to that of b.
double Distance(const float* a, const float* b, int64_t count) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

// The gradient of a bias of keys that are not rotated is nothing but rounding error, which AdamW
// blows up: these biases are compared separately, by absolute differences, and then made equal. A
// gradient that is there by mistake, above AdamW's epsilon, moves them by 1e-3 a step.
void CompareKeyBiases(const WholeTensor& want, double bound, std::vector<float>* got) {
  const float* expected = reinterpret_cast<const float*>(want.bytes.data());
  const int64_t groups = want.shape[0], rows = want.shape[1], size = want.shape[2];
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t keys = (group * rows + rows - 2) * size;
    for (int64_t i = keys; i < keys + size; ++i) {
      EXPECT_NEAR((*got)[i], expected[i], bound) << "key bias " << i;
      (*got)[i] = expected[i];
    }
  }
}

void CompareWeights(const LayoutOutcome& got, const LayoutOutcome& want, bool sgd) {
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, expected] : want.state) {
    if (absl::StartsWith(name, "optimizer.state.")) continue;
    ASSERT_TRUE(got.state.count(name)) << name;
    const WholeTensor& tensor = got.state.at(name);
    ASSERT_EQ(tensor.shape, expected.shape) << name;
    const float* values = reinterpret_cast<const float*>(tensor.bytes.data());
    std::vector<float> mine(values, values + tensor.shape.numel());
    if (absl::EndsWith(name, "linear_qkv.bias"))
      CompareKeyBiases(expected, sgd ? 1e-9 : 1e-3, &mine);
    EXPECT_LE(Distance(mine.data(), reinterpret_cast<const float*>(expected.bytes.data()),
                       expected.shape.numel()),
              sgd ? kSgdTolerance : kAdamTolerance)
        << name;
  }
}

// Otherwise a layout's rounding could decide where a token goes, and the next test would fail.
TEST(ParallelEquivalenceTest, RoutersOfTheModelsWithExpertsDecideFarAboveRounding) {
  const CountingSource source;
  for (int model : {kMixtral, kDeepSeek, kBalanced}) {
    for (int optimizer : {0, 1}) {
      Case c{};
      c[kModel] = model;
      c[kOptimizer] = optimizer;
      LayoutRun how;
      how.steps = kSteps;
      how.evaluate = true;
      const LayoutOutcome outcome = TrainOnLayout(RunOf(c), how, source);
      EXPECT_GT(outcome.smallest_margin, kRouterMargin) << Describe(c);
      EXPECT_LT(outcome.smallest_margin, 0.1) << "nobody looked";
    }
  }
}

// Otherwise all layouts could leave one of them out.
TEST(ParallelEquivalenceTest, WindowsSinksAndRotationsOfLayersAreFarAboveRounding) {
  const auto losses = [](void (*leave_out)(TransformerOptions*)) {
    Case c{};
    c[kModel] = kWindowed;
    TrainerOptions options = RunOf(c);
    leave_out(&options.model.transformer);
    LayoutRun how;
    how.steps = kSteps;
    how.layout.micro_batch_size = 4;
    return TrainOnLayout(options, how, CountingSource()).losses;
  };
  const auto whole = losses([](TransformerOptions*) {});
  int number = 0;
  for (void (*leave_out)(TransformerOptions*) : {
           +[](TransformerOptions* o) { o->window_size = 0; },
           +[](TransformerOptions* o) { o->window_size = 6; },
           +[](TransformerOptions* o) { o->window_layers.clear(); },
           +[](TransformerOptions* o) { o->sink = AttentionSink::kZero; },
           +[](TransformerOptions* o) { o->sink = AttentionSink::kNone; },
           +[](TransformerOptions* o) { o->rotary_layers.clear(); },
           +[](TransformerOptions* o) { o->rotary_options.local_base = 0; },
           +[](TransformerOptions* o) { o->rotary_options.yarn.factor = 0; },
           +[](TransformerOptions* o) { o->rotary_options.yarn.mscale = 0; },
       }) {
    const auto without = losses(leave_out);
    double largest = 0;
    for (int i = 0; i < kSteps; ++i)
      largest = std::max(largest, std::fabs(without[i] - whole[i]) / whole[i]);
    EXPECT_GT(largest, 10 * kLossTolerance) << "change " << number;
    ++number;
  }
}

// Otherwise all layouts could leave one of them out.
TEST(ParallelEquivalenceTest, StatesOfHybridLayersAreFarAboveRounding) {
  const auto losses = [](int64_t states, int64_t keys) {
    Case c{};
    c[kModel] = kHybrid;
    TrainerOptions options = RunOf(c);
    options.model.transformer.mamba.state_dim = states;
    options.model.transformer.delta.key_head_dim = keys;
    LayoutRun how;
    how.steps = kSteps;
    how.layout.micro_batch_size = 4;
    return TrainOnLayout(options, how, CountingSource()).losses;
  };
  const auto whole = losses(6, 6);
  for (const auto& less : {losses(5, 6), losses(6, 5)}) {
    double largest = 0;
    for (int i = 0; i < kSteps; ++i)
      largest = std::max(largest, std::fabs(less[i] - whole[i]) / whole[i]);
    EXPECT_GT(largest, 10 * kLossTolerance);
  }
}

// The word table of the stage with multi-token prediction is a copy, which the output matrix is
// not. Layers of multi-token prediction have experts.
TEST(ParallelEquivalenceTest, MultiTokenPredictionHasACopyOfAnEmbeddingOfItsOwn) {
  TrainerOptions run = TinyRun(SmallMtpMixture(), OptimizerOptions::kSgd);
  // Scores of all experts decide nothing.
  run.model.transformer.moe.router.topk = 8;
  run.model.transformer.moe.expert_bias = false;
  const CountingSource source;
  LayoutRun how;
  how.steps = kSteps;
  how.evaluate = true;
  how.layout.micro_batch_size = 4;
  const LayoutOutcome want = TrainOnLayout(run, how, source);
  Layout pipeline, zero_bubble, experts, weights, alone;
  pipeline.pipeline = pipeline.tensor = 2;
  pipeline.sequence_parallel = true;
  zero_bubble.pipeline = zero_bubble.chunks = 2;
  zero_bubble.schedule = ScheduleKind::kZeroBubbleV;
  experts.pipeline = experts.data = experts.expert = 2;
  weights.data = weights.context = 2;
  weights.sharding = DataSharding::kWeights;
  alone.pipeline = 4;
  alone.layers = {2, 2, 0, 0};
  alone.mtp_before_last = true;
  alone.data = alone.expert = 2;
  alone.sharding = DataSharding::kStates;
  for (const Layout& layout : {pipeline, zero_bubble, experts, weights, alone}) {
    SCOPED_TRACE(ToString(layout));
    how.layout = layout;
    const LayoutOutcome got = TrainOnLayout(run, how, source);
    for (int i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], kLossTolerance * want.losses[i]) << "step " << i;
      EXPECT_NEAR(got.norms[i], want.norms[i], kLossTolerance * want.norms[i]) << "step " << i;
    }
    EXPECT_NEAR(got.evaluation, want.evaluation, kLossTolerance * want.evaluation);
    CompareWeights(got, want, /*sgd=*/true);
  }
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, bool documents) {
  static const CountingSource sources[] = {CountingSource(), CountingSource(/*documents=*/true)};
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  how.evaluate = true;
  return TrainOnLayout(run, how, sources[documents]);
}

LayoutOutcome TrainAlone(const TrainerOptions& run, bool documents) {
  Layout alone;
  alone.micro_batch_size = 4;
  return Train(run, alone, documents);
}

void ExpectTheSame(const LayoutOutcome& got, const LayoutOutcome& want, bool sgd) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], kLossTolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], kLossTolerance * want.norms[i]) << "step " << i;
    EXPECT_NEAR(got.balances[i], want.balances[i], kLossTolerance * want.balances[i]);
    EXPECT_NEAR(got.z_losses[i], want.z_losses[i], kLossTolerance * want.z_losses[i]);
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, kLossTolerance * want.evaluation);
  CompareWeights(got, want, sgd);
}

// Ranks that share out groups of heads add up the sums of the norm over all groups.
TEST(ParallelEquivalenceTest, NormsOfAllGroupsOfHeadsAreThoseOfOneRank) {
  std::vector<Layout> layouts(8);
  layouts[0].tensor = 2;
  layouts[1].tensor = 4;
  layouts[1].sequence_parallel = true;
  layouts[2].context = 2;
  layouts[2].context_parallel = ContextParallel::kAllToAll;
  layouts[3].context = 4;
  layouts[4].tensor = layouts[4].context = 2;
  layouts[5].tensor = layouts[5].context = 2;
  layouts[5].sequence_parallel = true;
  layouts[6].tensor = layouts[6].pipeline = 2;
  layouts[6].schedule = ScheduleKind::kZeroBubbleH1;
  layouts[7].tensor = layouts[7].context = layouts[7].data = 2;
  layouts[7].sharding = DataSharding::kWeights;
  for (const int optimizer : {0, 1}) {
    Case c{};
    c[kModel] = kHybrid;
    c[kOptimizer] = optimizer;
    TrainerOptions run = RunOf(c);
    const LayoutOutcome apart = TrainAlone(run, /*documents=*/false);
    run.model.transformer.mamba.norm_all_groups = true;
    const LayoutOutcome want = TrainAlone(run, /*documents=*/false);
    EXPECT_GT(std::fabs(apart.evaluation - want.evaluation), 10 * kLossTolerance);
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(ToString(layout));
      ExpectTheSame(Train(run, layout, /*documents=*/false), want, optimizer == 0);
    }
    TrainerOptions recomputing = run;
    recomputing.model.layer_recompute = {LayerRecompute::kUniform, 1};
    SCOPED_TRACE("full recomputation");
    ExpectTheSame(Train(recomputing, layouts[4], /*documents=*/true),
                  TrainAlone(run, /*documents=*/true), optimizer == 0);
  }
}

// All cases but those of MtpAloneCases(), and those of the covering arrays, which take a while to
// find.
struct Cases {
  std::vector<Case> all, covering;
};
const Cases& FoundCases() {
  static const Cases* const cases = [] {
    auto* const found = new Cases{AllCases({}, {}), {}};
    found->covering = CoveringArray(found->all);
    for (const Case& c : CoveringArray(MtpAloneCases())) found->covering.push_back(c);
    return found;
  }();
  return *cases;
}

// The embedding and half of the layers keep their values, so gradients end in the middle of the
// model: every tenth case, but for grids, which refuse that.
TEST(ParallelEquivalenceTest, LayoutsTrainTheLastLayersAsOneRankDoes) {
  const std::vector<Case>& cases = FoundCases().covering;
  std::map<std::array<int, 3>, LayoutOutcome> alone;
  for (size_t i = 0; i < cases.size(); i += 10) {
    const Case& c = cases[i];
    const Layout layout = LayoutOf(c);
    if (layout.tensor_side > 1) continue;
    SCOPED_TRACE(Describe(c));
    TrainerOptions run = RunOf(c);
    run.freeze = {"embedding", R"(layers\.[01]\.)"};
    LayoutOutcome& want = alone[{c[kModel], c[kOptimizer], c[kDocuments]}];
    if (want.losses.empty()) {
      Case plain{};
      plain[kModel] = c[kModel];
      plain[kOptimizer] = c[kOptimizer];
      TrainerOptions reference = RunOf(plain);
      reference.freeze = run.freeze;
      want = TrainAlone(reference, c[kDocuments] == 1);
    }
    ExpectTheSame(Train(run, layout, c[kDocuments] == 1), want, c[kOptimizer] == 0);
  }
}

TEST(ParallelEquivalenceTest, EveryLayoutTrainsWhatOneRankTrains) {
  const std::vector<Case>& all = FoundCases().all;
  std::vector<Case> cases = FoundCases().covering;
  const char* count = std::getenv("MEGATRON_CASES");
  const size_t wanted = count == nullptr ? 0 : std::stoul(count);
  std::mt19937 random(1);
  while (cases.size() < wanted) cases.push_back(all[random() % all.size()]);
  RecordProperty("cases", static_cast<int>(cases.size()));

  std::map<std::array<int, 3>, LayoutOutcome> alone;
  for (int model :
       {kGpt2, kLlama, kWindowed, kLatent, kMtp, kHybrid, kMixtral, kDeepSeek, kBalanced}) {
    for (int optimizer : {0, 1}) {
      for (int documents : {0, 1}) {
        Case c{};
        c[kModel] = model;
        c[kOptimizer] = optimizer;
        alone[{model, optimizer, documents}] = TrainAlone(RunOf(c), documents == 1);
      }
    }
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(Describe(c));
    const LayoutOutcome& want = alone[{c[kModel], c[kOptimizer], c[kDocuments]}];
    ExpectTheSame(Train(RunOf(c), LayoutOf(c), c[kDocuments] == 1), want, c[kOptimizer] == 0);
  }
}

}  // namespace
}  // namespace megatron
