#include "megatron/data/io/ordered_pipeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

// Builds a pipeline that squares the numbers below `count`.
class OrderedPipelineTest : public testing::Test {
 protected:
  OrderedPipeline Squares(int count, int workers, size_t slots) {
    items_.assign(slots, 0);
    OrderedPipeline pipeline;
    pipeline.workers = workers;
    pipeline.slots = slots;
    pipeline.fetch = [this, count](size_t slot) -> absl::StatusOr<int64_t> {
      if (fetched_ == count) return 0;
      items_[slot] = fetched_++;
      return 1;
    };
    pipeline.work = [this](size_t slot) {
      if (items_[slot] % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      items_[slot] *= items_[slot];
    };
    pipeline.take = [this](size_t slot) {
      taken_.push_back(items_[slot]);
      return absl::OkStatus();
    };
    pipeline.tick = [] { return absl::OkStatus(); };
    pipeline.stop_fetching = [this] { stopped_ = true; };
    return pipeline;
  }

  void ExpectSquares(int count) const {
    ASSERT_EQ(static_cast<int>(taken_.size()), count);
    for (int i = 0; i < count; ++i) EXPECT_EQ(taken_[i], int64_t{i} * i);
  }

  std::vector<int64_t> items_;
  int fetched_ = 0;
  std::vector<int64_t> taken_;
  std::atomic<bool> stopped_{false};
};

TEST_F(OrderedPipelineTest, ItemsAreTakenInTheOrderOfTheFetches) {
  for (const int workers : {1, 2, 5}) {
    for (const size_t slots : {1, 2, 12}) {
      fetched_ = 0;
      taken_.clear();
      ASSERT_THAT(RunOrderedPipeline(Squares(500, workers, slots)), IsOk());
      ExpectSquares(500);
    }
  }
  EXPECT_FALSE(stopped_);
}

TEST_F(OrderedPipelineTest, NoItemsAreNoError) {
  ASSERT_THAT(RunOrderedPipeline(Squares(0, 3, 4)), IsOk());
  ExpectSquares(0);
}

TEST_F(OrderedPipelineTest, ItemsBeforeAFailedFetchAreTaken) {
  OrderedPipeline pipeline = Squares(100, 3, 8);
  const auto fetch = pipeline.fetch;
  pipeline.fetch = [&](size_t slot) -> absl::StatusOr<int64_t> {
    if (fetched_ == 50) return absl::DataLossError("damaged");
    return fetch(slot);
  };
  EXPECT_THAT(RunOrderedPipeline(pipeline), StatusIs(absl::StatusCode::kDataLoss));
  ExpectSquares(50);
}

TEST_F(OrderedPipelineTest, AFailedTakeEndsThePipeline) {
  OrderedPipeline pipeline = Squares(100000, 3, 8);
  const auto take = pipeline.take;
  pipeline.take = [&](size_t slot) {
    return taken_.size() == 20 ? absl::ResourceExhaustedError("full") : take(slot);
  };
  EXPECT_THAT(RunOrderedPipeline(pipeline), StatusIs(absl::StatusCode::kResourceExhausted));
  ExpectSquares(20);
  EXPECT_TRUE(stopped_);
  EXPECT_LT(fetched_, 100);
}

TEST_F(OrderedPipelineTest, AFailedTickEndsAWaitingFetch) {
  OrderedPipeline pipeline = Squares(0, 2, 4);
  pipeline.fetch = [this](size_t) -> absl::StatusOr<int64_t> {
    while (!stopped_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::CancelledError("stopped");
  };
  pipeline.tick = [] { return absl::AbortedError("enough"); };
  EXPECT_THAT(RunOrderedPipeline(pipeline), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(OrderedPipelineTest, HeavyItemsAreProcessedAlone) {
  OrderedPipeline pipeline = Squares(50, 2, 8);
  std::atomic<int> under_way{0}, most{0};
  const auto fetch = pipeline.fetch;
  const auto take = pipeline.take;
  pipeline.max_weight = 100;
  pipeline.fetch = [&](size_t slot) -> absl::StatusOr<int64_t> {
    const absl::StatusOr<int64_t> weight = fetch(slot);
    if (!weight.ok() || *weight == 0) return weight;
    most = std::max<int>(most, ++under_way);
    return 1000;
  };
  pipeline.take = [&](size_t slot) {
    --under_way;
    return take(slot);
  };
  ASSERT_THAT(RunOrderedPipeline(pipeline), IsOk());
  ExpectSquares(50);
  EXPECT_EQ(most, 1);
}

}  // namespace
}  // namespace megatron
