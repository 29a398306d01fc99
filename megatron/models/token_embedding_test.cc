#include "megatron/models/token_embedding.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 4, kRows = 16, kPositions = 6;

ModelOptions Options() {
  ModelOptions options;
  options.transformer.hidden_size = kHidden;
  options.transformer.hidden_dropout = 0;
  options.max_positions = kPositions;
  return options;
}

// The embedding reads the batch, x is not read; the harness gives each token its number.
class TokenEmbeddingTest : public testing::Test {
 protected:
  TokenEmbeddingTest() { harness_.batch().token_type_T = Tensor(types_, DType::kInt32, {7}); }

  LayerCalls MakeEmbedding(const ModelOptions& options) {
    words_ = std::make_unique<VocabParallelEmbedding>("words", kRows, kHidden, /*init_std=*/0.02f,
                                                      harness_.tensor_group());
    embedding_ = std::make_unique<TokenEmbedding>(options, words_.get());
    LayerCalls calls;
    calls.forward = [this](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
      embedding_->Forward(ctx, y, &saved_);
    };
    calls.backward = [this](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
      embedding_->Backward(ctx, dy, saved_);
    };
    calls.parameters = ParametersOf(embedding_.get());
    return calls;
  }

  LayerHarness harness_{{4, 3}};
  int32_t types_[7] = {0, 0, 1, 1, 0, 1, 1};
  std::unique_ptr<VocabParallelEmbedding> words_;
  std::unique_ptr<TokenEmbedding> embedding_;
  TokenEmbedding::Saved saved_;
};

TEST_F(TokenEmbeddingTest, ARowIsTheSumOfItsWordAndItsPosition) {
  const LayerCalls calls = MakeEmbedding(Options());
  harness_.Bind(calls.parameters);
  ASSERT_EQ(calls.parameters.size(), 2u);
  const ops::HostTensor y({7, kHidden}, DType::kFloat32);
  harness_.Forward(calls, Tensor(), y);
  const int32_t* const positions = harness_.batch().position_T.data<int32_t>();
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t h = 0; h < kHidden; ++h) {
      EXPECT_FLOAT_EQ(y.Get(t * kHidden + h),
                      harness_.values()[0].Get(t * kHidden + h) +
                          harness_.values()[1].Get(positions[t] * kHidden + h));
    }
  }
}

TEST_F(TokenEmbeddingTest, GradientsAreThoseOfFiniteDifferences) {
  ExpectGradients(&harness_, MakeEmbedding(Options()), kHidden);
}

TEST_F(TokenEmbeddingTest, GradientsWithTypesAndANormAreThoseOfFiniteDifferences) {
  ModelOptions options = Options();
  options.num_token_types = 2;
  options.transformer.post_norm = true;
  const LayerCalls calls = MakeEmbedding(options);
  EXPECT_EQ(calls.parameters.size(), 5u);
  ExpectGradients(&harness_, calls, kHidden);
}

}  // namespace
}  // namespace megatron
