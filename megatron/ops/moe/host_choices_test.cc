#include "megatron/ops/moe/host_choices.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

class HostChoicesTest : public testing::Test {
 protected:
  ThreadPool pool_{1};
  Stream stream_ = Stream::Cpu(&pool_);
  // Experts 0 and 1 are on host 0, 2 and 3 on host 1, 4 and 5 on host 2.
  HostTensor expert_ =
      HostTensor::Of({4, 3}, DType::kInt32, {0, 1, 5, 3, 2, -1, -1, 4, 2, -1, -1, -1});
};

TEST_F(HostChoicesTest, EveryHostOfATokenIsNamedOnce) {
  const HostTensor host({4, 3}, DType::kInt32);
  FirstChoiceOfHost(stream_, expert_, /*experts_per_host=*/2, host);
  EXPECT_EQ(host.Values(), std::vector<double>({0, -1, 2, 1, -1, -1, -1, 2, 1, -1, -1, -1}));
}

TEST_F(HostChoicesTest, AHostUnpacksTheChoicesOfItsExperts) {
  const HostTensor probability = HostTensor::Normal({4, 3}, DType::kFloat32, 1);
  const HostTensor packed({4, 6}, DType::kFloat32), expert({4, 3}, DType::kInt32),
      back({4, 3}, DType::kFloat32);
  PackChoices(stream_, expert_, probability, packed);
  UnpackChoices(stream_, packed, /*first=*/2, /*experts_per_host=*/2, expert, back);
  EXPECT_EQ(expert.Values(), std::vector<double>({-1, -1, -1, 1, 0, -1, -1, -1, 0, -1, -1, -1}));
  EXPECT_EQ(back.Values(), probability.Values());
}

}  // namespace
}  // namespace megatron::ops
