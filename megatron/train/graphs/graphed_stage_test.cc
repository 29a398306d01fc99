// Tests which passes are captured and launched, and that a stage which breaks the rules is found.
#include "megatron/train/graphs/graphed_stage.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/tensor/emulated_graph.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Device kCuda = {DeviceType::kCuda, 0};
constexpr int64_t kTokens = 4;

// Forward keeps factor * (the tokens' weights), in its input if it has one, and backward gives it
// to the stage before. As in real stages, the host remembers from forward to backward where tensors
// lie.
class KeepingStage : public Stage {
 public:
  KeepingStage() : buffer_(kCuda, 1024, "kept", nullptr) {}

  void set_batches(const std::vector<MicroBatch>* batches) { batches_ = batches; }

  std::vector<TensorSpec> InputSpecs(int, int) const override { return {}; }
  std::vector<TensorSpec> OutputSpecs(int, int) const override { return {}; }
  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs, absl::Span<const Tensor>,
               const Stream& stream) override {
    const TraceSpan span(stream, "keep");
    kept_T_ = inputs.empty() ? buffer_.At(offset, DType::kFloat32, {kTokens}) : inputs[0];
    ops::Copy(stream, (*batches_)[item.microbatch].loss_weight_T, kept_T_);
    ops::Scale(stream, factor, kept_T_);
  }
  void Backward(const WorkItem&, absl::Span<const Tensor>, absl::Span<const Tensor> input_gradients,
                const Stream& stream) override {
    ops::Copy(stream, kept_T_, input_gradients[0]);
  }
  void BackwardWeight(const WorkItem&, const Stream&) override {}

  float factor = 2;
  int64_t offset = 0;

 private:
  Buffer buffer_;
  const std::vector<MicroBatch>* batches_ = nullptr;
  Tensor kept_T_;
};

PackerOptions Packing() {
  PackerOptions options;
  options.seq_length = kTokens;
  options.max_micro_batches = 2;
  return options;
}

class GraphedStageTest : public testing::Test {
 protected:
  GraphedStageTest()
      : cuda_(0),
        stream_(Stream::Cuda(0, &cuda_)),
        packer_(Packing(), kCuda, nullptr),
        gradients_(kCuda, 1024, "gradients", nullptr) {
    packer_.PackShapes(2);
    Make(CudaGraphOptions());
  }

  void Make(CudaGraphOptions options) {
    options.warmup_steps = 1;
    graphed_ = std::make_unique<GraphedStage>(&stage_, options, std::vector<SlotSizes>(1), packer_,
                                              kCuda, nullptr);
    stage_.set_batches(&graphed_->batches());
  }

  Tensor Gradient(int place) { return gradients_.At(256 * place, DType::kFloat32, {kTokens}); }

  // Runs one micro-batch with weights of `weight` forward and backward; returns the outputs.
  float Step(int micro_batch, float weight, int place = 0) {
    graphed_->StartStep();
    return Pass(micro_batch, weight, {}, place);
  }
  float Pass(int micro_batch, float weight, const std::vector<Tensor>& inputs, int place = 0) {
    const Tensor weight_T = EmulatedView(packer_.batches()[micro_batch].loss_weight_T);
    for (int64_t t = 0; t < kTokens; ++t) weight_T.data<float>()[t] = weight;
    const WorkItem item = {micro_batch, 0, 0, -1};
    graphed_->Forward(item, inputs, {}, stream_);
    graphed_->Backward(item, {}, {Gradient(place)}, stream_);
    return EmulatedView(Gradient(place)).data<float>()[kTokens - 1];
  }

  CudaStream cuda_;
  Stream stream_;
  MicroBatchPacker packer_;
  KeepingStage stage_;
  Buffer gradients_;
  std::unique_ptr<GraphedStage> graphed_;
};

TEST_F(GraphedStageTest, PassesAreEnqueuedThenCapturedThenLaunched) {
  EXPECT_EQ(Step(0, 1), 2);
  EXPECT_EQ(graphed_->counts().enqueued, 2);
  EXPECT_EQ(Step(0, 3), 6);
  EXPECT_EQ(graphed_->counts().captured, 2);
  EXPECT_EQ(Step(0, 4), 8);
  // Now another micro-batch of the step comes to the same place.
  EXPECT_EQ(Step(1, 5), 10);
  EXPECT_EQ(graphed_->counts().launched, 4);
  EXPECT_EQ(graphed_->counts().enqueued, 2);
}

TEST_F(GraphedStageTest, AnEnqueuedBackwardReadsTheActivationsOfALaunchedForward) {
  for (int step = 0; step < 3; ++step) Step(0, 1);
  // Its gradient goes to another place for the first time.
  EXPECT_EQ(Step(0, 7, /*place=*/1), 14);
  EXPECT_EQ(graphed_->counts().caught_up, 1);
  EXPECT_EQ(Step(0, 8, /*place=*/1), 16);  // captured now
  EXPECT_EQ(graphed_->counts().caught_up, 2);
  EXPECT_EQ(Step(0, 9, /*place=*/1), 18);
  EXPECT_EQ(graphed_->counts().caught_up, 2);
}

TEST_F(GraphedStageTest, ABackwardGraphIsKeyedByItsForwards) {
  for (int step = 0; step < 4; ++step) {
    graphed_->StartStep();
    EXPECT_EQ(Pass(0, 1, {Gradient(2)}), 2);
    EXPECT_EQ(Pass(1, 2, {Gradient(3)}), 4);
  }
  EXPECT_EQ(graphed_->counts().captured, 4);
}

TEST_F(GraphedStageTest, ATraceHasASpanForALaunchAndNoneOfWhatIsInIt) {
  Trace trace;
  stream_ = trace.Follow(stream_, "compute");
  trace.Start();
  for (int step = 0; step < 3; ++step) Step(0, 1);
  const std::vector<TracedStream> traced = trace.Stop();
  std::vector<std::string> names;
  for (const TracedSpan& span : traced[0].spans) names.push_back(span.name);
  EXPECT_THAT(names, ElementsAre("keep", "capture", "graph", "capture", "graph", "graph", "graph"));
  stream_ = Stream::Cuda(0, &cuda_);
}

// The tests that follow are about the comparison that tests of stages use.

TEST_F(GraphedStageTest, AHostValueOutsideTheKeyIsStaleInALaunch) {
  for (int step = 0; step < 3; ++step) Step(0, 1);
  stage_.factor = 5;
  EXPECT_EQ(Step(0, 1), 2);
}

TEST_F(GraphedStageTest, AComparisonTellsWhatIsStale) {
  std::string difference;
  graphed_->set_comparison([&](const CudaGraph& graph, const CudaGraph& now) {
    if (difference.empty()) difference = FirstDifference(graph, now);
  });
  for (int step = 0; step < 3; ++step) Step(0, 1);
  EXPECT_EQ(difference, "");
  stage_.factor = 5;
  Step(0, 1);
  EXPECT_THAT(difference, HasSubstr("operation 1: Scale 2 "));
  EXPECT_THAT(difference, HasSubstr("and Scale 5 "));
  stage_.factor = 2;
  stage_.offset = 128;
  difference.clear();
  Step(0, 1);
  EXPECT_THAT(difference, HasSubstr("operation 0: Copy"));
}

TEST_F(GraphedStageTest, WithoutRoomForGraphsPassesRunAsBefore) {
  CudaGraphOptions options;
  options.max_graphs = 0;
  Make(options);
  for (int step = 0; step < 4; ++step) EXPECT_EQ(Step(0, 3), 6);
  EXPECT_EQ(graphed_->counts().enqueued, 8);
}

}  // namespace
}  // namespace megatron
