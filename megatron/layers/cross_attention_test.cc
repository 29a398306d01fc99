#include "megatron/layers/cross_attention.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/tolerances.h"

namespace megatron {
namespace {

using ops::HostTensor;

constexpr int64_t kHidden = 8;
constexpr DType kF32 = DType::kFloat32;

// A decoder's sequences of 4 and 3 tokens, which attend to an encoder's of 2 and 5.
class CrossAttentionTest : public testing::Test {
 protected:
  CrossAttentionTest() {
    TransformerOptions options;
    options.hidden_size = kHidden;
    options.num_attention_heads = options.num_query_groups = 2;
    options.kv_channels = 4;
    options.attention_dropout = 0;
    calls_ = CallsOf(std::make_shared<CrossAttention>(options, "cross_attention", /*layer=*/0,
                                                      harness_.tensor_group()),
                     "cross_attention.linear_proj.bias");
    EncoderBatch& encoder = harness_.batch().encoder;
    encoder.tokens_T = Tensor(encoder_tokens_, DType::kInt32, {7});
    encoder.cu_seqlens = Tensor(encoder_cu_seqlens_, DType::kInt32, {3});
    encoder.max_seqlen = 5;
    harness_.context().encoder_UH = encoder_UH_;
    harness_.context().encoder_gradient_UH = encoder_gradient_UH_;
  }

  LayerHarness harness_{{4, 3}};
  LayerCalls calls_;
  int32_t encoder_tokens_[7] = {0, 1, 2, 3, 4, 5, 6};
  int32_t encoder_cu_seqlens_[3] = {0, 2, 7};
  HostTensor encoder_UH_ = HostTensor::Normal({7, kHidden}, kF32, 3);
  HostTensor encoder_gradient_UH_{{7, kHidden}, kF32};
};

TEST_F(CrossAttentionTest, GradientsAreThoseOfFiniteDifferences) {
  ExpectGradients(&harness_, calls_, kHidden);
}

TEST_F(CrossAttentionTest, TheGradientOfTheEncodersOutputIsAddedToWhatIsThere) {
  harness_.Bind(calls_.parameters);
  const HostTensor x = HostTensor::Normal({7, kHidden}, kF32, 1),
                   dy = HostTensor::Normal({7, kHidden}, kF32, 2), y({7, kHidden}, kF32);
  for (int64_t i = 0; i < encoder_gradient_UH_.numel(); ++i) encoder_gradient_UH_.Set(i, 10);
  harness_.Run(calls_, x, dy);
  std::vector<double> want = ops::FiniteDifference(&encoder_UH_, [&] {
    harness_.Forward(calls_, x, y);
    return ops::Dot(y, dy);
  });
  for (double& value : want) value += 10;
  ops::ExpectNear(encoder_gradient_UH_, want, ops::kFiniteDifferenceTolerance);
}

TEST_F(CrossAttentionTest, ASequenceSeesTheEncodersSequenceOfItsNumberOnly) {
  harness_.Bind(calls_.parameters);
  const HostTensor x = HostTensor::Normal({7, kHidden}, kF32, 1), y({7, kHidden}, kF32);
  harness_.Forward(calls_, x, y);
  const std::vector<double> before = y.Values();
  encoder_UH_.Set(0, 5);  // a number of the encoder's first sequence
  harness_.Forward(calls_, x, y);
  for (int64_t token = 0; token < 7; ++token)
    EXPECT_EQ(y.Get(token * kHidden) == before[token * kHidden], token >= 4) << "token " << token;
}

}  // namespace
}  // namespace megatron
