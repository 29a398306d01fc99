#include "megatron/models/bert/sentence_order_head.h"

#include <cmath>
#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

using ops::HostTensor;

constexpr int64_t kHidden = 6, kSequences = 3;

// Three sequences, of which the second counts for nothing.
class SentenceOrderHeadTest : public testing::Test {
 protected:
  SentenceOrderHeadTest() {
    MicroBatch& batch = harness_.batch();
    batch.sequence_label_S = Tensor(labels_, DType::kInt32, {kSequences});
    batch.sequence_weight_S = Tensor(weights_, DType::kFloat32, {kSequences});
    batch.sequence_gradient_weight_S = Tensor(gradient_weights_, DType::kFloat32, {kSequences});
    TransformerOptions options;
    options.hidden_size = kHidden;
    head_ = std::make_unique<SentenceOrderHead>(options);
    calls_.parameters = ParametersOf(head_.get());
    // The output is the loss, in the first row of y; the others stay zero.
    calls_.forward = [this](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
      sums_ = HostTensor({2, 2}, DType::kFloat32);
      head_->Forward(ctx, x, sums_.tensor().Select(0, 0), sums_.tensor().Select(0, 1), &saved_);
      y.data<float>()[0] = static_cast<float>(sums_.Get(0));
    };
    calls_.backward = [this](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
      for (int s = 0; s < kSequences; ++s) gradient_weights_[s] = weights_[s] * dy.data<float>()[0];
      head_->Backward(ctx, dx, saved_);
    };
  }

  LayerHarness harness_{{3, 2, 4}};
  int32_t labels_[kSequences] = {0, 1, 1};
  float weights_[kSequences] = {1, 0, 1}, gradient_weights_[kSequences] = {};
  std::unique_ptr<SentenceOrderHead> head_;
  SentenceOrderHead::Saved saved_;
  HostTensor sums_{{2, 2}, DType::kFloat32};
  LayerCalls calls_;
};

TEST_F(SentenceOrderHeadTest, GradientsAreThoseOfFiniteDifferences) {
  ExpectGradients(&harness_, calls_, kHidden, /*output_width=*/1);
}

TEST_F(SentenceOrderHeadTest, WithEqualClassesTheLossIsTheLogarithmOfTwo) {
  harness_.Bind(calls_.parameters);
  for (HostTensor& value : harness_.values()) {
    for (int64_t i = 0; i < value.numel(); ++i) value.Set(i, 0);
  }
  const HostTensor x = HostTensor::Normal({9, kHidden}, DType::kFloat32, 1),
                   y({9, 1}, DType::kFloat32);
  harness_.Forward(calls_, x, y);
  EXPECT_NEAR(sums_.Get(0), 2 * std::log(2), 1e-6);  // two sequences count
  EXPECT_EQ(sums_.Get(1), 2);
  EXPECT_EQ(sums_.Get(3), 2);
}

}  // namespace
}  // namespace megatron
