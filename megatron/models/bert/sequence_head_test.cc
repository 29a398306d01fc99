#include "megatron/models/bert/sequence_head.h"

#include <cmath>
#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

using ops::HostTensor;

constexpr int64_t kHidden = 6, kSequences = 5;

// Five sequences, of which the second counts for nothing. With two choices they are two groups, and
// the fifth fills the micro-batch up.
class SequenceHeadTest : public testing::Test {
 protected:
  SequenceHeadTest() {
    MicroBatch& batch = harness_.batch();
    batch.sequence_label_S = Tensor(labels_, DType::kInt32, {kSequences});
    batch.sequence_weight_S = Tensor(weights_, DType::kFloat32, {kSequences});
    batch.sequence_gradient_weight_S = Tensor(gradient_weights_, DType::kFloat32, {kSequences});
    batch.sequence_sample_S = Tensor(samples_, DType::kInt64, {kSequences});
    batch.sequence_position_S = Tensor(places_, DType::kInt32, {kSequences});
    harness_.context().training = true;
  }

  void Make(const SequenceHeadOptions& head) {
    TransformerOptions options;
    options.hidden_size = kHidden;
    head_ = std::make_unique<SequenceHead>(options, head);
    if (head.choices > 1) harness_.batch().num_samples = kSequences / head.choices;
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
  // Returns the sums of losses, weights and hits where all logits are equal.
  void RunWithEqualLogits() {
    harness_.Bind(calls_.parameters);
    for (HostTensor& value : harness_.values()) {
      for (int64_t i = 0; i < value.numel(); ++i) value.Set(i, 0);
    }
    const HostTensor x = HostTensor::Normal({14, kHidden}, DType::kFloat32, 1),
                     y({14, 1}, DType::kFloat32);
    harness_.Forward(calls_, x, y);
  }

  LayerHarness harness_{{3, 2, 4, 3, 2}};
  int32_t labels_[kSequences] = {0, 1, 1, 0, 1}, places_[kSequences] = {0, 0, 0, 0, 0};
  int64_t samples_[kSequences] = {4, 5, 6, 7, 8};
  float weights_[kSequences] = {1, 0, 1, 1, 1}, gradient_weights_[kSequences] = {};
  std::unique_ptr<SequenceHead> head_;
  SequenceHead::Saved saved_;
  HostTensor sums_{{2, 2}, DType::kFloat32};
  LayerCalls calls_;
};

TEST_F(SequenceHeadTest, GradientsAreThoseOfFiniteDifferences) {
  for (const SequenceHeadOptions& head :
       {SequenceHeadOptions{"binary_head"}, SequenceHeadOptions{"classification_head", 3},
        SequenceHeadOptions{"classification_head", 3, 1, 0.3f},
        SequenceHeadOptions{"multichoice_head", 1, 2}}) {
    SCOPED_TRACE(head.name + " " + std::to_string(head.classes));
    Make(head);
    ExpectGradients(&harness_, calls_, kHidden, /*output_width=*/1);
  }
}

TEST_F(SequenceHeadTest, WithEqualClassesTheLossIsTheLogarithmOfTheirNumber) {
  Make({"classification_head", 3});
  RunWithEqualLogits();
  EXPECT_NEAR(sums_.Get(0), 4 * std::log(3), 1e-6);  // four sequences count
  EXPECT_EQ(sums_.Get(1), 4);
  EXPECT_EQ(sums_.Get(3), 4);
}

TEST_F(SequenceHeadTest, WithEqualChoicesTheLossIsThatOfGroups) {
  Make({"multichoice_head", 1, 2});
  RunWithEqualLogits();
  EXPECT_NEAR(sums_.Get(0), std::log(2), 1e-6);  // the second group has no weight
  EXPECT_EQ(sums_.Get(1), 1);
}

TEST_F(SequenceHeadTest, DropoutDependsOnTheSampleAndOnItsPlaceThere) {
  Make({"classification_head", 3, 1, 0.5f});
  harness_.Bind(calls_.parameters);
  const HostTensor x = HostTensor::Normal({14, kHidden}, DType::kFloat32, 1),
                   y({14, 1}, DType::kFloat32);
  const auto loss = [&] {
    harness_.Forward(calls_, x, y);
    return sums_.Get(0);
  };
  const double first = loss();
  EXPECT_EQ(loss(), first);
  samples_[2] = 60;
  const double other_sample = loss();
  EXPECT_NE(other_sample, first);
  samples_[2] = 6;
  places_[2] = 9;
  EXPECT_NE(loss(), first);
  places_[2] = 0;
  EXPECT_EQ(loss(), first);
  harness_.context().training = false;
  EXPECT_NE(loss(), first);
}

}  // namespace
}  // namespace megatron
