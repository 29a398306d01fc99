// Packs batches for an emulated GPU: reading ahead gives the same batches.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/train/batches/micro_batch_packer.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;

constexpr int kLength = 4, kSamples = 20;
constexpr Device kCuda = {DeviceType::kCuda, 0};

class Source : public SampleSource {
 public:
  int64_t size() const override { return kSamples; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    ++reads;
    if (index >= size() || broken) return absl::DataLossError("it is broken");
    *sample = Sample();
    for (int i = 0; i < kLength; ++i) {
      sample->tokens.push_back(static_cast<int32_t>(10 * index + i));
      sample->labels.push_back(static_cast<int32_t>(10 * index + i + 1));
      sample->loss_mask.push_back(i < index % 3 ? 0.0f : 1.0f);
      sample->positions.push_back(i);
    }
    sample->document_starts = {0};
    return absl::OkStatus();
  }

  mutable int reads = 0;
  bool broken = false;
};

PackerOptions Options() {
  PackerOptions options;
  options.layout.micro_batch_size = 2;
  options.seq_length = kLength;
  options.max_micro_batches = 2;
  return options;
}

template <typename T>
std::vector<T> Values(const Tensor& tensor) {
  const Tensor view = EmulatedView(tensor);
  return std::vector<T>(view.data<T>(), view.data<T>() + view.numel());
}

class MicroBatchPackerCudaTest : public testing::Test {
 protected:
  MicroBatchPackerCudaTest()
      : cuda_(0),
        stream_(Stream::Cuda(0, &cuda_)),
        packer_(Options(), kCuda, nullptr),
        on_cpu_(Options(), Device(), nullptr) {}

  static MicroBatchPacker::Step StepAt(int64_t consumed, float loss_scale = 1) {
    return {consumed, /*micro_batches=*/2, loss_scale};
  }

  // Packs, and compares the device's batches with those of a packer on the CPU.
  void PackAndCompare(const Source& source, const MicroBatchPacker::Step& step) {
    ASSERT_EQ(packer_.Pack(source, step, ProcessGroup(), stream_), absl::OkStatus());
    ASSERT_EQ(on_cpu_.Pack(source, step, ProcessGroup(), Stream::Cpu(&pool_)), absl::OkStatus());
    ASSERT_EQ(packer_.batches().size(), on_cpu_.batches().size());
    for (size_t m = 0; m < packer_.batches().size(); ++m) {
      const MicroBatch &got = packer_.batches()[m], &want = on_cpu_.batches()[m];
      EXPECT_EQ(Values<int32_t>(got.tokens_T), Values<int32_t>(want.tokens_T));
      EXPECT_EQ(Values<int64_t>(got.sample_T), Values<int64_t>(want.sample_T));
      EXPECT_EQ(Values<float>(got.gradient_weight_T), Values<float>(want.gradient_weight_T));
      EXPECT_EQ(got.sample_weight, want.sample_weight);
    }
  }

  ThreadPool pool_{1};
  CudaStream cuda_;
  Stream stream_;
  Source train_, valid_;
  MicroBatchPacker packer_, on_cpu_;
};

TEST_F(MicroBatchPackerCudaTest, StepsThatWereReadAheadAreReadOnce) {
  PackAndCompare(train_, StepAt(0));
  packer_.ReadAhead(train_, StepAt(4));
  packer_.ReadAhead(train_, StepAt(4));
  EXPECT_EQ(train_.reads, 4 + 4 + 4);
  PackAndCompare(train_, StepAt(4));
  EXPECT_EQ(train_.reads, 12 + 4);
  PackAndCompare(train_, StepAt(8));
}

TEST_F(MicroBatchPackerCudaTest, AnEvaluationBetweenChangesNothing) {
  PackAndCompare(train_, StepAt(0));
  packer_.ReadAhead(train_, StepAt(4));
  PackAndCompare(valid_, StepAt(0));
  PackAndCompare(valid_, StepAt(4));
  const int reads = train_.reads;
  PackAndCompare(train_, StepAt(4));
  EXPECT_EQ(train_.reads, reads + 4);  // the CPU's
}

TEST_F(MicroBatchPackerCudaTest, TheLossScaleMayChangeInBetween) {
  PackAndCompare(train_, StepAt(0, 1024));
  packer_.ReadAhead(train_, StepAt(4, 1024));
  PackAndCompare(train_, StepAt(4, 512));
}

TEST_F(MicroBatchPackerCudaTest, AnotherStepThanExpectedIsRead) {
  packer_.ReadAhead(train_, StepAt(4));
  PackAndCompare(train_, StepAt(12));
  PackAndCompare(train_, {4, /*micro_batches=*/1, 1});
  PackAndCompare(train_, StepAt(4));
}

TEST_F(MicroBatchPackerCudaTest, NothingIsReadBehindTheLastSample) {
  packer_.ReadAhead(train_, StepAt(kSamples - 3));
  EXPECT_EQ(train_.reads, 0);
  packer_.ReadAhead(train_, StepAt(kSamples - 4));
  EXPECT_EQ(train_.reads, 4);
}

TEST_F(MicroBatchPackerCudaTest, AnErrorIsToldWhenTheStepComes) {
  PackAndCompare(train_, StepAt(0));
  train_.broken = true;
  packer_.ReadAhead(train_, StepAt(4));
  const absl::Status status = packer_.Pack(train_, StepAt(4), ProcessGroup(), stream_);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it is broken"));
  train_.broken = false;
  PackAndCompare(train_, StepAt(4));
}

TEST_F(MicroBatchPackerCudaTest, TheHostDoesNotWaitForTheDevice) {
  PackAndCompare(train_, StepAt(0));
  PackAndCompare(train_, StepAt(4));
  const EmulatedCudaCounts before = CountsOfEmulatedCuda();
  packer_.ReadAhead(train_, StepAt(8));
  const EmulatedCudaCounts after = CountsOfEmulatedCuda();
  EXPECT_EQ(after.allocations, before.allocations);
  // Waits for the staging to be sent, for which nobody has waited yet.
  EXPECT_EQ(after.host_waits, before.host_waits + 1);
  const EmulatedCudaCounts packing = CountsOfEmulatedCuda();
  PackAndCompare(train_, StepAt(8));
  EXPECT_EQ(CountsOfEmulatedCuda().host_waits, packing.host_waits);
}

}  // namespace
}  // namespace megatron
