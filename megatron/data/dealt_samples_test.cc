#include "megatron/data/dealt_samples.h"

#include <memory>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

// The samples have their number as their only token.
class Numbers : public SampleSource {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    sample->tokens = {static_cast<int32_t>(index)};
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
};

std::vector<int> All(int64_t size, int64_t batch, int64_t run, int64_t runs) {
  const DealtSamples dealt(std::make_unique<Numbers>(size), batch, run, runs);
  std::vector<int> all;
  Sample sample;
  for (int64_t i = 0; i < dealt.size(); ++i) {
    EXPECT_EQ(dealt.Get(i, &sample), absl::OkStatus());
    all.push_back(static_cast<int>(sample.tokens[0]));
  }
  EXPECT_EQ(dealt.Get(dealt.size(), &sample).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(dealt.Get(-1, &sample).code(), absl::StatusCode::kOutOfRange);
  return all;
}

TEST(DealtSamplesTest, RunsTakeTurnsBatchByBatch) {
  EXPECT_EQ(All(12, 2, 0, 3), (std::vector<int>{0, 1, 6, 7}));
  EXPECT_EQ(All(12, 2, 1, 3), (std::vector<int>{2, 3, 8, 9}));
  EXPECT_EQ(All(12, 2, 2, 3), (std::vector<int>{4, 5, 10, 11}));
}

TEST(DealtSamplesTest, TheLastTurnMayEndInTheMiddle) {
  EXPECT_EQ(All(9, 2, 0, 3), (std::vector<int>{0, 1, 6, 7}));
  EXPECT_EQ(All(9, 2, 1, 3), (std::vector<int>{2, 3, 8}));
  EXPECT_EQ(All(9, 2, 2, 3), (std::vector<int>{4, 5}));
}

}  // namespace
}  // namespace megatron
