#include "megatron/ops/shared_key.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kTokens = 7, kHeads = 5, kOwn = 6, kShared = 70;
constexpr int64_t kKey = kOwn + kShared;

class SharedKeyTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
};

// Both parts are columns of something larger.
TEST_P(SharedKeyTest, EachHeadHasItsOwnPartAndThatOfAll) {
  const HostTensor own = HostTensor::Normal({kTokens, kHeads, kOwn + 3}, GetParam(), 1),
                   row = HostTensor::Normal({kTokens, kShared + 2}, GetParam(), 2),
                   key({kTokens, kHeads, kKey}, GetParam());
  JoinSharedKey(Stream::Cpu(&pool_), own.tensor().Slice(2, 0, kOwn),
                row.tensor().Slice(1, 1, 1 + kShared), key);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t n = 0; n < kHeads; ++n) {
      for (int64_t d = 0; d < kKey; ++d) {
        const double want = d < kOwn ? own.Get((t * kHeads + n) * (kOwn + 3) + d)
                                     : row.Get(t * (kShared + 2) + 1 + d - kOwn);
        EXPECT_EQ(key.Get((t * kHeads + n) * kKey + d), want) << t << " " << n << " " << d;
      }
    }
  }
}

TEST_P(SharedKeyTest, TheGradientOfTheSharedPartIsTheSumOverHeads) {
  const HostTensor dkey = HostTensor::Normal({kTokens, kHeads, kKey}, GetParam(), 1),
                   down = HostTensor::Normal({kTokens, kHeads, kOwn + 3}, GetParam(), 2),
                   dshared({kTokens, kShared}, GetParam());
  const std::vector<double> before = down.Values();
  SplitSharedKey(Stream::Cpu(&pool_), dkey, down.tensor().Slice(2, 0, kOwn), dshared);
  std::vector<double> want(kTokens * kShared);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t n = 0; n < kHeads; ++n) {
      for (int64_t d = 0; d < kOwn + 3; ++d) {
        const int64_t at = (t * kHeads + n) * (kOwn + 3) + d;
        EXPECT_EQ(down.Get(at), d < kOwn ? dkey.Get((t * kHeads + n) * kKey + d) : before[at]);
      }
      for (int64_t d = 0; d < kShared; ++d)
        want[t * kShared + d] += dkey.Get((t * kHeads + n) * kKey + kOwn + d);
    }
  }
  ExpectNear(dshared, want, OpTolerance(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(DTypes, SharedKeyTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

}  // namespace
}  // namespace megatron::ops
