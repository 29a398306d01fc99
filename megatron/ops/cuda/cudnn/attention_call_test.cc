#include "megatron/ops/cuda/cudnn/attention_call.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kBf16 = DType::kBFloat16;
constexpr int64_t kTokens = 16, kGroups = 2, kHeadDim = 64;

// Two sequences of 8 tokens, whose queries, keys and values lie in one projection [T, G, R + 2, D].
class AttentionCallTest : public ::testing::Test {
 protected:
  explicit AttentionCallTest(int64_t heads = 1, DType dtype = kBf16)
      : qkv_({kTokens, kGroups, heads + 2, kHeadDim}, dtype),
        d_qkv_(qkv_.tensor().shape(), dtype),
        out_({kTokens, kGroups, heads, kHeadDim}, dtype),
        dout_(out_.tensor().shape(), dtype),
        lse_({kTokens, kGroups, heads}, DType::kFloat32) {
    call_.in = Views(qkv_, heads);
    call_.out_TGRE = out_;
    call_.lse_TGR = lse_;
    call_.attention.kernels = {AttentionKernel::kCudnn};
    call_.attention.scale = 0.125f;
    SetLengths({0, 8, 16}, 8);
    backward_ = call_;
    backward_.dout_TGRE = dout_;
    backward_.gradients = Views(d_qkv_, heads);
  }

  static AttentionInputs Views(const Tensor& qkv, int64_t heads) {
    return {qkv.Slice(2, 0, heads), qkv.Select(2, heads), qkv.Select(2, heads + 1), Tensor()};
  }
  void SetLengths(const std::vector<double>& cu_seqlens, int64_t longest) {
    cu_seqlens_ =
        HostTensor::Of({static_cast<int64_t>(cu_seqlens.size())}, DType::kInt32, cu_seqlens);
    call_.attention.cu_seqlens_q = call_.attention.cu_seqlens_k = cu_seqlens_;
    call_.attention.max_seqlen_q = call_.attention.max_seqlen_k = longest;
  }
  void ExpectRefused(const std::string& why) { EXPECT_THAT(WhyNotCudnn(call_), HasSubstr(why)); }

  HostTensor qkv_, d_qkv_, out_, dout_, lse_, cu_seqlens_{Shape({3}), DType::kInt32};
  AttentionCall call_, backward_;
};

class GroupedAttentionCallTest : public AttentionCallTest {
 protected:
  GroupedAttentionCallTest() : AttentionCallTest(3) {}
};

TEST_F(AttentionCallTest, SequencesOfOneLengthAreDescribedByStridesAlone) {
  ASSERT_EQ(WhyNotCudnn(call_), "");
  const CudnnAttention description = Describe(call_);
  EXPECT_FALSE(description.packed);
  EXPECT_FALSE(description.backward);
  EXPECT_EQ(description.end_role(), kDout);
  // A token of the projection is 2 * 3 * 64 = 384 elements, a head of queries comes every 3 * 64.
  for (CudnnRole role : {kQ, kK, kV}) {
    EXPECT_THAT(description.Dims(role), ElementsAre(2, 2, 8, 64));
    EXPECT_THAT(description.StridesOf(role), ElementsAre(8 * 384, 192, 384, 1));
  }
  EXPECT_THAT(description.Dims(kOut), ElementsAre(2, 2, 8, 64));
  EXPECT_THAT(description.StridesOf(kOut), ElementsAre(8 * 128, 64, 128, 1));
  // The tokens of a head are together, unlike in the op's [T, G, R].
  EXPECT_THAT(description.Dims(kLse), ElementsAre(2, 2, 8, 1));
  EXPECT_THAT(description.StridesOf(kLse), ElementsAre(2 * 8, 8, 1, 1));
}

TEST_F(AttentionCallTest, BackwardDescribesTheGradientsToo) {
  ASSERT_EQ(WhyNotCudnn(backward_), "");
  const CudnnAttention description = Describe(backward_);
  EXPECT_TRUE(description.backward);
  EXPECT_EQ(description.end_role(), kCudnnRoles);
  EXPECT_THAT(description.StridesOf(kDout), ElementsAre(8 * 128, 64, 128, 1));
  for (CudnnRole role : {kDq, kDk, kDv})
    EXPECT_THAT(description.StridesOf(role), ElementsAre(8 * 384, 192, 384, 1));
}

TEST_F(AttentionCallTest, DeterminismIsBackwardsAlone) {
  call_.attention.kernels = backward_.attention.kernels = {AttentionKernel::kHopper,
                                                           AttentionKernel::kCudnnDeterministic};
  EXPECT_FALSE(Describe(call_).deterministic);
  EXPECT_TRUE(Describe(backward_).deterministic);
  backward_.attention.kernels = {AttentionKernel::kCudnn};
  EXPECT_FALSE(Describe(backward_).deterministic);
}

TEST_F(GroupedAttentionCallTest, QueriesThatLieInGroupsAreDescribedAsACopyOfThem) {
  ASSERT_EQ(WhyNotCudnn(backward_), "");
  EXPECT_FALSE(HasOneHeadStride(call_.in.q_TGRD));
  EXPECT_TRUE(HasOneHeadStride(out_));
  const CudnnAttention description = Describe(backward_);
  for (CudnnRole role : {kQ, kOut, kDout, kDq}) {
    EXPECT_THAT(description.Dims(role), ElementsAre(2, 6, 8, 64));
    EXPECT_THAT(description.StridesOf(role), ElementsAre(8 * 384, 64, 384, 1));
  }
  // 2 * 5 * 64 a token.
  for (CudnnRole role : {kK, kV, kDk, kDv}) {
    EXPECT_THAT(description.Dims(role), ElementsAre(2, 2, 8, 64));
    EXPECT_THAT(description.StridesOf(role), ElementsAre(8 * 640, 320, 640, 1));
  }
  EXPECT_THAT(description.StridesOf(kLse), ElementsAre(6 * 8, 8, 1, 1));
}

TEST_F(GroupedAttentionCallTest, QueriesOfOneGroupAreTakenWhereTheyAre) {
  for (Tensor* x : {&call_.in.q_TGRD, &call_.in.k_UGD, &call_.in.v_UGE}) *x = x->Slice(1, 1, 2);
  const HostTensor out({kTokens, 1, 3, kHeadDim}, kBf16), lse({kTokens, 1, 3}, DType::kFloat32);
  call_.out_TGRE = out;
  call_.lse_TGR = lse;
  ASSERT_EQ(WhyNotCudnn(call_), "");
  EXPECT_TRUE(HasOneHeadStride(call_.in.q_TGRD));
  EXPECT_THAT(Describe(call_).StridesOf(kQ), ElementsAre(8 * 640, 64, 640, 1));
}

TEST_F(AttentionCallTest, PackedSequencesShareADescriptionWithThoseOfLikeLengths) {
  SetLengths({0, 3, 10, 16}, 7);
  ASSERT_EQ(WhyNotCudnn(call_), "");
  const CudnnAttention description = Describe(call_);
  EXPECT_TRUE(description.packed);
  EXPECT_EQ(description.sequences, 4);
  EXPECT_EQ(description.tokens, 64);
  EXPECT_THAT(description.Dims(kQ), ElementsAre(4, 2, 64, 64));
  EXPECT_THAT(description.StridesOf(kQ), ElementsAre(64 * 384, 192, 384, 1));
  EXPECT_THAT(description.StridesOf(kLse), ElementsAre(64 * 2, 1, 2, 1));
  SetLengths({0, 6, 12, 12, 16}, 6);
  EXPECT_FALSE(description < Describe(call_) || Describe(call_) < description);
  SetLengths({0, 8, 16}, 8);
  EXPECT_TRUE(description < Describe(call_) || Describe(call_) < description);
}

TEST_F(AttentionCallTest, CallsThatNeedDifferentPlansHaveDifferentDescriptions) {
  const CudnnAttention before = Describe(call_);
  std::vector<AttentionCall> others(5, call_);
  others[0].attention.causal = false;
  others[1].attention.scale = 1;
  others[2] = backward_;
  others[3].in.q_TGRD = out_;  // other strides
  others[4].in.q_TGRD = call_.in.q_TGRD.Slice(1, 0, 1);
  others[4].in.k_UGD = call_.in.k_UGD.Slice(1, 0, 1);
  for (const AttentionCall& other : others) {
    const CudnnAttention description = Describe(other);
    EXPECT_TRUE(description < before || before < description) << &other - others.data();
  }
}

TEST_F(AttentionCallTest, CallsThatCudnnDoesNotTakeAreRefusedWithAReason) {
  const AttentionCall good = call_;
  const auto refuse = [&](const std::string& why, auto spoil) {
    call_ = good;
    spoil();
    ExpectRefused(why);
  };
  const HostTensor places({kTokens}, DType::kInt32), bias({3, 2}, DType::kFloat32),
      other({3}, DType::kInt32), wide({kTokens, kGroups, 1, kHeadDim}, DType::kFloat32),
      lse({kTokens, kGroups, 2}, DType::kFloat32);
  Attention& attention = call_.attention;
  refuse("dropout", [&] { attention.dropout.probability = 0.1f; });
  refuse("bias", [&] { call_.in.bias_WN = bias; });
  refuse("window", [&] { attention.window_size = 7; });
  refuse("capped", [&] { attention.softcap = 50; });
  refuse("in part", [&] { attention.place_q_T = attention.place_k_U = places; });
  refuse("part by part", [&] { attention.add_to_queries = true; });
  refuse("part by part", [&] { attention.add_to_keys = true; });
  refuse("fp32", [&] { call_.in.q_TGRD = wide; });
  refuse("another dtype", [&] { call_.out_TGRE = wide; });
  refuse("heads of 20", [&] { call_.in.q_TGRD = call_.in.q_TGRD.Slice(3, 0, 20); });
  refuse("16 bytes", [&] { call_.in.v_UGE = qkv_.tensor().Select(2, 2).Slice(2, 4, 60); });
  refuse("no tokens", [&] { call_.in.q_TGRD = call_.in.q_TGRD.Slice(0, 0, 0); });
  refuse("not contiguous", [&] { call_.lse_TGR = lse.tensor().Slice(2, 0, 1); });
  // cuDNN would not give zeros for a query whose sequence has no key.
  refuse("differ", [&] {
    attention.cu_seqlens_k = other;
    attention.max_seqlen_k = 9;
  });
  refuse("differ in number", [&] {
    call_.in.k_UGD = call_.in.k_UGD.Slice(0, 0, 8);
    attention.cu_seqlens_k = other;
    attention.max_seqlen_k = 4;
  });
  attention.causal = false;
  EXPECT_EQ(WhyNotCudnn(call_), "");
  EXPECT_EQ(Describe(call_).keys, 4);
}

TEST_F(AttentionCallTest, ALengthThatIsTooShortIsOurOwnMistake) {
  call_.attention.max_seqlen_q = call_.attention.max_seqlen_k = 7;
  EXPECT_DEATH(Describe(call_), "longer than the longest");
}

}  // namespace
}  // namespace megatron::ops::cuda
