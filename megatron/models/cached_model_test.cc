#include "megatron/models/cached_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/cached_model_harness.h"
#include "megatron/models/text_generator.h"
#include "megatron/pipeline/executor.h"

namespace megatron {
namespace {

// More than a block of keys and a block of rows of attention.
constexpr int64_t kContext = 150;
constexpr int64_t kSlots = 3;

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

using Text = std::vector<int32_t>;

ModelOptions Long(ModelOptions options) {
  options.max_positions = kContext;
  return options;
}

ModelOptions Dropless(ModelOptions options) {
  options.transformer.moe.capacity_factor.reset();
  options.transformer.moe.pad_to_capacity = false;
  return options;
}

ModelOptions SharedGroup() {
  ModelOptions options = SmallLlama();
  options.transformer.qk_norm = true;
  options.transformer.num_query_groups = 1;
  options.transformer.rotary_options.interleaved = true;
  return options;
}

struct NamedModel {
  const char* name;
  ModelOptions options;
};

// A hybrid model without states.
ModelOptions OneBranch() {
  ModelOptions options = SmallHybrid();
  options.transformer.hybrid_layers[0] = HybridLayer::kAttention;
  options.transformer.hybrid_layers[1] = HybridLayer::kMlp;
  options.transformer.num_query_groups = options.transformer.num_attention_heads;
  options.transformer.output_gate = true;
  options.transformer.residual_multiplier = 0.7f;
  return options;
}

// Attention and MLP read the same norm.
ModelOptions ParallelBranches() {
  ModelOptions options = SmallGpt2();
  options.transformer.parallel_residual = options.transformer.parallel_shared_norm = true;
  return options;
}

// A hybrid model without keys and values, whose heads have widths of their own.
ModelOptions StatesAlone() {
  ModelOptions options = SmallHybrid();
  options.transformer.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kDelta,
                                       HybridLayer::kDelta, HybridLayer::kMamba};
  options.transformer.mamba = {/*state_dim=*/16, /*head_dim=*/20, /*num_groups=*/2,
                               /*num_heads=*/4};
  options.transformer.delta = {/*conv_taps=*/2, /*key_head_dim=*/17, /*value_head_dim=*/32,
                               /*num_key_heads=*/2, /*num_value_heads=*/2};
  return options;
}

std::vector<NamedModel> Models() {
  std::vector<NamedModel> models = {{"gpt2", SmallGpt2()},
                                    {"llama", SmallLlama()},
                                    {"windows and sinks", SmallWindowed()},
                                    {"one group, norms of queries and keys", SharedGroup()},
                                    {"experts", Dropless(SmallMixtral())},
                                    {"shared and biased experts", SmallDeepSeek()},
                                    {"post-norm, sinkhorn", Dropless(SmallBalanced())},
                                    {"latent attention", SmallLatent()},
                                    {"latent attention without norms", SmallLatentMixture()},
                                    {"keys of all heads made of latents", SmallLatent()},
                                    {"layers of one branch", OneBranch()},
                                    {"layers with states", SmallHybrid()},
                                    {"layers with states alone", StatesAlone()},
                                    {"parallel branches", ParallelBranches()}};
  models[9].options.transformer.latent.caches_latents = false;
  for (NamedModel& model : models) model.options = Long(model.options);
  NamedModel bf16 = models[1];
  bf16.name = "llama in bf16";
  bf16.options.transformer.dtype = DType::kBFloat16;
  models.push_back(bf16);
  NamedModel together = {"layers with states, norms of all groups", Long(SmallHybrid())};
  together.options.transformer.mamba.norm_all_groups = true;
  models.push_back(together);
  return models;
}

Text RandomText(int64_t length, uint32_t seed) {
  std::mt19937 random(seed);
  Text text(length);
  for (int32_t& token : text) token = static_cast<int32_t>(random() % 50);
  return text;
}

// The model without: a pass over the whole text for every token.
class Whole {
 public:
  explicit Whole(RankModel* rank)
      : rank_(rank),
        memory_(Device(), rank->SizesFor([&](const GeneratorSetup& setup) {
          const Tensor ints(nullptr, DType::kInt32, {kContext}, {DeviceType::kMeta});
          const Tensor longs(nullptr, DType::kInt64, {kContext}, {DeviceType::kMeta});
          Run(setup, BatchOf(ints, longs, ints.Slice(0, 0, 2)), ints.Slice(0, 0, 1),
              Tensor(nullptr, DType::kFloat32, {1, 64}, {DeviceType::kMeta}), Stream::Meta());
        }),
                &rank->ledger) {}

  std::vector<float> Logits(const Text& text) {
    Text tokens = text, positions, cu_seqlens = {0, static_cast<int32_t>(text.size())};
    for (size_t i = 0; i < text.size(); ++i) positions.push_back(static_cast<int32_t>(i));
    std::vector<int64_t> samples(text.size());
    const Shape shape{static_cast<int64_t>(text.size())};
    const auto ints = [](Text* values) {
      return Tensor(values->data(), DType::kInt32, {static_cast<int64_t>(values->size())});
    };
    MicroBatch batch =
        BatchOf(ints(&positions), Tensor(samples.data(), DType::kInt64, shape), ints(&cu_seqlens));
    batch.tokens_T = ints(&tokens);
    Text last = {static_cast<int32_t>(text.size()) - 1};
    std::vector<float> logits(64);
    const Tensor found(logits.data(), DType::kFloat32, {1, 64});
    const ProcessGroup& pipeline = rank_->groups.pipeline;
    Run({&rank_->harness.stage(), &memory_, nullptr, pipeline}, batch, ints(&last), found,
        rank_->harness.stream());
    pipeline.Broadcast(found, pipeline.size() - 1, rank_->harness.stream());
    return logits;
  }

 private:
  static MicroBatch BatchOf(const Tensor& ints_T, const Tensor& longs_T, const Tensor& cu_seqlens) {
    MicroBatch batch;
    batch.tokens_T = batch.position_T = batch.sample_position_T = batch.token_type_T = ints_T;
    batch.sample_T = longs_T;
    batch.cu_seqlens = cu_seqlens;
    batch.max_seqlen = ints_T.numel();
    return batch;
  }

  static void Run(const GeneratorSetup& setup, const MicroBatch& batch, const Tensor& predicted,
                  const Tensor& logits, const Stream& stream) {
    const std::vector<MicroBatch> batches = {batch};
    setup.stage->StartStep(
        {setup.memory, nullptr, &batches, StageMode::kPredict, predicted, logits});
    CHECK_EQ(RunSchedule(PlanPrediction(setup), setup.stage, setup.pipeline, &setup.memory->edges,
                         stream),
             absl::OkStatus());
  }

  RankModel* rank_;
  StageMemory memory_;
};

// Returns whether a cache has latents or states, from which sums are made in another order.
bool AddsInAnotherOrder(const ModelOptions& options) {
  return options.transformer.HasStates() ||
         (options.transformer.is_latent() && options.transformer.latent.caches_latents);
}

// Continues texts in random portions, several at once, and compares the logits of every portion's
// last token with those of a pass over the whole text.
void CheckRandomPortions(RankModel* rank, uint32_t seed) {
  std::mt19937 random(seed);
  Cached cached(rank, {kSlots, kContext, /*max_tokens=*/kContext, /*max_logits=*/kSlots});
  Whole whole(rank);
  struct Slot {
    Text text;
    int64_t done = 0;
  };
  std::vector<Slot> slots(kSlots);
  int portions = 0;
  for (int step = 0; step < 12; ++step) {
    std::vector<NewToken> tokens;
    std::vector<Text> wanted;
    int64_t room = cached.limits.max_tokens;
    for (int32_t s = 0; s < kSlots; ++s) {
      Slot& slot = slots[s];
      if (random() % 4 == 0) continue;
      if (slot.done == static_cast<int64_t>(slot.text.size()))
        slot = {RandomText(1 + random() % kContext, random()), 0};
      // Single tokens and long portions.
      const int64_t left = static_cast<int64_t>(slot.text.size()) - slot.done;
      const int64_t asked = random() % 2 == 0 ? 1 : 1 + static_cast<int64_t>(random() % kContext);
      const int64_t count = std::min({room, left, asked});
      for (int64_t i = 0; i < count; ++i, ++slot.done) {
        tokens.push_back(
            {s, static_cast<int32_t>(slot.done), slot.text[slot.done], i + 1 == count});
      }
      room -= count;
      if (count > 0) wanted.emplace_back(slot.text.begin(), slot.text.begin() + slot.done);
    }
    if (tokens.empty()) continue;
    ASSERT_TRUE(cached.model.Run(tokens));
    for (size_t i = 0; i < wanted.size(); ++i, ++portions) {
      const float* const logits = cached.model.logits(static_cast<int64_t>(i));
      const std::vector<float> got(logits, logits + 64), want = whole.Logits(wanted[i]);
      SCOPED_TRACE(absl::StrCat("after ", wanted[i].size(), " tokens, step ", step));
      if (AddsInAnotherOrder(rank->options)) {
        EXPECT_THAT(got, ::testing::Pointwise(::testing::FloatNear(2e-5f), want));
      } else {
        EXPECT_EQ(got, want);
      }
    }
  }
  EXPECT_GT(portions, 12);
}

TEST(CachedModelTest, LogitsHaveTheBitsOfPassesOverWholeTexts) {
  for (const NamedModel& model : Models()) {
    SCOPED_TRACE(model.name);
    RankModel rank(model.options, ProcessGroups());
    CheckRandomPortions(&rank, 1);
    CheckRandomPortions(&rank, 2);
  }
}

TEST(CachedModelTest, TokensFarBackCount) {
  RankModel rank(Long(SmallLlama()), ProcessGroups());
  Cached cached(&rank, {kSlots, kContext, kContext, 1});
  const Text text = RandomText(kContext, 3);
  const auto last = [&](int32_t first_token) {
    std::vector<NewToken> tokens;
    for (size_t i = 0; i < text.size(); ++i)
      tokens.push_back({1, static_cast<int32_t>(i), text[i], false});
    tokens[0].token = first_token;
    const NewToken end = tokens.back();
    tokens.pop_back();
    EXPECT_TRUE(cached.model.Run(tokens));
    EXPECT_TRUE(cached.model.Run({{end.slot, end.position, end.token, true}}));
    return std::vector<float>(cached.model.logits(0), cached.model.logits(0) + 50);
  };
  const std::vector<float> one = last(7), other = last(8);
  EXPECT_NE(one, other);
  EXPECT_EQ(last(7), one);
}

TEST(CachedModelTest, MemoryIsThatOfKeysAndValues) {
  RankModel rank(Long(SmallLlama()), ProcessGroups());
  Cached cached(&rank, {kSlots, kContext, 10, 2});
  // 2 layers, keys and values of 2 groups of 8 channels in fp32.
  const int64_t contents = 2 * kSlots * kContext * 2 * 2 * 8 * 4;
  EXPECT_GE(cached.model.cache().bytes(), contents);
  EXPECT_LE(cached.model.cache().bytes(), contents + kSlots * kContext * 4 + 512);
  MemoryLedger planned;
  rank.SizesFor([&](const GeneratorSetup& setup) {
    CachedModel model(setup, cached.limits, Stream::Meta(), &planned);
    EXPECT_EQ(planned.current_bytes(), model.bytes());
    EXPECT_EQ(model.bytes(), cached.model.bytes());
  });
}

TEST(CachedModelTest, MemoryOfStatesDoesNotDependOnTheContext) {
  const auto bytes = [](int64_t context, DType dtype) {
    ModelOptions options = Long(SmallHybrid());
    options.transformer.dtype = dtype;
    RankModel rank(options, ProcessGroups());
    Cached cached(&rank, {kSlots, context, 10, 2});
    EXPECT_EQ(cached.model.cache_bytes(),
              cached.model.cache().bytes() + cached.model.states().bytes());
    MemoryLedger planned;
    rank.SizesFor([&](const GeneratorSetup& setup) {
      CachedModel model(setup, cached.limits, Stream::Meta(), &planned);
      EXPECT_EQ(planned.current_bytes(), model.bytes());
      EXPECT_EQ(model.bytes(), cached.model.bytes());
    });
    return cached.model.states().bytes();
  };
  // The states of 8 heads of Mamba-2, 6 x 8, and of a gated delta net, 6 x 4, in fp32; and 3 inputs
  // of the convolutions of 4 groups, with 16 + 12 and 12 + 8 channels.
  const int64_t states = kSlots * 8 * (6 * 8 + 6 * 4) * 4, inputs = kSlots * 3 * 4 * (28 + 20);
  EXPECT_NEAR(static_cast<double>(bytes(20, DType::kFloat32)),
              static_cast<double>(states + 4 * inputs), 512);
  EXPECT_NEAR(static_cast<double>(bytes(20, DType::kBFloat16)),
              static_cast<double>(states + 2 * inputs), 512);
  EXPECT_EQ(bytes(20, DType::kFloat32), bytes(kContext, DType::kFloat32));
}

// A slot's states are those of its own sequence alone.
TEST(CachedModelTest, ASlotThatIsUsedAgainBeginsAnew) {
  RankModel rank(Long(StatesAlone()), ProcessGroups());
  Cached cached(&rank, {2, kContext, kContext, 1});
  const auto logits = [&](int32_t slot, const Text& text) {
    std::vector<NewToken> tokens;
    for (size_t i = 0; i < text.size(); ++i)
      tokens.push_back({slot, static_cast<int32_t>(i), text[i], i + 1 == text.size()});
    EXPECT_TRUE(cached.model.Run(tokens));
    return std::vector<float>(cached.model.logits(0), cached.model.logits(0) + 50);
  };
  const Text first = RandomText(9, 1), second = RandomText(2, 2);
  const std::vector<float> want = logits(0, second);
  EXPECT_NE(logits(1, first), want);
  EXPECT_EQ(logits(1, second), want);
}

TEST(CachedModelTest, LatentsTakeLessMemoryThanKeysAndValuesOfAllHeads) {
  ModelOptions options = Long(SmallLatent());
  const auto bytes = [](const ModelOptions& of) {
    RankModel rank(of, ProcessGroups());
    Cached cached(&rank, {kSlots, kContext, 10, 2});
    return cached.model.cache().bytes() - kSlots * kContext * 4;
  };
  const TransformerOptions& layer = options.transformer;
  const int64_t places = layer.num_layers * kSlots * kContext * 4;
  const int64_t latents = places * (layer.latent.kv_rank + layer.latent.rotated_size);
  EXPECT_NEAR(static_cast<double>(bytes(options)), static_cast<double>(latents), 512);
  options.transformer.latent.caches_latents = false;
  const int64_t heads =
      places * layer.num_attention_heads * (layer.kv_channels + layer.value_size());
  EXPECT_NEAR(static_cast<double>(bytes(options)), static_cast<double>(heads), 512);
}

// What is computed with a token changes no bit of it.
TEST(CachedModelTest, LogitsOfLatentsAndStatesDoNotDependOnHowATextIsCut) {
  for (const ModelOptions& options : {Long(SmallLatent()), Long(SmallLatentMixture()),
                                      Long(SmallHybrid()), Long(StatesAlone())}) {
    RankModel rank(options, ProcessGroups());
    Cached cached(&rank, {kSlots, kContext, kContext, 1});
    const Text text = RandomText(40, 5), other = RandomText(9, 6);
    const auto token = [&](int32_t slot, int32_t i, bool last) {
      return NewToken{slot, i, text[i], last};
    };
    std::vector<NewToken> whole;
    for (int32_t i = 0; i < 40; ++i) whole.push_back(token(0, i, i == 39));
    ASSERT_TRUE(cached.model.Run(whole));
    const std::vector<float> want(cached.model.logits(0), cached.model.logits(0) + 64);
    for (int32_t i = 0; i < 39;) {
      std::vector<NewToken> part;
      for (const int32_t end = std::min(39, i + 7); i < end; ++i)
        part.push_back(token(1, i, false));
      ASSERT_TRUE(cached.model.Run(part));
    }
    std::vector<NewToken> beside = {token(1, 39, true)};
    for (int32_t i = 0; i < 9; ++i) beside.push_back({2, i, other[i], false});
    ASSERT_TRUE(cached.model.Run(beside));
    EXPECT_EQ(std::vector<float>(cached.model.logits(0), cached.model.logits(0) + 64), want);
  }
}

TEST(CachedModelTest, TensorAndPipelineParallelRanksHaveTheBitsOfWholeTextsToo) {
  for (ModelOptions options : {SmallGpt2(), SmallLlama(), SmallWindowed(), SmallLatent(),
                               SharedGroup(), SmallHybrid(), StatesAlone()}) {
    options = Long(options);
    ParallelSizes sizes;
    sizes.tensor = sizes.pipeline = 2;
    const auto status = RunRanks(4, [&](int, const ProcessGroup& world) -> absl::Status {
      MEGATRON_ASSIGN_OR_RETURN(const RankGrid grid, RankGrid::Create(sizes, 4));
      MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, 4));
      MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                                MakeGroups(grid, expert, world.communicator()));
      RankModel rank(options, groups);
      CheckRandomPortions(&rank, 4);
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(CachedModelTest, HeadsThatAreAloneOnAStagePredictTheBitsOfOneRank) {
  const ModelOptions options = Long(SmallMtp());
  const Text text = RandomText(20, 8);
  RankModel alone(options, ProcessGroups());
  const std::vector<float> want = Whole(&alone).Logits(text);
  ParallelSizes sizes;
  sizes.pipeline = 2;
  const RankGrid grid = *RankGrid::Create(sizes, 2);
  const auto status = RunRanks(2, [&](int, const ProcessGroup& world) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(grid, grid, world.communicator()));
    RankModel rank(options, groups, /*heads_are_alone=*/true);
    EXPECT_EQ(Whole(&rank).Logits(text), want);
    CheckRandomPortions(&rank, 4);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

Text GreedyText(Whole* whole, Text text, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const size_t begin = text.size() > kContext ? text.size() - kContext : 0;
    const std::vector<float> logits = whole->Logits(Text(text.begin() + begin, text.end()));
    text.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.begin() + 50) -
                                        logits.begin()));
  }
  return text;
}

void CheckGreedyTexts(const ModelOptions& options) {
  RankModel rank(options, ProcessGroups());
  const GeneratorLimits limits = {50, kContext};
  StageMemory memory(Device(), rank.SizesFor([&](const GeneratorSetup& setup) {
    TextGenerator(setup, limits, Stream::Meta(), nullptr).Measure();
  }),
                     &rank.ledger);
  TextGenerator generator({&rank.harness.stage(), &memory, nullptr, {}}, limits,
                          rank.harness.stream(), &rank.ledger);
  Whole whole(&rank);
  SamplingOptions greedy;
  greedy.temperature = 0;
  for (const int64_t prompt : {int64_t{1}, int64_t{9}, kContext - 5, kContext + 20}) {
    Text text = RandomText(prompt, static_cast<uint32_t>(prompt));
    const Text want = GreedyText(&whole, text, 12);
    EXPECT_THAT(generator.Generate(greedy, 12, &text, [](int32_t) { return true; }), IsOk());
    EXPECT_EQ(text, want) << prompt;
  }
}

TEST(CachedModelTest, GeneratedTextIsThatOfWholeTextsAlsoBeyondTheContext) {
  CheckGreedyTexts(Long(SmallGpt2()));
  CheckGreedyTexts(Long(SmallLatent()));
  CheckGreedyTexts(Long(SmallHybrid()));
  CheckGreedyTexts(Long(StatesAlone()));
}

// With the cache and without one.
TEST(CachedModelTest, GenerationEndsWhereTheModelGivesNoNumbers) {
  ModelOptions uncached = Long(SmallGpt2());
  uncached.transformer.moe.capacity_factor = 1;  // there are no experts
  for (const ModelOptions& options : {Long(SmallGpt2()), uncached}) {
    RankModel rank(options, ProcessGroups());
    ASSERT_EQ(rank.harness.stage().TakesCache(),
              !options.transformer.moe.capacity_factor.has_value());
    const GeneratorLimits limits = {50, kContext};
    StageMemory memory(Device(), rank.SizesFor([&](const GeneratorSetup& setup) {
      TextGenerator(setup, limits, Stream::Meta(), nullptr).Measure();
    }),
                       &rank.ledger);
    TextGenerator generator({&rank.harness.stage(), &memory, nullptr, {}}, limits,
                            rank.harness.stream(), &rank.ledger);
    bool spoiled = false;
    for (Parameter* const parameter : rank.harness.stage().parameters()) {
      if (parameter->name != "embedding.position_embeddings.weight") continue;
      parameter->data.Select(0, 6).data<float>()[0] = std::nanf("");
      spoiled = true;
    }
    ASSERT_TRUE(spoiled);
    for (const double temperature : {0.0, 1.0}) {
      SamplingOptions sampling;
      sampling.temperature = temperature;
      Text text = {1, 2, 3}, shown = text;
      const auto show = [&](int32_t token) {
        shown.push_back(token);
        return true;
      };
      // The last of these is at position 6, and is not seen.
      EXPECT_THAT(generator.Generate(sampling, 4, &text, show), IsOk());
      EXPECT_THAT(generator.Generate(sampling, 4, &text, show),
                  StatusIs(absl::StatusCode::kInternal, HasSubstr("no numbers")));
      EXPECT_EQ(text.size(), 7u);
      EXPECT_EQ(shown, text);
    }
  }
}

TEST(CachedModelDeathTest, RefusesPositionsThatDoNotFollow) {
  RankModel rank(Long(SmallGpt2()), ProcessGroups());
  Cached cached(&rank, {kSlots, kContext, 10, 2});
  EXPECT_DEATH(cached.model.Run({{0, 0, 1, false}, {0, 2, 1, true}}), "");
  EXPECT_DEATH(cached.model.Run({{1, 0, 1, false}, {0, 0, 1, true}}), "");
  EXPECT_DEATH(cached.model.Run({{kSlots, 0, 1, true}}), "slot 3");
  EXPECT_DEATH(cached.model.Run({{0, kContext, 1, true}}), "position 150");
}

TEST(CachedModelDeathTest, RefusesToGoBackToAStateThatIsGone) {
  RankModel rank(Long(SmallHybrid()), ProcessGroups());
  Cached cached(&rank, {kSlots, kContext, 10, 2});
  ASSERT_TRUE(cached.model.Run({{1, 0, 5, false}, {1, 1, 6, false}, {1, 2, 7, true}}));
  EXPECT_DEATH(cached.model.Run({{1, 1, 6, true}}), "states of 3 tokens");
  EXPECT_DEATH(cached.model.Run({{0, 1, 6, true}}), "states of 0 tokens");
}

}  // namespace
}  // namespace megatron
