#include "megatron/data/all_samples.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;

// Samples of two tokens, of which both are the sample's number.
class Numbers : public SampleSource {
 public:
  Numbers(int32_t first, int64_t size) : first_(first), size_(size) {}
  int64_t size() const override { return size_; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    if (index < 0 || index >= size_) return absl::OutOfRangeError("");
    sample->tokens.assign(2, first_ + static_cast<int32_t>(index));
    sample->loss_mask.assign(2, 1);
    return absl::OkStatus();
  }

 private:
  const int32_t first_;
  const int64_t size_;
};

AllSamples TwoSources(int64_t batch) {
  std::vector<std::unique_ptr<SampleSource>> sources;
  sources.push_back(std::make_unique<Numbers>(0, 3));
  sources.push_back(std::make_unique<Numbers>(10, 2));
  return AllSamples(std::move(sources), batch);
}

TEST(AllSamplesTest, HasEachSampleOnceAndFillsUpTheLastBatchWithWhatDoesNotCount) {
  const AllSamples all = TwoSources(/*batch=*/4);
  EXPECT_EQ(all.num_samples(), 5);
  ASSERT_EQ(all.size(), 8);
  Sample sample;
  std::vector<int32_t> counted;
  for (int64_t i = 0; i < all.size(); ++i) {
    ASSERT_THAT(all.Get(i, &sample), IsOk());
    if (sample.loss_mask[0] > 0) {
      counted.push_back(sample.tokens[0]);
    } else {
      EXPECT_THAT(sample.loss_mask, Each(0));
      EXPECT_EQ(sample.tokens[0], 11);
    }
  }
  EXPECT_THAT(counted, ElementsAre(0, 1, 2, 10, 11));
}

TEST(AllSamplesTest, WholeBatchesAreNotFilledUp) {
  EXPECT_EQ(TwoSources(5).size(), 5);
  EXPECT_EQ(TwoSources(1).size(), 5);
}

TEST(AllSamplesTest, RefusesOtherNumbers) {
  const AllSamples all = TwoSources(4);
  Sample sample;
  for (const int64_t index : {-1, 8}) {
    EXPECT_THAT(all.Get(index, &sample), StatusIs(absl::StatusCode::kOutOfRange));
  }
}

}  // namespace
}  // namespace megatron
