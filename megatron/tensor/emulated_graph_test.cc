#include "megatron/tensor/emulated_graph.h"

#include "gtest/gtest.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

constexpr Device kCuda = {DeviceType::kCuda, 0};

class EmulatedGraphTest : public testing::Test {
 protected:
  EmulatedGraphTest()
      : cuda_(0),
        buffer_(kCuda, 64, "test", nullptr),
        from_(buffer_.At(0, DType::kFloat32, {1})),
        to_(buffer_.At(32, DType::kFloat32, {1})) {}

  static float& Value(const Tensor& tensor) { return EmulatedView(tensor).data<float>()[0]; }
  void CaptureCopy(const Tensor& in, const Tensor& out, CudaGraph* graph) {
    graph->BeginCapture(&cuda_);
    CopyOnCuda(&cuda_, in, out);
    graph->EndCapture(&cuda_);
  }

  CudaStream cuda_;
  Buffer buffer_;
  Tensor from_, to_;
};

TEST_F(EmulatedGraphTest, CapturedOperationsRunAtEachLaunchOnTheMemoryOfThatTime) {
  CudaGraph graph;
  EXPECT_FALSE(graph.captured());
  Value(from_) = 1;
  CaptureCopy(from_, to_, &graph);
  EXPECT_TRUE(graph.captured());
  EXPECT_EQ(graph.num_operations(), 1);
  EXPECT_EQ(Value(to_), 0);
  graph.Launch(&cuda_);
  EXPECT_EQ(Value(to_), 1);
  Value(from_) = 2;
  graph.Launch(&cuda_);
  EXPECT_EQ(Value(to_), 2);
}

TEST_F(EmulatedGraphTest, AnotherStreamGoesOnMeanwhile) {
  CudaStream other(0);
  CudaGraph graph;
  Value(from_) = 1;
  graph.BeginCapture(&cuda_);
  CopyOnCuda(&other, from_, to_);
  graph.EndCapture(&cuda_);
  EXPECT_EQ(Value(to_), 1);
  EXPECT_EQ(graph.num_operations(), 0);
}

TEST_F(EmulatedGraphTest, GraphsOfTheSameOperandsAreTheSame) {
  CudaGraph graph, same, other;
  CaptureCopy(from_, to_, &graph);
  CaptureCopy(from_, to_, &same);
  CaptureCopy(to_, from_, &other);
  EXPECT_EQ(FirstDifference(graph, same), "");
  EXPECT_NE(FirstDifference(graph, other), "");
}

// Copies from_ to between_ on one stream and that to to_ on another, with events in between.
class TwoStreamsTest : public EmulatedGraphTest {
 protected:
  void Fork() {
    forked_.Record(cuda_);
    forked_.HoldBack(beside_);
  }
  void Join() {
    joined_.Record(beside_);
    joined_.HoldBack(cuda_);
  }

  CudaStream beside_{0};
  CudaEvent forked_{0}, joined_{0};
  Tensor between_ = buffer_.At(16, DType::kFloat32, {1});
};

TEST_F(TwoStreamsTest, AStreamThatWaitsForTheCapturedOneIsCapturedToo) {
  CudaGraph graph;
  Value(from_) = 1;
  graph.BeginCapture(&cuda_);
  EXPECT_FALSE(IsCapturing(beside_));
  CopyOnCuda(&cuda_, from_, between_);
  Fork();
  EXPECT_TRUE(IsCapturing(beside_));
  CopyOnCuda(&beside_, between_, to_);
  Join();
  CopyOnCuda(&cuda_, to_, from_);
  graph.EndCapture(&cuda_);
  EXPECT_FALSE(IsCapturing(beside_));
  EXPECT_EQ(Value(to_), 0);
  for (int launch = 2; launch < 4; ++launch) {
    Value(from_) = static_cast<float>(launch);
    graph.Launch(&cuda_);
    cuda_.Synchronize();
    EXPECT_EQ(Value(to_), launch);
  }
  // The events may be used outside again.
  Fork();
  CopyOnCuda(&beside_, from_, between_);
  Join();
}

using TwoStreamsDeathTest = TwoStreamsTest;

TEST_F(TwoStreamsDeathTest, AMissingEventIsFoundAtTheLaunch) {
  CudaGraph graph;
  graph.BeginCapture(&cuda_);
  Fork();
  CopyOnCuda(&cuda_, from_, between_);  // behind the fork
  CopyOnCuda(&beside_, between_, to_);
  Join();
  graph.EndCapture(&cuda_);
  EXPECT_DEATH(graph.Launch(&cuda_), "nothing puts one behind the other");
}

TEST_F(TwoStreamsDeathTest, EveryStreamMustBeJoinedBeforeTheEnd) {
  CudaGraph graph;
  graph.BeginCapture(&cuda_);
  Fork();
  EXPECT_DEATH(graph.EndCapture(&cuda_), "has not waited");
  Join();
  CopyOnCuda(&beside_, from_, to_);
  EXPECT_DEATH(graph.EndCapture(&cuda_), "has not waited");
  Join();
  graph.EndCapture(&cuda_);
  EXPECT_DEATH(forked_.Wait(), "of a graph");
  EXPECT_DEATH(joined_.HoldBack(beside_), "of a graph");
}

using EmulatedGraphDeathTest = EmulatedGraphTest;

TEST_F(EmulatedGraphDeathTest, OperationsRefusedDuringCaptureEndTheProgram) {
  CudaGraph graph;
  CudaEvent event(0);
  event.Record(cuda_);
  float* const host = static_cast<float*>(CudaAllocateHost(sizeof(float), nullptr));
  const Tensor on_host(host, DType::kFloat32, {1}, Device());
  graph.BeginCapture(&cuda_);
  EXPECT_DEATH(cuda_.Synchronize(), "the host waits");
  EXPECT_DEATH(CudaAllocate(0, 4, "test"), "memory is taken");
  EXPECT_DEATH(CudaFree(0, buffer_.data()), "memory is freed");
  EXPECT_DEATH(event.HoldBack(cuda_), "waits for an event that is not");
  EXPECT_DEATH(EnqueueCopyOnCuda(&cuda_, on_host, from_), "to or from the host");
  EXPECT_DEATH(EmulatingStream(Stream::Cuda(0, &cuda_)), "cannot be captured");
  graph.EndCapture(&cuda_);
  CudaFreeHost(host);
}

}  // namespace
}  // namespace megatron
