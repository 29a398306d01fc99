#include "megatron/serve/serial_text_engine.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Keeps what it is told.
class Listener : public TextObserver {
 public:
  explicit Listener(size_t most = 1000) : most_(most) {}
  void OnPrompt(absl::Span<const ScoredToken> tokens) override {
    prompt.assign(tokens.begin(), tokens.end());
  }
  bool OnToken(const ScoredToken& token) override {
    tokens.push_back(token);
    return tokens.size() < most_;
  }
  void OnEnd(FinishReason why, const absl::Status& told) override {
    reason = why;
    status = told;
    ended.Notify();
  }

  std::vector<int32_t> Ids() const {
    std::vector<int32_t> ids;
    for (const ScoredToken& token : tokens) ids.push_back(token.token);
    return ids;
  }

  std::vector<ScoredToken> prompt, tokens;
  FinishReason reason = FinishReason::kFailed;
  absl::Status status;
  absl::Notification ended;

 private:
  const size_t most_;
};

// The likeliest token after t is t + 1, of eight.
class SerialTextEngineTest : public ::testing::Test {
 protected:
  SerialTextEngineTest()
      : engine_({8, 10, 4, 2, 3}, [this](absl::Span<const int32_t> tokens, int64_t at) {
          while (held_) absl::SleepFor(absl::Milliseconds(1));
          logits_.assign(8, 0);
          logits_[(tokens[at] + 1) % 8] = 2;
          logits_[(tokens[at] + 2) % 8] = 1;
          if (tokens[at] == spoiled_) logits_[0] = std::nanf("");
          return absl::MakeConstSpan(logits_);
        }) {}
  ~SerialTextEngineTest() override { held_ = false; }

  static TextRequest Greedy(std::vector<int32_t> prompt, int64_t count) {
    TextRequest request;
    request.prompt = std::move(prompt);
    request.max_new_tokens = count;
    request.sampling.temperature = 0;
    return request;
  }

  std::shared_ptr<Listener> Run(const TextRequest& request, size_t most = 1000) {
    auto listener = std::make_shared<Listener>(most);
    EXPECT_THAT(engine_.Submit(request, listener), ::absl_testing::IsOk());
    listener->ended.WaitForNotification();
    return listener;
  }

  std::atomic<bool> held_{false};
  std::atomic<int32_t> spoiled_{-1};  // the token behind which a logit is NaN
  std::vector<float> logits_;
  SerialTextEngine engine_;
};

TEST_F(SerialTextEngineTest, ContinuesUntilTheCountTheContextAnEndTokenOrTheObserver) {
  auto listener = Run(Greedy({1}, 3));
  EXPECT_THAT(listener->Ids(), ElementsAre(2, 3, 4));
  EXPECT_EQ(listener->reason, FinishReason::kLength);
  listener = Run(Greedy({0, 0, 0, 0, 0, 0, 0, 1}, 9));
  EXPECT_THAT(listener->Ids(), ElementsAre(2, 3));
  EXPECT_EQ(listener->reason, FinishReason::kLength);
  TextRequest request = Greedy({1}, 9);
  request.end_tokens = {7, 3};
  listener = Run(request);
  EXPECT_THAT(listener->Ids(), ElementsAre(2, 3));
  EXPECT_EQ(listener->reason, FinishReason::kEndToken);
  listener = Run(Greedy({1}, 9), 1);
  EXPECT_THAT(listener->Ids(), ElementsAre(2));
  EXPECT_EQ(listener->reason, FinishReason::kObserver);
  const EngineState state = engine_.state();
  EXPECT_EQ(state.generated_tokens, 8);
  EXPECT_EQ(state.prompt_tokens, 11);
}

TEST_F(SerialTextEngineTest, ScoresThePromptAndWhatFollows) {
  TextRequest request = Greedy({1, 2, 7}, 1);
  request.score_prompt = true;
  request.top_logprobs = 2;
  const auto listener = Run(request);
  const double sum = std::exp(2.0) + std::exp(1.0) + 6;
  ASSERT_EQ(listener->prompt.size(), 2u);
  EXPECT_TRUE(listener->prompt[0].is_greedy);
  EXPECT_FLOAT_EQ(listener->prompt[0].logprob, 2 - std::log(sum));
  EXPECT_FALSE(listener->prompt[1].is_greedy);
  EXPECT_FLOAT_EQ(listener->prompt[1].logprob, -std::log(sum));
  ASSERT_EQ(listener->prompt[1].top.size(), 2u);
  EXPECT_EQ(listener->prompt[1].top[0].token, 3);
  EXPECT_EQ(listener->prompt[1].top[1].token, 4);
  ASSERT_EQ(listener->tokens.size(), 1u);
  EXPECT_EQ(listener->tokens[0].token, 0);
  EXPECT_EQ(listener->tokens[0].logprob, listener->tokens[0].top[0].logprob);
}

TEST_F(SerialTextEngineTest, OneWorksTwoWaitAndTheNextIsRefused) {
  held_ = true;
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    while (i == 1 && engine_.state().running == 0) absl::SleepFor(absl::Milliseconds(1));
    const auto id = engine_.Submit(Greedy({1}, 2), listeners.back());
    ASSERT_THAT(id, ::absl_testing::IsOk());
    ids.push_back(*id);
  }
  EXPECT_THAT(engine_.Submit(Greedy({1}, 2), listeners[0]),
              StatusIs(absl::StatusCode::kResourceExhausted));
  engine_.Cancel(ids[0]);
  engine_.Cancel(ids[2]);
  engine_.Cancel(12345);
  held_ = false;
  for (const auto& listener : listeners) listener->ended.WaitForNotification();
  EXPECT_EQ(listeners[0]->reason, FinishReason::kCancelled);
  EXPECT_EQ(listeners[1]->reason, FinishReason::kLength);
  EXPECT_EQ(listeners[2]->reason, FinishReason::kCancelled);
  EXPECT_TRUE(listeners[2]->tokens.empty());
}

TEST_F(SerialTextEngineTest, RefusesWhatIsBeyondItsLimitsAndEndsAtTheDeadline) {
  const auto listener = std::make_shared<Listener>();
  TextRequest many = Greedy({1}, 1);
  many.top_logprobs = 4;
  for (const TextRequest& request : {Greedy({}, 1), Greedy({8}, 1), Greedy({-1}, 1),
                                     Greedy(std::vector<int32_t>(11), 1), many}) {
    EXPECT_THAT(engine_.Submit(request, listener), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  TextRequest timely = Greedy({1}, 1);
  timely.deadline = SteadyNow() + absl::Hours(1);
  EXPECT_EQ(Run(timely)->reason, FinishReason::kLength);
  TextRequest late = Greedy({1}, 1);
  late.deadline = SteadyNow() - absl::Seconds(1);
  EXPECT_EQ(Run(late)->reason, FinishReason::kDeadline);
}

TEST_F(SerialTextEngineTest, ATextForWhichTheModelGivesNoNumbersFailsAlone) {
  spoiled_ = 5;
  TextRequest scored = Greedy({5, 6}, 0);
  scored.score_prompt = true;
  for (const TextRequest& request : {Greedy({3}, 9), scored}) {
    const auto listener = Run(request);
    EXPECT_EQ(listener->reason, FinishReason::kFailed);
    EXPECT_THAT(listener->status, StatusIs(absl::StatusCode::kInternal, HasSubstr("no numbers")));
    EXPECT_TRUE(listener->prompt.empty());
  }
  EXPECT_THAT(Run(Greedy({3}, 2))->Ids(), ElementsAre(4, 5));
  EXPECT_FALSE(engine_.state().failed);
}

TEST_F(SerialTextEngineTest, EqualSeedsDrawEqualTokens) {
  TextRequest request = Greedy({1}, 9);
  request.sampling.temperature = 3;
  request.sampling.seed = 5;
  const auto first = Run(request)->Ids();
  EXPECT_EQ(Run(request)->Ids(), first);
  request.sampling.seed = 6;
  EXPECT_NE(Run(request)->Ids(), first);
}

}  // namespace
}  // namespace megatron
