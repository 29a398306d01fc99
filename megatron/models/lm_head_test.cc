#include "megatron/models/lm_head.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/ops/tolerances.h"
#include "megatron/tensor/parameter.h"

namespace megatron {
namespace {

using ops::HostTensor;

constexpr int64_t kTokens = 7, kHidden = 6, kVocab = 10, kPadded = 12;

ModelOptions Options() {
  ModelOptions options;
  options.transformer.hidden_size = kHidden;
  options.vocab_size = kVocab;
  options.padded_vocab_size = kPadded;
  options.tied_embeddings = false;
  return options;
}

// A head whose output is the sum of the weighted losses, in the first row of y.
class LmHeadTest : public testing::Test {
 protected:
  LmHeadTest() {
    MicroBatch& batch = harness_.batch();
    batch.labels_T = Tensor(labels_, DType::kInt32, {kTokens});
    batch.loss_weight_T = Tensor(weights_, DType::kFloat32, {kTokens});
    batch.gradient_weight_T = Tensor(gradient_weights_, DType::kFloat32, {kTokens});
  }

  LayerCalls MakeHead(const ModelOptions& options) {
    words_.name = "output_layer.weight";
    words_.sharding = Replicated({kPadded, kHidden});
    const Measures measures = {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true}};
    head_ = std::make_unique<LmHead>(options, measures, harness_.tensor_group(), &words_);
    LayerCalls calls;
    calls.parameters = ParametersOf(head_.get());
    calls.parameters.push_back(&words_);
    calls.forward = [this](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
      const HostTensor sums({1, 2}, DType::kFloat32);
      saved_ = {};
      head_->Forward(ctx, x, sums, &saved_);
      y.data<float>()[0] = static_cast<float>(sums.Get(0));
      x_ = x;
    };
    // Forward reads the weights of gradients, so it is called again when they are known.
    calls.backward = [this](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
      for (int t = 0; t < kTokens; ++t) gradient_weights_[t] = weights_[t] * dy.data<float>()[0];
      const HostTensor sums({1, 2}, DType::kFloat32);
      saved_ = {};
      head_->Forward(ctx, x_, sums, &saved_);
      head_->Backward(ctx, dx, &saved_);
    };
    calls.backward_weight = [this](const LayerContext& ctx) { head_->BackwardWeight(ctx, saved_); };
    return calls;
  }

  LayerHarness harness_{{4, 3}};
  int32_t labels_[kTokens] = {0, 9, 3, 3, 5, 1, 8};
  float weights_[kTokens] = {1, 1, 0, 1, 1, 0, 1}, gradient_weights_[kTokens] = {};
  Parameter words_;
  std::unique_ptr<LmHead> head_;
  LmHead::Saved saved_;
  Tensor x_;  // the input of the last forward
};

TEST_F(LmHeadTest, GradientsAreThoseOfFiniteDifferences) {
  ExpectGradients(&harness_, MakeHead(Options()), kHidden, /*output_width=*/1);
}

TEST_F(LmHeadTest, GradientsOfBertsHeadAreThoseOfFiniteDifferences) {
  ModelOptions options = Options();
  options.masked_lm_transform = options.output_bias = true;
  const LayerCalls calls = MakeHead(options);
  EXPECT_EQ(calls.parameters.size(), 8u);
  ExpectGradients(&harness_, calls, kHidden, /*output_width=*/1);
}

TEST_F(LmHeadTest, GradientsWithABiasAndAScaleAreThoseOfFiniteDifferences) {
  ModelOptions options = Options();
  options.output_bias = true;
  options.output_scale = 0.5f;
  ExpectGradients(&harness_, MakeHead(options), kHidden, /*output_width=*/1);
}

TEST_F(LmHeadTest, LogitsInChunksGiveTheSameGradients) {
  const HostTensor x = HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 1),
                   dy = HostTensor::Of({kTokens, 1}, DType::kFloat32,
                                       std::vector<double>(kTokens, 0.5));
  ModelOptions options = Options();
  LayerHarness::Results results[2];
  for (int chunk : {0, 3}) {
    options.logits_chunk = chunk;
    const LayerCalls calls = MakeHead(options);
    LayerHarness harness({4, 3});
    harness.batch().labels_T = harness_.batch().labels_T;
    harness.batch().loss_weight_T = harness_.batch().loss_weight_T;
    harness.batch().gradient_weight_T = harness_.batch().gradient_weight_T;
    harness.Bind(calls.parameters);
    results[chunk > 0] = harness.Run(calls, x, dy);
  }
  const auto near = [](const std::vector<double>& got, const std::vector<double>& want) {
    ops::ExpectNear(HostTensor::Of({static_cast<int64_t>(got.size())}, DType::kFloat32, got), want,
                    1e-5);
  };
  near(results[1].dx, results[0].dx);
  ASSERT_EQ(results[1].gradients.size(), results[0].gradients.size());
  for (size_t i = 0; i < results[0].gradients.size(); ++i)
    near(results[1].gradients[i], results[0].gradients[i]);
}

// Runs a head on a rank with its rows of 8 tokens, under sequence parallelism where there are more
// ranks. With `beside` they have a lane.
absl::StatusOr<LayerHarness::Results> RunOnRank(const ModelOptions& options,
                                                const ProcessGroup& group, bool beside) {
  constexpr int kAll = 8;
  int32_t labels[kAll] = {0, 9, 3, 3, 5, 1, 8, 2};
  float weights[kAll] = {1, 1, 0, 1, 1, 0, 1, 0.5};
  LayerHarness harness({4, 4}, group, /*sequence_parallel=*/group.size() > 1);
  LayerContext& context = harness.context();
  if (beside) {
    MEGATRON_ASSIGN_OR_RETURN(context.tensor_group, WithAsyncCalls(group, context.stream));
  }
  MicroBatch& batch = harness.batch();
  batch.labels_T = Tensor(labels, DType::kInt32, {kAll});
  batch.loss_weight_T = batch.gradient_weight_T = Tensor(weights, DType::kFloat32, {kAll});
  Parameter words;
  words.name = "output_layer.weight";
  words.sharding = SplitOverTensor({kPadded, kHidden}, 0, group.size(), group.rank());
  LmHead head(options, {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true}}, group, &words);
  LmHead::Saved saved;
  LayerCalls calls;
  calls.parameters = {&words};
  calls.forward = [&](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    const HostTensor sums({1, 2}, DType::kFloat32);
    head.Forward(ctx, x, sums, &saved);
    y.data<float>()[0] = static_cast<float>(sums.Get(0));
  };
  calls.backward = [&](const LayerContext& ctx, const Tensor&, const Tensor& dx) {
    head.Backward(ctx, dx, &saved);
  };
  harness.Bind(ParametersOf(&head));
  harness.Bind(calls.parameters);
  const HostTensor all = HostTensor::Normal({kAll, kHidden}, DType::kFloat32, 1);
  const int64_t rows = context.rows(), first = group.rank() * rows;
  HostTensor x({rows, kHidden}, DType::kFloat32);
  for (int64_t i = 0; i < rows * kHidden; ++i) x.Set(i, all.Get(first * kHidden + i));
  return harness.Run(calls, x, HostTensor({1, 1}, DType::kFloat32));
}

// With tp_comm_overlap ranks pass each other their rows in forward. Their gathering in backward is
// a call beside computing in any case.
TEST(LmHeadOfRanksTest, RowsAreGatheredBesideProductsWithTheSameBits) {
  ModelOptions options = Options();
  options.transformer.sequence_parallel = true;
  const auto one = RunOnRank(options, ProcessGroup(), /*beside=*/false);
  ASSERT_TRUE(one.ok()) << one.status();
  const absl::Status status = RunRanks(2, [&](int, const ProcessGroup& world) -> absl::Status {
    BytesSent sent;
    const ProcessGroup group(Counted(world.communicator(), &sent));
    MEGATRON_ASSIGN_OR_RETURN(const LayerHarness::Results in_turn,
                              RunOnRank(options, group, /*beside=*/false));
    EXPECT_NEAR(in_turn.y[0], one->y[0], 1e-5);
    sent.Reset();
    ModelOptions overlapped = options;
    overlapped.transformer.tp_comm_overlap = true;
    MEGATRON_ASSIGN_OR_RETURN(const LayerHarness::Results beside,
                              RunOnRank(overlapped, group, /*beside=*/true));
    EXPECT_EQ(beside.y, in_turn.y);
    EXPECT_EQ(beside.dx, in_turn.dx);
    EXPECT_EQ(beside.gradients, in_turn.gradients);
    const std::string lane = group.name() + "-overlap";
    EXPECT_EQ(sent.CallsOf(lane, Collective::kExchange), 1);
    EXPECT_EQ(sent.CallsOf(lane, Collective::kAllGather), 1);
    EXPECT_EQ(sent.CallsOf("", Collective::kAllGather), 1);
    return group.status();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace
}  // namespace megatron
