#include "megatron/evaluate/engine_scores.h"

#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/process_group.h"
#include "megatron/generate/batched_text_engine.h"
#include "megatron/models/cached_model_harness.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kContext = 30;

class Serving {
 public:
  Serving(const ModelOptions& model, int max_batch, int max_queue)
      : options_(Options(max_batch, max_queue)),
        rank_(model, ProcessGroups()),
        cached_(&rank_, BatchedTextEngine::ModelLimits(options_)),
        engine_(options_, &cached_.model, ProcessGroup()),
        thread_([this] { EXPECT_THAT(engine_.Run(), IsOk()); }) {}
  ~Serving() {
    engine_.Stop();
    thread_.join();
  }

  BatchedTextEngine& engine() { return engine_; }

 private:
  static BatchedTextEngineOptions Options(int max_batch, int max_queue) {
    BatchedTextEngineOptions options;
    options.vocab_size = 50;
    options.max_context = kContext;
    options.max_batch = max_batch;
    options.max_queue = max_queue;
    options.max_step_tokens = 23;
    options.max_step_logits = 7;
    return options;
  }

  const BatchedTextEngineOptions options_;
  RankModel rank_;
  Cached cached_;
  BatchedTextEngine engine_;
  std::thread thread_;
};

std::vector<ScoreRequest> RandomRequests(int count) {
  std::mt19937 random(7);
  std::vector<ScoreRequest> requests(count);
  for (size_t i = 0; i < requests.size(); ++i) {
    // The longest ones have a token more than the context.
    const size_t size = i % 5 == 0 ? kContext + 1 : 2 + random() % (kContext - 1);
    for (size_t t = 0; t < size; ++t)
      requests[i].tokens.push_back(static_cast<int32_t>(random() % 50));
    requests[i].first_scored = static_cast<int64_t>(1 + random() % (size - 1));
  }
  return requests;
}

// A request's score alone: the sum of what the engine tells of each of its tokens.
class Collector : public TextObserver {
 public:
  explicit Collector(std::vector<ScoredToken>* tokens) : tokens_(tokens) {}
  void OnPrompt(absl::Span<const ScoredToken> tokens) override {
    tokens_->assign(tokens.begin(), tokens.end());
  }
  bool OnToken(const ScoredToken&) override { return false; }
  void OnEnd(FinishReason, const absl::Status&) override { done.store(true); }

  std::atomic<bool> done{false};

 private:
  std::vector<ScoredToken>* const tokens_;
};

TEST(EngineScoresTest, ScoresAreThoseOfEachRequestAlone) {
  const std::vector<ScoreRequest> requests = RandomRequests(40);
  std::vector<RequestScore> alone(requests.size());
  {
    Serving one(SmallGpt2(), /*max_batch=*/1, /*max_queue=*/1);
    for (size_t i = 0; i < requests.size(); ++i) {
      TextRequest request;
      request.prompt = requests[i].tokens;
      request.max_new_tokens = 0;
      request.score_prompt = true;  // all of it
      std::vector<ScoredToken> tokens;
      const auto collector = std::make_shared<Collector>(&tokens);
      ASSERT_THAT(one.engine().Submit(request, collector), IsOk());
      while (!collector->done.load()) std::this_thread::yield();
      ASSERT_EQ(tokens.size() + 1, requests[i].tokens.size());
      for (size_t t = static_cast<size_t>(requests[i].first_scored) - 1; t < tokens.size(); ++t) {
        alone[i].logprob += tokens[t].logprob;
        alone[i].is_greedy &= tokens[t].is_greedy;
      }
    }
  }
  for (const auto& [engines, batch, queue] :
       {std::tuple(1, 1, 0), {1, 4, 3}, {3, 2, 1}, {1, 7, 256}}) {
    std::deque<Serving> servings;
    std::vector<TextEngine*> pointers;
    for (int e = 0; e < engines; ++e)
      pointers.push_back(&servings.emplace_back(SmallGpt2(), batch, queue).engine());
    int64_t last = 0;
    const auto scores = ScoreByEngines(pointers, requests, [&](int64_t done) {
      EXPECT_GE(done, last);
      last = done;
      return true;
    });
    ASSERT_THAT(scores, IsOk());
    EXPECT_EQ(last, static_cast<int64_t>(requests.size()));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ((*scores)[i].logprob, alone[i].logprob) << i;
      EXPECT_EQ((*scores)[i].is_greedy, alone[i].is_greedy) << i;
    }
  }
}

TEST(EngineScoresTest, ACancelledOneLeavesTheEngineEmpty) {
  Serving serving(SmallGpt2(), 2, 5);
  TextEngine* const engine = &serving.engine();
  EXPECT_THAT(ScoreByEngines({&engine, 1}, RandomRequests(40), [](int64_t) { return false; }),
              StatusIs(absl::StatusCode::kCancelled));
  const EngineState state = engine->state();
  EXPECT_EQ(state.running + state.waiting, 0);
}

TEST(EngineScoresTest, WhatTheEngineRefusesIsAnError) {
  Serving serving(SmallGpt2(), 2, 5);
  TextEngine* const engine = &serving.engine();
  std::vector<ScoreRequest> requests = RandomRequests(6);
  requests[4].tokens[0] = 50;
  EXPECT_THAT(ScoreByEngines({&engine, 1}, requests, [](int64_t) { return true; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token 50")));
  requests = RandomRequests(2);
  requests[1].tokens.assign(kContext + 2, 1);
  EXPECT_THAT(ScoreByEngines({&engine, 1}, requests, [](int64_t) { return true; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32 tokens")));
}

}  // namespace
}  // namespace megatron
