#include "megatron/generate/batched_text_engine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/cached_model_harness.h"
#include "megatron/models/text_generator.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kContext = 60;

ModelOptions Dropless(ModelOptions options) {
  options.transformer.moe.capacity_factor.reset();
  return options;
}

BatchedTextEngineOptions EngineOptions() {
  BatchedTextEngineOptions options;
  options.vocab_size = 50;
  options.max_context = kContext;
  options.max_batch = 4;
  options.max_queue = 8;
  options.max_step_tokens = 20;  // prompts come in several steps
  options.max_step_logits = 6;
  return options;
}

// Collects what is told of a request.
class Collector : public TextObserver {
 public:
  void OnPrompt(absl::Span<const ScoredToken> tokens) override {
    EXPECT_TRUE(this->tokens.empty());
    ++prompts;
    prompt.assign(tokens.begin(), tokens.end());
  }
  bool OnToken(const ScoredToken& token) override {
    tokens.push_back(token);
    if (on_token) on_token();
    return stop_after == 0 || static_cast<int>(tokens.size()) < stop_after;
  }
  void OnEnd(FinishReason why, const absl::Status& how) override {
    reason = why;
    status = how;
    ended.Notify();
  }

  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids;
    for (const ScoredToken& token : tokens) ids.push_back(token.token);
    return ids;
  }

  int stop_after = 0;
  std::function<void()> on_token;
  int prompts = 0;
  std::vector<ScoredToken> prompt, tokens;
  FinishReason reason = FinishReason::kFailed;
  absl::Status status;
  absl::Notification ended;
};

// An engine at work on one rank.
class Serving {
 public:
  explicit Serving(const ModelOptions& model,
                   const BatchedTextEngineOptions& options = EngineOptions())
      : rank_(model, ProcessGroups()),
        cached_(&rank_, BatchedTextEngine::ModelLimits(options)),
        engine_(options, &cached_.model, ProcessGroup()),
        thread_([this] { EXPECT_THAT(engine_.Run(), IsOk()); }) {}
  ~Serving() { Stop(); }

  void Stop() {
    engine_.Stop();
    if (thread_.joinable()) thread_.join();
  }
  BatchedTextEngine& engine() { return engine_; }

  // Spoils what the model adds at a position. To be called before the first request.
  void SpoilPosition(int64_t position) {
    for (Parameter* const parameter : rank_.harness.stage().parameters()) {
      if (parameter->name != "embedding.position_embeddings.weight") continue;
      parameter->data.Select(0, position).data<float>()[0] = std::nanf("");
    }
  }

 private:
  RankModel rank_;
  Cached cached_;
  BatchedTextEngine engine_;
  std::thread thread_;
};

TextRequest RandomRequest(std::mt19937* random) {
  TextRequest request;
  request.prompt.resize(1 + (*random)() % 40);
  for (int32_t& token : request.prompt) token = static_cast<int32_t>((*random)() % 50);
  request.max_new_tokens = static_cast<int64_t>((*random)() % 18);
  request.sampling.temperature = (*random)() % 3 == 0 ? 0 : 1.3;
  request.sampling.top_p = (*random)() % 2 == 0 ? 0 : 0.9;
  request.sampling.top_k = (*random)() % 2 == 0 ? 0 : 12;
  request.sampling.seed = (*random)() % 1000;
  request.top_logprobs = static_cast<int>((*random)() % 4);
  request.score_prompt = (*random)() % 2 == 0;
  return request;
}

void ExpectEqual(const std::vector<ScoredToken>& a, const std::vector<ScoredToken>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token) << i;
    EXPECT_EQ(a[i].logprob, b[i].logprob) << i;
    EXPECT_EQ(a[i].is_greedy, b[i].is_greedy) << i;
    ASSERT_EQ(a[i].top.size(), b[i].top.size());
    for (size_t j = 0; j < a[i].top.size(); ++j) {
      EXPECT_EQ(a[i].top[j].token, b[i].top[j].token);
      EXPECT_EQ(a[i].top[j].logprob, b[i].top[j].logprob);
    }
  }
}

TEST(BatchedTextEngineTest, ARequestIsAnsweredAlikeInAnyCompany) {
  for (const ModelOptions& model :
       {SmallGpt2(), SmallLlama(), Dropless(SmallMixtral()), SmallDeepSeek(), SmallHybrid()}) {
    std::mt19937 random(3);
    std::vector<TextRequest> requests;
    for (int i = 0; i < 12; ++i) requests.push_back(RandomRequest(&random));
    // Alone, in steps of any size.
    BatchedTextEngineOptions whole = EngineOptions();
    whole.max_step_tokens = 64;
    whole.max_step_logits = 64;
    std::vector<std::shared_ptr<Collector>> alone;
    {
      Serving serving(model, whole);
      for (const TextRequest& request : requests) {
        alone.push_back(std::make_shared<Collector>());
        EXPECT_THAT(serving.engine().Submit(request, alone.back()), IsOk());
        alone.back()->ended.WaitForNotification();
      }
    }
    // All at once, in different orders.
    Serving serving(model);
    for (int round = 0; round < 3; ++round) {
      std::vector<size_t> order;
      for (size_t i = 0; i < requests.size(); ++i) order.push_back(i);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Collector>> together(requests.size());
      for (size_t i : order) {
        together[i] = std::make_shared<Collector>();
        EXPECT_THAT(serving.engine().Submit(requests[i], together[i]), IsOk());
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        together[i]->ended.WaitForNotification();
        EXPECT_EQ(together[i]->reason, FinishReason::kLength);
        EXPECT_EQ(together[i]->reason, alone[i]->reason);
        EXPECT_EQ(together[i]->prompts, requests[i].score_prompt ? 1 : 0);
        ExpectEqual(together[i]->prompt, alone[i]->prompt);
        ExpectEqual(together[i]->tokens, alone[i]->tokens);
        EXPECT_EQ(static_cast<int64_t>(together[i]->tokens.size()), requests[i].max_new_tokens);
      }
    }
    EXPECT_EQ(serving.engine().state().finished_requests, 36);
    EXPECT_EQ(serving.engine().state().running, 0);
    EXPECT_EQ(serving.engine().state().waiting, 0);
    EXPECT_FALSE(serving.engine().state().failed);
  }
}

void ExpectTokensOfTheTextGenerator(const ModelOptions& options) {
  RankModel rank(options, ProcessGroups());
  const GeneratorLimits limits = {50, kContext};
  StageMemory memory(Device(), rank.SizesFor([&](const GeneratorSetup& setup) {
    TextGenerator(setup, limits, Stream::Meta(), nullptr).Measure();
  }),
                     &rank.ledger);
  TextGenerator generator({&rank.harness.stage(), &memory, nullptr, {}}, limits,
                          rank.harness.stream(), &rank.ledger);
  Serving serving(options);
  std::mt19937 random(8);
  for (int i = 0; i < 6; ++i) {
    const TextRequest request = RandomRequest(&random);
    std::vector<int32_t> text = request.prompt;
    EXPECT_THAT(generator.Generate(request.sampling, request.max_new_tokens, &text,
                                   [](int32_t) { return true; }),
                IsOk());
    auto told = std::make_shared<Collector>();
    ASSERT_THAT(serving.engine().Submit(request, told), IsOk());
    told->ended.WaitForNotification();
    EXPECT_EQ(told->ids(),
              std::vector<int32_t>(text.begin() + static_cast<int64_t>(request.prompt.size()),
                                   text.end()));
  }
}

TEST(BatchedTextEngineTest, TokensAreThoseOfTheTextGenerator) {
  ExpectTokensOfTheTextGenerator(SmallLlama());
  ExpectTokensOfTheTextGenerator(SmallHybrid());
}

TEST(BatchedTextEngineTest, LogprobsArePromptsAndContinuationsOwn) {
  RankModel rank(SmallGpt2(), ProcessGroups());
  Cached cached(&rank, {1, kContext, kContext, kContext});
  TextRequest request;
  request.prompt = {3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7};
  request.max_new_tokens = 5;
  request.score_prompt = true;
  request.top_logprobs = 2;
  auto told = std::make_shared<Collector>();
  {
    Serving serving(SmallGpt2());
    ASSERT_THAT(serving.engine().Submit(request, told), IsOk());
    told->ended.WaitForNotification();
  }
  std::vector<int32_t> text = request.prompt;
  for (int32_t token : told->ids()) text.push_back(token);
  std::vector<NewToken> tokens;
  for (size_t i = 0; i < text.size(); ++i)
    tokens.push_back({0, static_cast<int32_t>(i), text[i], true});
  ASSERT_TRUE(cached.model.Run(tokens));
  std::vector<ScoredToken> scored = told->prompt;
  scored.insert(scored.end(), told->tokens.begin(), told->tokens.end());
  ASSERT_EQ(scored.size(), text.size() - 1);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const float* const logits = cached.model.logits(static_cast<int64_t>(i));
    double sum = 0;
    for (int v = 0; v < 50; ++v) sum += std::exp(double{logits[v]});
    EXPECT_EQ(scored[i].token, text[i + 1]);
    EXPECT_NEAR(scored[i].logprob, logits[text[i + 1]] - std::log(sum), 3e-6) << i;
    EXPECT_EQ(scored[i].is_greedy, scored[i].top[0].logprob == scored[i].logprob) << i;
    EXPECT_EQ(scored[i].top[0].token, std::max_element(logits, logits + 50) - logits);
  }
}

TEST(BatchedTextEngineTest, ATextEndsForEachReason) {
  Serving serving(SmallGpt2());
  TextRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 1000;
  auto full = std::make_shared<Collector>();
  ASSERT_THAT(serving.engine().Submit(request, full), IsOk());
  full->ended.WaitForNotification();
  EXPECT_EQ(full->reason, FinishReason::kLength);
  EXPECT_EQ(full->tokens.size(), 57u);

  auto stopped = std::make_shared<Collector>();
  stopped->stop_after = 4;
  ASSERT_THAT(serving.engine().Submit(request, stopped), IsOk());
  stopped->ended.WaitForNotification();
  EXPECT_EQ(stopped->reason, FinishReason::kObserver);
  EXPECT_EQ(stopped->tokens.size(), 4u);

  const std::vector<int32_t> ids = full->ids();
  request.end_tokens = {49, ids[6]};
  const size_t first = std::find_first_of(ids.begin(), ids.end(), request.end_tokens.begin(),
                                          request.end_tokens.end()) -
                       ids.begin();
  auto ended = std::make_shared<Collector>();
  ASSERT_THAT(serving.engine().Submit(request, ended), IsOk());
  ended->ended.WaitForNotification();
  EXPECT_EQ(ended->reason, FinishReason::kEndToken);
  EXPECT_EQ(ended->tokens.size(), first + 1);

  request.end_tokens.clear();
  request.prompt.assign(kContext, 7);
  auto none = std::make_shared<Collector>();
  ASSERT_THAT(serving.engine().Submit(request, none), IsOk());
  none->ended.WaitForNotification();
  EXPECT_EQ(none->reason, FinishReason::kLength);
  EXPECT_TRUE(none->tokens.empty());

  request.prompt = {1, 2, 3};
  request.deadline = SteadyNow() + absl::Hours(1);
  auto timely = std::make_shared<Collector>();
  ASSERT_THAT(serving.engine().Submit(request, timely), IsOk());
  timely->ended.WaitForNotification();
  EXPECT_EQ(timely->reason, FinishReason::kLength);

  request.deadline = SteadyNow() - absl::Seconds(1);
  auto late = std::make_shared<Collector>();
  ASSERT_THAT(serving.engine().Submit(request, late), IsOk());
  late->ended.WaitForNotification();
  EXPECT_EQ(late->reason, FinishReason::kDeadline);
}

TEST(BatchedTextEngineTest, ATextForWhichTheModelGivesNoNumbersFailsAlone) {
  Serving serving(SmallGpt2());
  serving.SpoilPosition(6);
  TextRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 4;  // the last of them is at position 6, and is not seen
  request.sampling.temperature = 1;
  TextRequest longer = request, scored = request;
  longer.max_new_tokens = 30;
  scored.prompt.assign(12, 5);
  scored.max_new_tokens = 0;
  scored.score_prompt = true;
  std::vector<int32_t> ids;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Collector>> told;
    for (const TextRequest& one : {longer, request, scored}) {
      told.push_back(std::make_shared<Collector>());
      ASSERT_THAT(serving.engine().Submit(one, told.back()), IsOk());
    }
    for (const auto& one : told) one->ended.WaitForNotification();
    EXPECT_EQ(told[1]->reason, FinishReason::kLength);
    EXPECT_EQ(told[1]->tokens.size(), 4u);
    for (const size_t i : {0, 2}) {
      EXPECT_EQ(told[i]->reason, FinishReason::kFailed);
      EXPECT_THAT(told[i]->status, StatusIs(absl::StatusCode::kInternal, HasSubstr("no numbers")));
    }
    EXPECT_EQ(told[0]->ids(), told[1]->ids());
    EXPECT_EQ(told[2]->prompts, 0);
    // Those in whose place it was do not see what it left.
    if (round == 0) ids = told[1]->ids();
    EXPECT_EQ(told[1]->ids(), ids);
  }
  const EngineState state = serving.engine().state();
  EXPECT_FALSE(state.failed);
  EXPECT_EQ(state.running, 0);
  EXPECT_EQ(state.generated_tokens, 16);
}

TEST(BatchedTextEngineTest, RequestsCanBeCancelledAndTheQueueIsLimited) {
  Serving serving(SmallGpt2());
  BatchedTextEngine& engine = serving.engine();
  // The first request's observer holds up the engine while the others come.
  absl::Notification started, go_on;
  auto first = std::make_shared<Collector>();
  first->on_token = [&] {
    if (!started.HasBeenNotified()) started.Notify();
    go_on.WaitForNotification();
  };
  TextRequest request;
  request.prompt = {4, 5};
  request.max_new_tokens = 8;
  ASSERT_THAT(engine.Submit(request, first), IsOk());
  started.WaitForNotification();
  std::vector<std::shared_ptr<Collector>> others;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 3 + 8; ++i) {
    others.push_back(std::make_shared<Collector>());
    const auto id = engine.Submit(request, others.back());
    ASSERT_THAT(id, IsOk()) << i;
    ids.push_back(*id);
  }
  EXPECT_THAT(engine.Submit(request, std::make_shared<Collector>()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("8 wait")));
  EXPECT_EQ(engine.state().running, 1);
  EXPECT_EQ(engine.state().waiting, 11);
  engine.Cancel(ids[1]);
  engine.Cancel(ids[10]);
  engine.Cancel(12345);
  go_on.Notify();
  first->ended.WaitForNotification();
  for (size_t i = 0; i < others.size(); ++i) {
    others[i]->ended.WaitForNotification();
    const bool cancelled = i == 1 || i == 10;
    EXPECT_EQ(others[i]->reason, cancelled ? FinishReason::kCancelled : FinishReason::kLength);
    EXPECT_EQ(others[i]->ids(), cancelled ? std::vector<int32_t>() : others[0]->ids());
  }
  EXPECT_EQ(first->ids(), others[0]->ids());
  engine.Cancel(ids[0]);  // has ended
  EXPECT_THAT(engine.Submit(request, std::make_shared<Collector>()), IsOk());
}

TEST(BatchedTextEngineTest, ACancelledRequestGivesItsPlaceBackAtOnce) {
  Serving serving(SmallGpt2());
  BatchedTextEngine& engine = serving.engine();
  // A step goes on until all is said.
  absl::Notification started, go_on;
  auto first = std::make_shared<Collector>();
  first->on_token = [&] {
    if (!started.HasBeenNotified()) started.Notify();
    go_on.WaitForNotification();
  };
  TextRequest request;
  request.prompt = {4, 5};
  request.max_new_tokens = 8;
  const auto running = engine.Submit(request, first);
  ASSERT_THAT(running, IsOk());
  started.WaitForNotification();
  std::vector<std::shared_ptr<Collector>> others;
  std::vector<uint64_t> ids;
  const auto submit = [&] {
    others.push_back(std::make_shared<Collector>());
    const auto id = engine.Submit(request, others.back());
    if (id.ok()) ids.push_back(*id);
    return id.status();
  };
  for (int i = 0; i < 3 + 8; ++i) ASSERT_THAT(submit(), IsOk()) << i;
  EXPECT_THAT(submit(), StatusIs(absl::StatusCode::kResourceExhausted));
  others.pop_back();
  for (size_t i = 3; i < 11; ++i) {
    engine.Cancel(ids[i]);
    engine.Cancel(ids[i]);
  }
  EXPECT_EQ(engine.state().waiting, 3);
  for (int i = 0; i < 8; ++i) EXPECT_THAT(submit(), IsOk()) << i;
  EXPECT_THAT(submit(), StatusIs(absl::StatusCode::kResourceExhausted));
  others.pop_back();
  // One that runs will leave before the next step.
  engine.Cancel(*running);
  EXPECT_THAT(submit(), IsOk());
  EXPECT_THAT(submit(), StatusIs(absl::StatusCode::kResourceExhausted));
  others.pop_back();
  go_on.Notify();
  first->ended.WaitForNotification();
  EXPECT_EQ(first->reason, FinishReason::kCancelled);
  for (size_t i = 0; i < others.size(); ++i) {
    others[i]->ended.WaitForNotification();
    EXPECT_EQ(others[i]->reason,
              i >= 3 && i < 11 ? FinishReason::kCancelled : FinishReason::kLength)
        << i;
  }
}

TEST(BatchedTextEngineTest, AStoppedEngineEndsItsRequestsAndTakesNoMore) {
  Serving serving(SmallGpt2());
  absl::Notification started;
  auto told = std::make_shared<Collector>();
  told->on_token = [&] {
    if (started.HasBeenNotified()) return;
    serving.engine().Stop();
    started.Notify();
  };
  TextRequest request;
  request.prompt = {4, 5};
  request.max_new_tokens = 50;
  ASSERT_THAT(serving.engine().Submit(request, told), IsOk());
  told->ended.WaitForNotification();
  EXPECT_EQ(told->reason, FinishReason::kFailed);
  EXPECT_THAT(told->status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(serving.engine().state().failed);
  serving.Stop();
  EXPECT_THAT(serving.engine().Submit(request, told), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(BatchedTextEngineTest, RequestsBeyondTheLimitsAreRefused) {
  Serving serving(SmallGpt2());
  const auto refused = [&](const std::function<void(TextRequest*)>& change, const char* why) {
    TextRequest request;
    request.prompt = {1};
    change(&request);
    EXPECT_THAT(serving.engine().Submit(request, std::make_shared<Collector>()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused([](TextRequest* r) { r->prompt.clear(); }, "has no tokens");
  refused([](TextRequest* r) { r->prompt.assign(61, 1); }, "61 tokens, and the context is 60");
  refused([](TextRequest* r) { r->prompt = {50}; }, "token 50");
  refused([](TextRequest* r) { r->prompt = {-1}; }, "token -1");
  refused([](TextRequest* r) { r->max_new_tokens = -1; }, "max_new_tokens");
  refused([](TextRequest* r) { r->top_logprobs = 21; }, "0 to 20");
  refused([](TextRequest* r) { r->sampling.temperature = -1; }, "temperature");
  refused([](TextRequest* r) { r->sampling.temperature = std::nan(""); }, "temperature");
  refused([](TextRequest* r) { r->sampling.top_p = 1.5; }, "top_p");
  refused([](TextRequest* r) { r->sampling.top_k = -2; }, "top_k");
}

// Runs `fn` with an engine over 2 tensor-parallel x 2 pipeline-parallel ranks; rank `lost` leaves
// at once.
absl::Status OverFourRanks(const ModelOptions& options, int lost,
                           const std::function<void(BatchedTextEngine*)>& fn) {
  ParallelSizes sizes;
  sizes.tensor = sizes.pipeline = 2;
  return RunRanks(4, [&](int r, const ProcessGroup& world) -> absl::Status {
    MEGATRON_ASSIGN_OR_RETURN(const RankGrid grid, RankGrid::Create(sizes, 4));
    MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, 4));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(grid, expert, world.communicator()));
    RankModel rank(options, groups);
    Cached cached(&rank, BatchedTextEngine::ModelLimits(EngineOptions()));
    if (r == lost) return absl::UnavailableError("this rank is lost");
    if (r > 0) return FollowTextEngine(&cached.model, world);
    BatchedTextEngine engine(EngineOptions(), &cached.model, world);
    std::thread user([&] {
      fn(&engine);
      engine.Stop();
    });
    const absl::Status status = engine.Run();
    user.join();
    return status;
  });
}

TEST(BatchedTextEngineTest, ManyRanksAnswerAlikeInAnyCompany) {
  std::mt19937 random(5);
  std::vector<TextRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(RandomRequest(&random));
  const auto answer_twice = [&](BatchedTextEngine* engine) {
    std::vector<std::shared_ptr<Collector>> alone, together;
    for (const TextRequest& request : requests) {
      alone.push_back(std::make_shared<Collector>());
      EXPECT_THAT(engine->Submit(request, alone.back()), IsOk());
      alone.back()->ended.WaitForNotification();
    }
    for (const TextRequest& request : requests) {
      together.push_back(std::make_shared<Collector>());
      EXPECT_THAT(engine->Submit(request, together.back()), IsOk());
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      together[i]->ended.WaitForNotification();
      EXPECT_EQ(together[i]->reason, FinishReason::kLength);
      ExpectEqual(together[i]->prompt, alone[i]->prompt);
      ExpectEqual(together[i]->tokens, alone[i]->tokens);
    }
  };
  for (const ModelOptions& model : {SmallLlama(), SmallHybrid()})
    EXPECT_THAT(OverFourRanks(model, /*lost=*/-1, answer_twice), IsOk());
}

TEST(BatchedTextEngineTest, ALostRankFailsAllRequests) {
  auto told = std::make_shared<Collector>();
  EXPECT_THAT(OverFourRanks(SmallLlama(), /*lost=*/3,
                            [&](BatchedTextEngine* engine) {
                              TextRequest request;
                              request.prompt = {1, 2, 3};
                              // Refused where the loss is known already.
                              if (!engine->Submit(request, told).ok()) return;
                              told->ended.WaitForNotification();
                              EXPECT_EQ(told->reason, FinishReason::kFailed);
                              EXPECT_FALSE(told->status.ok());
                              EXPECT_TRUE(engine->state().failed);
                            }),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("this rank is lost")));
}

}  // namespace
}  // namespace megatron
