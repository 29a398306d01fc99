#include "megatron/evaluate/packed_requests.h"

#include <numeric>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;

// Each request's tokens begin with another ten.
std::vector<ScoreRequest> Requests(const std::vector<std::pair<int, int64_t>>& sizes) {
  std::vector<ScoreRequest> requests;
  for (const auto& [size, first_scored] : sizes) {
    ScoreRequest& request = requests.emplace_back();
    request.tokens.resize(size);
    std::iota(request.tokens.begin(), request.tokens.end(), 10 * requests.size());
    request.first_scored = first_scored;
  }
  return requests;
}

TEST(PackedRequestsTest, ASampleHoldsWhatFits) {
  const std::vector<ScoreRequest> requests = Requests({{4, 2}, {3, 1}, {7, 6}, {2, 1}});
  const PackedRequests packed(requests, /*seq_length=*/6, /*batch=*/2);
  EXPECT_EQ(packed.size(), 4);  // three are needed
  Sample sample;
  ASSERT_THAT(packed.Get(0, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(10, 11, 12, 20, 21, 0));
  EXPECT_THAT(sample.labels, ElementsAre(11, 12, 13, 21, 22, 0));
  EXPECT_THAT(sample.loss_mask, ElementsAre(0, 1, 1, 1, 1, 0));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 0, 1, 0));
  EXPECT_THAT(sample.document_starts, ElementsAre(0, 3, 5));
  ASSERT_THAT(packed.Get(1, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(30, 31, 32, 33, 34, 35));
  EXPECT_THAT(sample.loss_mask, ElementsAre(0, 0, 0, 0, 0, 1));
  EXPECT_THAT(sample.document_starts, ElementsAre(0));
  ASSERT_THAT(packed.Get(3, &sample), IsOk());
  EXPECT_THAT(sample.loss_mask, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(sample.document_starts, ElementsAre(0));
  EXPECT_EQ(packed.Get(4, &sample).code(), absl::StatusCode::kOutOfRange);
}

TEST(PackedRequestsTest, ScoresGoToTheirRequests) {
  const std::vector<ScoreRequest> requests = Requests({{4, 2}, {3, 1}, {7, 6}, {2, 1}});
  const PackedRequests packed(requests, /*seq_length=*/6, /*batch=*/2);
  std::vector<float> losses(12, 100), hits(12, 0);
  const auto set = [&](size_t at, float loss, bool hit) {
    losses[at] = loss;
    hits[at] = hit ? 1 : 0;
  };
  set(1, 0.5f, true);
  set(2, 0.25f, true);
  set(3, 1, true);
  set(4, 2, false);
  set(11, 4, true);
  std::vector<RequestScore> scores(4);
  packed.AddScores(0, losses, hits, &scores);
  EXPECT_EQ(scores[0].logprob, -0.75);
  EXPECT_TRUE(scores[0].is_greedy);
  EXPECT_EQ(scores[1].logprob, -3);
  EXPECT_FALSE(scores[1].is_greedy);
  EXPECT_EQ(scores[2].logprob, -4);
  EXPECT_TRUE(scores[2].is_greedy);
  EXPECT_EQ(scores[3].logprob, 0);  // it comes with the next batch
  set(0, 8, false);
  packed.AddScores(2, losses, hits, &scores);
  EXPECT_EQ(scores[3].logprob, -8);
  EXPECT_FALSE(scores[3].is_greedy);
}

}  // namespace
}  // namespace megatron
