#include "megatron/ops/cuda/agreement.h"

#include <sanitizer/asan_interface.h>

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "megatron/tensor/emulated_cuda.h"

namespace megatron::ops {
namespace {

// The size of the guard around each operand on the device, of a value that no kernel writes by
// chance. On the emulated device AddressSanitizer sees who reads there, too.
constexpr int64_t kGuardBytes = 4096;
constexpr char kGuard = 0x5A;

// A copy of an operand on the device, between guards.
class DeviceCopy {
 public:
  DeviceCopy(const HostTensor& host, CudaStream* stream)
      : host_(host),
        stream_(stream),
        is_in_reach_(CudaFacts(stream->device()).name == kEmulatedKernelsName),
        bytes_(2 * kGuardBytes + host.tensor().bytes()),
        memory_(CudaAllocate(stream->device(), bytes_, "operand")) {
    std::vector<char> image(bytes_, kGuard);
    std::memcpy(image.data() + kGuardBytes, host.tensor().raw(), host.tensor().bytes());
    CopyOnCuda(stream, OnHost(&image), OnDevice());
    if (!is_in_reach_) return;
    ASAN_POISON_MEMORY_REGION(memory_, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(memory_) + bytes_ - kGuardBytes, kGuardBytes);
  }
  ~DeviceCopy() {
    PermitGuards();
    CudaFree(stream_->device(), memory_);
  }
  DeviceCopy(const DeviceCopy&) = delete;

  Tensor tensor() const {
    return Tensor(static_cast<char*>(memory_) + kGuardBytes, host_.tensor().dtype(),
                  host_.tensor().shape(), {DeviceType::kCuda, stream_->device()});
  }

  // Returns the bytes that the tensor holds now, and checks the guards.
  std::vector<char> Bytes() const {
    PermitGuards();
    std::vector<char> image(bytes_);
    CopyOnCuda(stream_, OnDevice(), OnHost(&image));
    for (int64_t i = 0; i < bytes_; ++i) {
      if (i >= kGuardBytes && i < bytes_ - kGuardBytes) continue;
      EXPECT_EQ(image[i], kGuard) << "byte " << i - kGuardBytes << " from the start of "
                                  << host_.tensor() << " was written";
      if (image[i] != kGuard) break;
    }
    return {image.begin() + kGuardBytes, image.end() - kGuardBytes};
  }

 private:
  void PermitGuards() const {
    if (is_in_reach_) ASAN_UNPOISON_MEMORY_REGION(memory_, bytes_);
  }
  Tensor OnHost(std::vector<char>* image) const {
    return Tensor(image->data(), DType::kUInt8, {bytes_});
  }
  Tensor OnDevice() const {
    return Tensor(memory_, DType::kUInt8, {bytes_}, {DeviceType::kCuda, stream_->device()});
  }

  const HostTensor& host_;
  CudaStream* const stream_;
  const bool is_in_reach_;
  const int64_t bytes_;
  void* const memory_;
};

using Images = std::vector<std::vector<char>>;

}  // namespace

void AgreementTest::SetUp() {
  if (CudaDeviceCount() == 0) {
    if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) {
      FAIL() << "MEGATRON_REQUIRE_GPU is set and there is no GPU";
    }
    GTEST_SKIP() << "no GPU";
  }
  cuda_ = std::make_unique<CudaStream>(0);
}

void AgreementTest::ExpectAgreement(absl::Span<HostTensor* const> operands, double tolerance,
                                    Op op) {
  const auto run_on_gpu = [&] {
    std::vector<std::unique_ptr<DeviceCopy>> copies;
    std::vector<Tensor> tensors;
    for (const HostTensor* operand : operands) {
      copies.push_back(std::make_unique<DeviceCopy>(*operand, cuda_.get()));
      tensors.push_back(copies.back()->tensor());
    }
    op(Stream::Cuda(0, cuda_.get()), tensors);
    cuda_->Synchronize();
    Images images;
    for (const auto& copy : copies) images.push_back(copy->Bytes());
    return images;
  };
  const Images first = run_on_gpu(), second = run_on_gpu();

  std::vector<Tensor> tensors;
  for (const HostTensor* operand : operands) tensors.push_back(*operand);
  op(Stream::Cpu(&pool_), tensors);
  for (size_t i = 0; i < operands.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "operand " << i << ", " << operands[i]->tensor());
    EXPECT_EQ(first[i], second[i]) << "two runs differ";
    const std::vector<double> want = operands[i]->Values();
    std::memcpy(operands[i]->tensor().raw(), first[i].data(), first[i].size());
    ExpectNear(*operands[i], want, tolerance);
  }
}

}  // namespace megatron::ops
