#include "megatron/ops/bias_gradient.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

TEST(BiasGradientTest, ColumnSumsAreAddedAndTheGradientIsWhatItWas) {
  ThreadPool pool(2);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (int64_t tokens : {0, 1, 77}) {
      constexpr int64_t kFeatures = 35;
      const HostTensor dy = HostTensor::Normal({tokens, kFeatures}, dtype, 1);
      const HostTensor dbias = HostTensor::Normal({kFeatures}, DType::kFloat32, 2);
      const std::vector<char> before = dy.Bytes();
      std::vector<double> want = dbias.Values();
      for (int64_t i = 0; i < dy.numel(); ++i) want[i % kFeatures] += dy.Get(i);
      BiasBackward(Stream::Cpu(&pool), dy, dbias);
      ExpectNear(dbias, want, OpTolerance(DType::kFloat32));
      EXPECT_EQ(dy.Bytes(), before);
    }
  }
}

}  // namespace
}  // namespace megatron::ops
