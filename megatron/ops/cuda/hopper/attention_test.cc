// The kernels for Hopper against the CPU's attention: in the emulation, and on a device of compute
// capability 9.0.
#include "megatron/ops/attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/cuda/agreement.h"
#include "megatron/ops/cuda/own_attention.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

using At = absl::Span<const Tensor>;

struct Case {
  int64_t groups, heads, head_dim;
  bool causal;
  std::vector<double> cu_q, cu_k;
  float dropout = 0;
  int64_t window = 0;  // 0: none
};

class HopperAttentionTest : public AgreementTest, public ::testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    AgreementTest::SetUp();
    if (!IsSkipped() && !cuda::HopperAttentionIsAvailable()) {
      GTEST_SKIP() << "no device of compute capability 9.0, or no code for it";
    }
  }
  HostTensor Normal(const Shape& shape, uint32_t seed) const {
    return HostTensor::Normal(shape, GetParam(), seed);
  }
  static HostTensor Ints(const std::vector<double>& values) {
    return HostTensor::Of({static_cast<int64_t>(values.size())}, DType::kInt32, values);
  }
  // The samples and positions of queries, which say what is dropped.
  static HostTensor Samples(int64_t queries) {
    HostTensor samples({queries}, DType::kInt64);
    for (int64_t t = 0; t < queries; ++t) samples.Set(t, static_cast<double>(t / 3));
    return samples;
  }
  static HostTensor Positions(int64_t queries) {
    HostTensor positions({queries}, DType::kInt32);
    for (int64_t t = 0; t < queries; ++t) positions.Set(t, static_cast<double>(7 * t % 97));
    return positions;
  }
  static Attention AttentionOf(const Case& c, const Tensor& cu_q, const Tensor& cu_k) {
    Attention attention;
    attention.scale = 0.2f;
    attention.causal = c.causal;
    attention.window_size = c.window;
    attention.cu_seqlens_q = cu_q;
    attention.cu_seqlens_k = cu_k;
    attention.max_seqlen_q = static_cast<int64_t>(c.cu_q.back());
    attention.max_seqlen_k = static_cast<int64_t>(c.cu_k.back());
    attention.kernels = {AttentionKernel::kHopper};
    return attention;
  }
  void ExpectForwardAndBackwardAgree(const Case& c);
};

// q, k, v and their gradients are views of one packed projection, [G, q...q k v] per token.
void HopperAttentionTest::ExpectForwardAndBackwardAgree(const Case& c) {
  const auto queries = static_cast<int64_t>(c.cu_q.back());
  const auto keys = static_cast<int64_t>(c.cu_k.back());
  const Shape q_shape = {queries, c.groups, c.heads, c.head_dim};
  const Shape packed = {std::max(queries, keys), c.groups, c.heads + 2, c.head_dim};
  HostTensor qkv = Normal(packed, 1), d_qkv = Normal(packed, 2), out = Normal(q_shape, 3),
             dout = Normal(q_shape, 4), cu_q = Ints(c.cu_q), cu_k = Ints(c.cu_k),
             lse = HostTensor::Normal({queries, c.groups, c.heads}, DType::kFloat32, 5),
             samples = Samples(queries), positions = Positions(queries);
  const auto views = [&](const Tensor& x) {
    return AttentionInputs{x.Slice(0, 0, queries).Slice(2, 0, c.heads),
                           x.Slice(0, 0, keys).Select(2, c.heads),
                           x.Slice(0, 0, keys).Select(2, c.heads + 1),
                           {}};
  };
  ExpectAgreement({&qkv, &d_qkv, &out, &dout, &lse, &cu_q, &cu_k, &samples, &positions},
                  2 * 4 * OpTolerance(GetParam()), [&](const Stream& stream, At at) {
                    Attention attention = AttentionOf(c, at[5], at[6]);
                    attention.dropout = {c.dropout, {5, 6}, at[7], at[8], /*first_column=*/3};
                    AttentionForward(stream, attention, views(at[0]), at[2], at[4]);
                    AttentionBackward(stream, attention, views(at[0]), at[2], at[4], at[3],
                                      views(at[1]));
                  });
}

TEST_P(HopperAttentionTest, SequencesWithPartialTilesAgreeWithTheCpu) {
  for (bool causal : {true, false}) {
    for (int64_t head_dim : {64, 128}) {
      ExpectForwardAndBackwardAgree(
          {2, 1, head_dim, causal, {0, 1, 71, 71, 111}, {0, 3, 73, 75, 120}});
    }
  }
}

TEST_P(HopperAttentionTest, GroupsOfHeadsShareKeys) {
  ExpectForwardAndBackwardAgree({2, 3, 64, true, {0, 40, 107}, {0, 40, 107}});
  ExpectForwardAndBackwardAgree({1, 2, 128, false, {0, 40, 107}, {0, 70, 99}});
}

// The sequences have more tiles than the rings hold.
TEST_P(HopperAttentionTest, LongSequences) {
  for (bool causal : {true, false}) {
    for (int64_t head_dim : {64, 128}) {
      ExpectForwardAndBackwardAgree({1, 1, head_dim, causal, {0, 433, 461}, {0, 433, 461}});
      ExpectForwardAndBackwardAgree({1, 1, head_dim, causal, {0, 9}, {0, 650}});
    }
  }
}

TEST_P(HopperAttentionTest, SequencesOfWholeTilesAgreeWithTheCpu) {
  for (int64_t head_dim : {64, 128}) {
    ExpectForwardAndBackwardAgree({1, 1, head_dim, true, {0, 384}, {0, 384}});
  }
}

TEST_P(HopperAttentionTest, DropoutAgreesWithTheCpu) {
  for (bool causal : {true, false}) {
    for (int64_t head_dim : {64, 128}) {
      ExpectForwardAndBackwardAgree(
          {2, 1, head_dim, causal, {0, 1, 71, 71, 111}, {0, 3, 73, 75, 120}, 0.3f});
      ExpectForwardAndBackwardAgree({1, 1, head_dim, causal, {0, 300, 309}, {0, 300, 309}, 0.3f});
    }
  }
  ExpectForwardAndBackwardAgree({2, 3, 64, true, {0, 40, 107}, {0, 40, 107}, 0.3f});
}

TEST_P(HopperAttentionTest, WindowsAgreeWithTheCpu) {
  for (int64_t head_dim : {64, 128}) {
    for (int64_t window : {1, 40, 128, 300}) {
      ExpectForwardAndBackwardAgree(
          {1, 1, head_dim, true, {0, 433, 461}, {0, 433, 461}, 0, window});
    }
    // Queries stand at the end of longer keys, or behind shorter ones, so that the first see none.
    ExpectForwardAndBackwardAgree({2, 1, head_dim, true, {0, 9, 80}, {0, 300, 371}, 0, 70});
    ExpectForwardAndBackwardAgree({1, 2, head_dim, true, {0, 300}, {0, 300}, 0.3f, 70});
  }
}

// Queries that are zero weigh all keys alike. With values that are the rows of the identity, column
// j of a query's output is zero if key j was dropped, and the gradient of value j has the same for
// each query.
TEST_P(HopperAttentionTest, DropoutDropsTheKeysThatTheCpuDrops) {
  const Shape shape = {64, 1, 1, 64}, k_shape = {64, 1, 64};
  HostTensor q(shape, GetParam()),
      k = Normal(k_shape, 1), v(k_shape, GetParam()), out(shape, GetParam()),
      dout(shape, GetParam()), dq(shape, GetParam()), dk(k_shape, GetParam()),
      dv(k_shape, GetParam()), lse({64, 1, 1}, DType::kFloat32), cu = Ints({0, 64}),
      samples = Samples(64), positions = Positions(64);
  for (int64_t t = 0; t < 64; ++t) {
    v.Set(65 * t, 1);
    dout.Set(65 * t, 1);
  }
  ExpectAgreement(
      {&q, &k, &v, &out, &dout, &dq, &dk, &dv, &lse, &cu, &samples, &positions},
      8 * OpTolerance(GetParam()), [&](const Stream& stream, At at) {
        Attention attention = AttentionOf({1, 1, 64, false, {0, 64}, {0, 64}}, at[9], at[9]);
        attention.dropout = {0.5f, {17, 4}, at[10], at[11], /*first_column=*/0};
        const AttentionInputs in = {at[0], at[1], at[2], {}};
        AttentionForward(stream, attention, in, at[3], at[8]);
        AttentionBackward(stream, attention, in, at[3], at[8], at[4], {at[5], at[6], at[7], {}});
      });
  int kept = 0;
  for (int64_t t = 0; t < 64; ++t) {
    for (int64_t j = 0; j < 64; ++j) {
      kept += out.Get(64 * t + j) != 0 ? 1 : 0;
      EXPECT_EQ(out.Get(64 * t + j), dv.Get(64 * j + t)) << "query " << t << ", key " << j;
    }
  }
  EXPECT_NEAR(kept, 64 * 64 / 2, 200);
}

// Their lse is minus infinity, which cannot be compared, so it is overwritten.
TEST_P(HopperAttentionTest, QueriesThatSeeNoKeyGetZeros) {
  const Case c = {1, 2, 64, true, {0, 200, 210}, {0, 70, 70}};
  const Shape q_shape = {210, 1, 2, 64}, k_shape = {70, 1, 64};
  HostTensor q = Normal(q_shape, 1), k = Normal(k_shape, 2), v = Normal(k_shape, 3),
             out = Normal(q_shape, 4), dout = Normal(q_shape, 5), dq = Normal(q_shape, 6),
             dk = Normal(k_shape, 7), dv = Normal(k_shape, 8), cu_q = Ints(c.cu_q),
             cu_k = Ints(c.cu_k), lse({210, 1, 2}, DType::kFloat32);
  ExpectAgreement(
      {&q, &k, &v, &out, &dout, &dq, &dk, &dv, &cu_q, &cu_k, &lse}, 8 * OpTolerance(GetParam()),
      [&](const Stream& stream, At at) {
        const Attention attention = AttentionOf(c, at[8], at[9]);
        const AttentionInputs in = {at[0], at[1], at[2], {}};
        AttentionForward(stream, attention, in, at[3], at[10]);
        AttentionBackward(stream, attention, in, at[3], at[10], at[4], {at[5], at[6], at[7], {}});
        Zero(stream, at[10]);
      });
  for (int64_t i = 0; i < 130 * 2 * 64; ++i) EXPECT_EQ(out.Get(i), 0) << i;
}

TEST_P(HopperAttentionTest, OtherKernelsTakeWhatTheseDoNot) {
  const Shape q_shape = {30, 1, 2, 40}, k_shape = {30, 1, 40};
  HostTensor q = Normal(q_shape, 1), k = Normal(k_shape, 2), v = Normal(k_shape, 3),
             out = Normal(q_shape, 4), lse({30, 1, 2}, DType::kFloat32), cu = Ints({0, 30});
  ExpectAgreement({&q, &k, &v, &out, &lse, &cu}, 8 * OpTolerance(GetParam()),
                  [&](const Stream& stream, At at) {
                    const Case c = {1, 2, 40, true, {0, 30}, {0, 30}};
                    AttentionForward(stream, AttentionOf(c, at[5], at[5]),
                                     {at[0], at[1], at[2], {}}, at[3], at[4]);
                  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, HopperAttentionTest,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace megatron::ops
