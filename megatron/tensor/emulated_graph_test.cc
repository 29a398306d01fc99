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

using EmulatedGraphDeathTest = EmulatedGraphTest;

TEST_F(EmulatedGraphDeathTest, OperationsRefusedDuringCaptureEndTheProgram) {
  CudaGraph graph;
  CudaEvent event(0);
  float* const host = static_cast<float*>(CudaAllocateHost(sizeof(float), "test").value());
  const Tensor on_host(host, DType::kFloat32, {1}, Device());
  graph.BeginCapture(&cuda_);
  EXPECT_DEATH(cuda_.Synchronize(), "the host waits");
  EXPECT_DEATH(CudaAllocate(0, 4, "test"), "memory is taken");
  EXPECT_DEATH(CudaFree(0, buffer_.data()), "memory is freed");
  EXPECT_DEATH(event.Record(cuda_), "an event is recorded");
  EXPECT_DEATH(event.HoldBack(cuda_), "waits for another");
  EXPECT_DEATH(EnqueueCopyOnCuda(&cuda_, on_host, from_), "to or from the host");
  EXPECT_DEATH(EmulatingStream(Stream::Cuda(0, &cuda_)), "cannot be captured");
  graph.EndCapture(&cuda_);
  CudaFreeHost(host);
}

}  // namespace
}  // namespace megatron
