// Scores requests on layouts and on one rank, packed and alone.

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/evaluate/packed_requests.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr int64_t kLength = CountingSource::kLength, kBatch = 8;

// Requests of 2 tokens up to one more than the context.
std::vector<ScoreRequest> Requests() {
  std::mt19937 random(11);
  std::vector<ScoreRequest> requests(50);
  for (ScoreRequest& request : requests) {
    const int64_t size = 2 + random() % kLength;
    for (int64_t i = 0; i < size; ++i)
      request.tokens.push_back(static_cast<int32_t>(random() % 50));
    request.first_scored = static_cast<int64_t>(1 + random() % (size - 1));
  }
  return requests;
}

std::vector<RequestScore> Score(const ModelOptions& model, const Layout& layout,
                                const std::vector<ScoreRequest>& requests,
                                const PackedRequests& packed) {
  SCOPED_TRACE(ToString(layout));
  TrainerOptions options = TinyRun(model, OptimizerOptions::kSgd);
  options.scores_tokens = true;
  LayoutRun how;
  how.layout = layout;
  how.steps = 3;
  how.scored = &packed;
  const LayoutOutcome outcome = TrainOnLayout(options, how, CountingSource());
  std::vector<RequestScore> scores(requests.size());
  EXPECT_EQ(static_cast<int64_t>(outcome.token_losses.size()), packed.size() * kLength);
  packed.AddScores(0, outcome.token_losses, outcome.token_hits, &scores);
  return scores;
}

std::vector<RequestScore> ScorePacked(const ModelOptions& model, const Layout& layout) {
  const std::vector<ScoreRequest> requests = Requests();
  return Score(model, layout, requests, PackedRequests(requests, kLength, kBatch));
}

void ExpectSame(const std::vector<RequestScore>& got, const std::vector<RequestScore>& want) {
  ASSERT_EQ(got.size(), want.size());
  double differs_from_first = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].logprob, want[i].logprob, 2e-5 * std::abs(want[i].logprob)) << i;
    EXPECT_EQ(got[i].is_greedy, want[i].is_greedy) << i;
    differs_from_first += std::abs(want[i].logprob - want[0].logprob);
  }
  EXPECT_GT(differs_from_first, 1);
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts(12);
  layouts[0].tensor = 2;
  layouts[1].tensor = 2;
  layouts[1].sequence_parallel = true;
  layouts[1].data = 2;
  layouts[2].pipeline = 2;
  layouts[2].chunks = 2;
  layouts[3].pipeline = 2;
  layouts[3].chunks = 2;
  layouts[3].schedule = ScheduleKind::kZeroBubbleV;
  layouts[4].data = 2;
  layouts[4].sharding = DataSharding::kWeights;
  layouts[4].overlap = true;
  layouts[5].data = 3;  // the batch does not divide
  layouts[6].context = 2;
  layouts[6].micro_batch_size = 2;
  layouts[7].context = 2;
  layouts[7].context_parallel = ContextParallel::kAllToAll;
  layouts[8].context = 2;
  layouts[8].context_parallel = ContextParallel::kGather;
  layouts[9].tensor = 2;
  layouts[9].context = 2;
  layouts[9].pipeline = 2;
  layouts[10].tensor = 4;
  layouts[10].tensor_side = 2;
  layouts[10].micro_batch_size = 2;
  layouts[11].tensor = 8;
  layouts[11].tensor_side = 2;
  layouts[11].tensor_depth = 2;
  layouts[11].tensor_cube = true;
  layouts[11].micro_batch_size = 4;
  return layouts;
}

TEST(ScoreTokensLayoutTest, EveryLayoutScoresAsOneRankDoes) {
  const std::vector<RequestScore> one = ScorePacked(SmallLlama(), {});
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    ExpectSame(ScorePacked(SmallLlama(), layout), one);
  }
}

TEST(ScoreTokensLayoutTest, LearnedPositionsAndLogitsInChunks) {
  ModelOptions chunked = SmallGpt2();
  chunked.logits_chunk = 6;
  Layout layout;
  layout.tensor = 2;
  layout.data = 2;
  const std::vector<RequestScore> one = ScorePacked(SmallGpt2(), {});
  ExpectSame(ScorePacked(SmallGpt2(), layout), one);
  ExpectSame(ScorePacked(chunked, layout), one);
}

// A request's scores are the same bits whatever shares its sample.
TEST(ScoreTokensLayoutTest, PackedRequestsScoreAsEachDoesAlone) {
  const std::vector<ScoreRequest> requests = Requests();
  for (const ModelOptions& model : {SmallLlama(), SmallGpt2()}) {
    const std::vector<RequestScore> packed = ScorePacked(model, {});
    for (size_t i = 0; i < requests.size(); i += 7) {
      const std::vector<ScoreRequest> one = {requests[i]};
      const std::vector<RequestScore> alone =
          Score(model, {}, one, PackedRequests(one, kLength, kBatch));
      EXPECT_EQ(alone[0].logprob, packed[i].logprob) << i;
      EXPECT_EQ(alone[0].is_greedy, packed[i].is_greedy) << i;
    }
  }
}

}  // namespace
}  // namespace megatron
