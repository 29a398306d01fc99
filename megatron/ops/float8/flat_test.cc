#include "megatron/ops/float8/flat.h"

#include <cmath>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops {
namespace {

class Float8FlatTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

// Every bf16 there is, under maxima that some are beyond. What is not finite becomes NaN.
TEST_F(Float8FlatTest, WhatIsDecodedHasTheSameCodes) {
  std::vector<double> bits;
  for (int i = 0; i < 1 << 16; ++i) bits.push_back(i);
  const HostTensor all = HostTensor::Of({1 << 16}, DType::kUInt16, bits),
                   decoded({1 << 16}, DType::kBFloat16), codes({1 << 16}, DType::kUInt8),
                   again({1 << 16}, DType::kUInt8);
  const Tensor x(all.tensor().raw(), DType::kBFloat16, {1 << 16});
  for (double maximum : {0.0, 1e-30, 0.0123, 0.3, 1.0, 3.14, 448.0, 1e30}) {
    const auto rounded = static_cast<double>(ToFloat(ToBFloat16(static_cast<float>(maximum))));
    for (double margin : {1.0, 8.0}) {
      const HostTensor amax = HostTensor::Of({1}, DType::kFloat32, {rounded * margin});
      EncodeFloat8(stream_, x, amax, codes);
      DecodeFloat8(stream_, codes, amax, decoded);
      EncodeFloat8(stream_, decoded, amax, again);
      EXPECT_EQ(again.Bytes().size(), codes.Bytes().size());
      for (int64_t i = 0; i < 1 << 16; ++i) {
        const uint8_t want = codes.tensor().data<uint8_t>()[i];
        ASSERT_EQ(again.tensor().data<uint8_t>()[i], want) << maximum << " " << i;
      }
    }
  }
}

// So the largest magnitude of what is decoded is that of the elements.
TEST_F(Float8FlatTest, TheLargestElementIsDecodedExactly) {
  for (int i = 0; i < 256; ++i) {
    const double largest = ToFloat(ToBFloat16(0.017f * static_cast<float>(i + 1)));
    const HostTensor x = HostTensor::Of({2}, DType::kBFloat16, {-largest, largest / 3}),
                     amax = HostTensor::Of({1}, DType::kFloat32, {largest}),
                     codes({2}, DType::kUInt8), decoded({2}, DType::kBFloat16);
    EncodeFloat8(stream_, x, amax, codes);
    DecodeFloat8(stream_, codes, amax, decoded);
    EXPECT_EQ(decoded.Get(0), -largest);
    EXPECT_NEAR(decoded.Get(1), largest / 3, largest / 3 / 16);
  }
}

}  // namespace
}  // namespace megatron::ops
