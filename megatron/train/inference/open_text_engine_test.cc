#include "megatron/train/inference/open_text_engine.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "megatron/train/trainer/inference_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 20;

class Collector : public TextObserver {
 public:
  bool OnToken(const ScoredToken& token) override {
    tokens.push_back(token.token);
    return true;
  }
  void OnEnd(FinishReason, const absl::Status& how) override {
    status = how;
    ended.Notify();
  }

  std::vector<int32_t> tokens;
  absl::Status status;
  absl::Notification ended;
};

class OpenTextEngineTest : public PretrainProgramTest {
 protected:
  absl::StatusOr<std::unique_ptr<ServedModel>> Open(const std::string& name, int tensor = 1,
                                                    int pipeline = 1) const {
    TextEngineOptions options;
    options.checkpoint = Path(name);
    options.tensor_parallel = tensor;
    options.pipeline_parallel = pipeline;
    options.max_batch = 3;
    return OpenTextEngine(PosixFileSystem(), options);
  }

  std::vector<int32_t> Prompt(const Tokenizer& tokenizer) const {
    std::vector<int32_t> tokens;
    EXPECT_THAT(tokenizer.Encode("Sam the", &tokens), IsOk());
    return tokens;
  }

  // The likeliest continuation, by an engine over so many ranks.
  std::vector<int32_t> ByEngine(const std::string& name, int tensor, int pipeline) const {
    const auto model = Open(name, tensor, pipeline);
    EXPECT_THAT(model, IsOk());
    if (!model.ok()) return {};
    EXPECT_EQ((*model)->iteration(), 12);
    EXPECT_GT((*model)->weight_bytes(), 0);
    EXPECT_GT((*model)->cache_bytes(), 0);
    EXPECT_GT((*model)->total_bytes(), (*model)->weight_bytes() + (*model)->cache_bytes());
    TextRequest request;
    request.prompt = Prompt((*model)->tokenizer());
    request.max_new_tokens = kTokens;
    request.sampling.temperature = 0;
    auto told = std::make_shared<Collector>();
    EXPECT_THAT((*model)->engine().Submit(request, told), IsOk());
    told->ended.WaitForNotification();
    EXPECT_THAT(told->status, IsOk());
    return told->tokens;
  }

  // The same by a generator on one rank.
  std::vector<int32_t> ByGenerator(const std::string& name) const {
    const auto model = InferenceModel::Load(PosixFileSystem(), Path(name), 2);
    EXPECT_THAT(model, IsOk());
    if (!model.ok()) return {};
    std::vector<int32_t> text = Prompt((*model)->tokenizer());
    const auto prompt = static_cast<std::ptrdiff_t>(text.size());
    SamplingOptions greedy;
    greedy.temperature = 0;
    EXPECT_THAT(
        (*model)->generator().Generate(greedy, kTokens, &text, [](int32_t) { return true; }),
        IsOk());
    return std::vector<int32_t>(text.begin() + prompt, text.end());
  }
};

TEST_F(OpenTextEngineTest, AnyLayoutOpensInAnyOther) {
  const Arguments many = {"--set=parallel.tensor_model_parallel_size=2",
                          "--set=parallel.pipeline_model_parallel_size=2"};
  for (const auto& [name, layout] : {std::pair("one", Arguments()), std::pair("many", many)}) {
    const Outcome outcome = Run(Joined({SaveTo(name)}, layout));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    const std::vector<int32_t> want = ByGenerator(name);
    ASSERT_EQ(static_cast<int64_t>(want.size()), kTokens);
    for (const auto& [tensor, pipeline] :
         {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)})
      EXPECT_EQ(ByEngine(name, tensor, pipeline), want) << name << " " << tensor << pipeline;
  }
}

TEST_F(OpenTextEngineTest, ExpertsOfLimitedCapacityTakeAllTokens) {
  const Outcome outcome =
      Run({SaveTo("moe"), "--set=model.num_experts=4", "--set=model.disable_bias_linear=true",
           "--set=model.moe_router_topk=2", "--set=model.moe_expert_capacity_factor=1"});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const std::vector<int32_t> one = ByEngine("moe", 1, 1);
  EXPECT_EQ(static_cast<int64_t>(one.size()), kTokens);
  EXPECT_EQ(ByEngine("moe", 2, 1), one);
  EXPECT_FALSE((*Open("moe"))->options().transformer.moe.capacity_factor.has_value());
}

// Layers with states, of both kinds, beside attention and an MLP.
Arguments Hybrid(int mamba_groups) {
  return {"--set=model.num_layers=4",
          "--set=model.hybrid_layer_pattern=MG*-",
          "--set=model.position_embedding_type=none",
          "--set=model.mamba_head_dim=16",
          "--set=model.mamba_state_dim=8",
          absl::StrCat("--set=model.mamba_num_groups=", mamba_groups),
          "--set=model.linear_key_head_dim=8",
          "--set=model.linear_value_head_dim=8",
          "--set=model.linear_num_key_heads=2",
          "--set=model.linear_num_value_heads=4"};
}

TEST_F(OpenTextEngineTest, HybridModelsGoOnWithTheirStates) {
  const Outcome outcome = Run(Joined({SaveTo("hybrid")}, Hybrid(2)));
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const std::vector<int32_t> want = ByGenerator("hybrid");
  ASSERT_EQ(static_cast<int64_t>(want.size()), kTokens);
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2)})
    EXPECT_EQ(ByEngine("hybrid", tensor, pipeline), want) << tensor << pipeline;
  const Outcome whole = Run(Joined({SaveTo("one group")}, Hybrid(1)));
  ASSERT_EQ(whole.exit_code, kExitDone) << whole.output;
  EXPECT_THAT(Open("one group", 2).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 groups of Mamba-2 heads")));
  const Outcome together =
      Run(Joined({SaveTo("together"), "--set=model.mamba_norm_all_groups=true"}, Hybrid(2)));
  ASSERT_EQ(together.exit_code, kExitDone) << together.output;
  const std::vector<int32_t> of_together = ByGenerator("together");
  for (const auto& [tensor, pipeline] : {std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)})
    EXPECT_EQ(ByEngine("together", tensor, pipeline), of_together) << tensor << pipeline;
}

TEST_F(OpenTextEngineTest, WhatCannotBeServedIsRefusedByName) {
  EXPECT_THAT(Open("nothing").status(), StatusIs(absl::StatusCode::kNotFound));
  const Outcome outcome = Run({SaveTo("gpt")});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_THAT(Open("gpt", 3).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("attention heads")));
  EXPECT_THAT(Open("gpt", 1, 50).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("50 pipeline stages")));
  EXPECT_THAT(Open("gpt", 0).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Open("gpt", 10, 10).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 64")));
  TextEngineOptions options;
  options.checkpoint = Path("gpt");
  options.max_context = 1 << 20;
  EXPECT_THAT(OpenTextEngine(PosixFileSystem(), options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("positions")));
  options.max_context = 0;
  options.max_batch = 0;
  EXPECT_THAT(OpenTextEngine(PosixFileSystem(), options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a batch of 0")));
}

TEST_F(OpenTextEngineTest, ABatchBeyondMemoryIsRefusedWithWhatFits) {
  const Outcome outcome = Run({SaveTo("gpt")});
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const auto model = Open("gpt");
  ASSERT_THAT(model, IsOk());
  TextEngineOptions options;
  options.checkpoint = Path("gpt");
  options.max_batch = std::numeric_limits<int>::max();
  EXPECT_THAT(OpenTextEngine(PosixFileSystem(), options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has room for")));
  // Requests take memory, too, and their limits are those of the engine.
  options.max_batch = 3;
  EngineLimits limits;
  options.bytes_of_requests = [&limits](const EngineLimits& of_engine) {
    limits = of_engine;
    return std::numeric_limits<int64_t>::max() / 2;
  };
  EXPECT_THAT(OpenTextEngine(PosixFileSystem(), options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one request of")));
  EXPECT_EQ(limits.max_context, (*model)->engine().limits().max_context);
  EXPECT_EQ(limits.max_queue, options.max_queue);
  options.bytes_of_requests = nullptr;
  options.max_batch = std::numeric_limits<int>::max();
  // All places can be numbered, and no machine has the memory.
  options.max_batch /= static_cast<int>((*model)->engine().limits().max_context);
  for (const int ranks : {1, 2}) {
    options.tensor_parallel = options.pipeline_parallel = ranks;
    EXPECT_THAT(OpenTextEngine(PosixFileSystem(), options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("of memory have room for"), HasSubstr("a request "),
                               HasSubstr("must stay free"))));
  }
}

}  // namespace
}  // namespace megatron
