#include "megatron/optim/host_update.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/optim/test_model.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr Device kCuda = {DeviceType::kCuda, 0};

class HostUpdateTest : public testing::Test {
 protected:
  static constexpr int64_t kPartElements = 10, kParts = 5, kLast = 3;
  static constexpr int64_t kElements = kPartElements * (kParts - 1) + kLast;

  HostUpdateTest()
      : cuda_(0),
        stream_(Stream::Cuda(0, &cuda_)),
        buffer_(kCuda, 2 * kElements * SizeOf(DType::kFloat32), "test", nullptr) {}

  // Gradients come first.
  Tensor All(bool weights) const {
    return buffer_.At(weights ? kElements * SizeOf(DType::kFloat32) : 0, DType::kFloat32,
                      {kElements});
  }

  std::vector<HostPart> Parts() const {
    std::vector<HostPart> parts;
    for (int64_t begin = 0; begin < kElements; begin += kPartElements) {
      const int64_t end = std::min(kElements, begin + kPartElements);
      parts.push_back({All(false).Slice(0, begin, end), All(true).Slice(0, begin, end)});
    }
    return parts;
  }

  void Fill() {
    for (int64_t i = 0; i < kElements; ++i) {
      EmulatedView(All(false)).data<float>()[i] = static_cast<float>(i);
      EmulatedView(All(true)).data<float>()[i] = static_cast<float>(1000 * i);
    }
  }

  CudaStream cuda_;
  Stream stream_;
  Buffer buffer_;
};

TEST_F(HostUpdateTest, EachPartIsUpdatedWithWhatTheDeviceHasAndSentBack) {
  Fill();
  const auto update = *HostUpdate::Create(stream_, kPartElements, DType::kFloat32, DType::kFloat32,
                                          true, 2, nullptr);
  const int64_t waits = CountsOfEmulatedCuda().host_waits;
  for (int step = 1; step <= 3; ++step) {
    std::vector<size_t> order;
    int calls = 0;
    update->Run(
        Parts(),
        [&] {
          ++calls;
          EXPECT_TRUE(order.empty());
        },
        [&](size_t i, const HostPart& copy, const Stream& host) {
          EXPECT_EQ(host.device(), Device());
          order.push_back(i);
          for (int64_t j = 0; j < copy.weights.numel(); ++j)
            copy.weights.data<float>()[j] += copy.gradients.data<float>()[j];
        });
    EXPECT_EQ(calls, 1);
    EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4));
    for (int64_t i = 0; i < kElements; ++i)
      EXPECT_EQ(EmulatedView(All(true)).data<float>()[i], static_cast<float>((1000 + step) * i));
  }
  // The host waits for each part's arrival, and for no part's leaving.
  EXPECT_EQ(CountsOfEmulatedCuda().host_waits - waits, 3 * kParts);
}

TEST_F(HostUpdateTest, PartsInHostMemoryAreUpdatedThere) {
  MemoryLedger ledger;
  const auto update =
      *HostUpdate::Create(stream_, kPartElements, std::nullopt, std::nullopt, true, 2, &ledger);
  EXPECT_EQ(ledger.current_bytes(), 0);
  std::vector<float> weights(kElements), gradients(kElements);
  for (int64_t i = 0; i < kElements; ++i) {
    gradients[i] = static_cast<float>(i);
    weights[i] = static_cast<float>(1000 * i);
  }
  std::vector<HostPart> parts = Parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Shape shape = {parts[i].gradients.numel()};
    parts[i] = {Tensor(&gradients[i * kPartElements], DType::kFloat32, shape),
                Tensor(&weights[i * kPartElements], DType::kFloat32, shape)};
  }
  update->Run(
      parts, [] {},
      [&](size_t, const HostPart& copy, const Stream&) {
        for (int64_t j = 0; j < copy.weights.numel(); ++j)
          copy.weights.data<float>()[j] += copy.gradients.data<float>()[j];
      });
  for (int64_t i = 0; i < kElements; ++i) EXPECT_EQ(weights[i], static_cast<float>(1001 * i));
}

using HostUpdateDeathTest = HostUpdateTest;

TEST_F(HostUpdateDeathTest, ChangingWeightsThatAreBeingSentEndsTheProgram) {
  Fill();
  EXPECT_DEATH(
      {
        const auto update = *HostUpdate::Create(stream_, kPartElements, DType::kFloat32,
                                                DType::kFloat32, true, 1, nullptr);
        float* sent = nullptr;
        const HostPart part = Parts()[0];
        update->Run(
            {&part, 1}, [] {},
            [&](size_t, const HostPart& copy, const Stream&) {
              sent = copy.weights.data<float>();
            });
        sent[0] += 1;
        cuda_.Synchronize();
      },
      "changed what it was sending");
}

TEST_F(HostUpdateTest, MemoryThatCannotBeLockedIsAnError) {
  LimitPageLockedMemory(39);
  EXPECT_THAT(HostUpdate::Create(stream_, kPartElements, DType::kFloat32, DType::kFloat32, true, 1,
                                 nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("40 bytes for host/optimizer staging")));
  LimitPageLockedMemory(std::numeric_limits<int64_t>::max());
}

// A model on the emulated device, of which a part of the optimizer's states is in host memory.
class Offloaded {
 public:
  Offloaded(double fraction, DType dtype, std::unique_ptr<UpdateRule> rule = nullptr,
            int64_t large = 0)
      : cuda_(0), stream_(Stream::Cuda(0, &cuda_)), model_({}, dtype) {
    // Padding lies between them. The last one is the first in the layout.
    if (large > 0) model_.Add("behind", Replicated({70}));
    if (large > 0) model_.Add("large", Replicated({large}));
    model_.Add("a", Replicated({7, 11}));
    model_.Add("b", Replicated({5}), /*decays=*/false);
    model_.Add("c", Replicated({130}));
    model_.rule = std::move(rule);
    model_.buffer_options.host_fraction = fraction;
    model_.Build(kCuda);
    EXPECT_THAT(model_.optimizer->PrepareHostUpdate(stream_, 1, &model_.ledger), IsOk());
    model_.buffers->InitializeWeights(5, stream_);
  }

  // One step; `first` is the first gradient.
  StepResult Step(int step, float first = 0.5f) {
    for (const auto& parameter : model_.parameters) {
      float* const grad = EmulatedView(parameter->grad).data<float>();
      for (int64_t i = 0; i < parameter->grad.numel(); ++i) grad[i] = Fraction(3 * i + step);
    }
    EmulatedView(model_.parameters[0]->grad).data<float>()[0] = first;
    StepOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.clip_grad = 1;
    const auto result = model_.optimizer->Step(options, {}, stream_);
    EXPECT_THAT(result, IsOk());
    return *result;
  }

  double Norm() { return model_.optimizer->ParametersNorm({}, stream_); }
  ParameterBuffers& buffers() { return *model_.buffers; }
  const Stream& stream() const { return stream_; }

  // The weights, and the padding between parameters.
  std::string Weights() {
    const Tensor weights = EmulatedView(model_.buffers->weights());
    return std::string(static_cast<const char*>(weights.raw()), weights.bytes());
  }

 private:
  CudaStream cuda_;
  Stream stream_;
  TestModel model_;
};

TEST(OptimizerOffloadTest, WeightsWithTheirPaddingAndNormsHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const double fraction : {0.4, 1.0}) {
      SCOPED_TRACE(fraction);
      Offloaded plain(0, dtype), with(fraction, dtype);
      EXPECT_EQ(with.Weights(), plain.Weights());
      for (int step = 0; step < 4; ++step) {
        EXPECT_EQ(with.Step(step).grad_norm, plain.Step(step).grad_norm);
        EXPECT_EQ(with.Weights(), plain.Weights()) << step;
        EXPECT_EQ(with.Norm(), plain.Norm()) << step;
      }
    }
  }
}

TEST(OptimizerOffloadTest, PaddingStaysZeroWhereSlotsAreUsedAgain) {
  // "large" ends in the third of the updates, which has the first one's slot.
  const int64_t large = 2 * UpdateObserver::kMostElements + 1000;
  Offloaded plain(0, DType::kBFloat16, nullptr, large), with(1, DType::kBFloat16, nullptr, large);
  for (int step = 0; step < 2; ++step) {
    plain.Step(step);
    with.Step(step);
  }
  EXPECT_TRUE(with.Weights() == plain.Weights());
  EXPECT_EQ(with.Norm(), plain.Norm());
}

TEST(OptimizerOffloadTest, ASkippedStepChangesAndMovesNothing) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Offloaded plain(0, dtype), with(1, dtype);
    plain.Step(0);
    with.Step(0);
    const std::string before = with.Weights();
    const int64_t waits = CountsOfEmulatedCuda().host_waits;
    EXPECT_FALSE(with.Step(1, std::numeric_limits<float>::infinity()).applied);
    EXPECT_EQ(CountsOfEmulatedCuda().host_waits - waits, 1);  // for the norm
    EXPECT_EQ(with.Weights(), before);
    plain.Step(2);
    with.Step(2);
    EXPECT_EQ(with.Weights(), plain.Weights());
  }
}

TEST(OptimizerOffloadTest, APartIsWholeParameters) {
  Offloaded half(0.4, DType::kBFloat16), whole(1, DType::kBFloat16);
  const int64_t all = whole.buffers().host_masters().numel();
  EXPECT_TRUE(whole.buffers().masters().empty());
  // "c" is the first in the layout, and has more than 0.4 of all elements.
  EXPECT_EQ(half.buffers().host_masters().numel(), half.buffers().parameters()[1].range.begin);
  EXPECT_EQ(half.buffers().masters().numel(), all - half.buffers().host_masters().numel());
  EXPECT_EQ(half.buffers().host_masters().device(), Device());
  EXPECT_EQ(half.buffers().masters().device(), kCuda);
}

TEST(OptimizerOffloadTest, MastersOnTheHostAreRoundedToTheDevicesWeights) {
  Offloaded model(0.4, DType::kBFloat16);
  const std::string before = model.Weights();
  const Tensor weights = EmulatedView(model.buffers().weights());
  std::memset(weights.raw(), 0, weights.bytes());
  model.buffers().CopyMastersToWeights(model.stream());
  EXPECT_EQ(model.Weights(), before);
}

TEST(OptimizerOffloadTest, ARuleOfWholeParametersHasTheSameBitsAsOnTheCpu) {
  Offloaded offloaded(1, DType::kFloat32, std::make_unique<NormedMomentumRule>());
  ThreadPool pool(1);
  TestModel cpu;
  cpu.Add("a", Replicated({7, 11}));
  cpu.Add("b", Replicated({5}), /*decays=*/false);
  cpu.Add("c", Replicated({130}));
  cpu.rule = std::make_unique<NormedMomentumRule>();
  cpu.Build();
  cpu.buffers->InitializeWeights(5, Stream::Cpu(&pool));
  for (int step = 0; step < 3; ++step) {
    offloaded.Step(step);
    for (const auto& parameter : cpu.parameters) {
      for (int64_t i = 0; i < parameter->grad.numel(); ++i)
        parameter->grad.data<float>()[i] = Fraction(3 * i + step);
    }
    cpu.parameters[0]->grad.data<float>()[0] = 0.5f;
    StepOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.clip_grad = 1;
    EXPECT_THAT(cpu.optimizer->Step(options, {}, Stream::Cpu(&pool)), IsOk());
  }
  const Tensor weights = cpu.buffers->weights();
  EXPECT_EQ(offloaded.Weights(),
            std::string(static_cast<const char*>(weights.raw()), weights.bytes()));
}

}  // namespace
}  // namespace megatron
