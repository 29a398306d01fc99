#include "megatron/ops/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

const DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
const Activation kActivations[] = {
    Activation::kNone,        Activation::kGeluTanh,  Activation::kGeluErf,
    Activation::kSquaredRelu, Activation::kTanh,      Activation::kRelu,
    Activation::kSilu,        Activation::kQuickGelu, Activation::kSigmoid};

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2)));
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return NAN;
}

class ActivationTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

TEST_F(ActivationTest, ForwardIsTheFormula) {
  for (DType dtype : kDTypes) {
    for (Activation activation : kActivations) {
      for (int64_t features : {1, 3, 17, 33, 9000}) {
        const HostTensor x = HostTensor::Normal({3, features}, dtype, 1);
        const HostTensor y({3, features}, dtype);
        ActivationForward(stream_, activation, x, y);
        std::vector<double> want;
        for (double value : x.Values()) want.push_back(Activate(activation, value));
        ExpectNear(y, want, OpTolerance(dtype));
      }
    }
  }
}

TEST_F(ActivationTest, FarFromZeroGeluIsZeroOrTheIdentity) {
  for (Activation activation : {Activation::kGeluTanh, Activation::kGeluErf}) {
    const HostTensor x = HostTensor::Of({1, 6}, DType::kFloat32, {-1e30, -100, -20, 20, 100, 1e12});
    const HostTensor y({1, 6}, DType::kFloat32), dx({1, 6}, DType::kFloat32);
    const HostTensor ones = HostTensor::Of({1, 6}, DType::kFloat32, {1, 1, 1, 1, 1, 1});
    ActivationForward(stream_, activation, x, y);
    ActivationBackward(stream_, activation, ones, x, dx);
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(y.Get(i), i < 3 ? 0 : x.Get(i), 1e-30) << x.Get(i);
      EXPECT_NEAR(dx.Get(i), i < 3 ? 0 : 1, 1e-30) << x.Get(i);
    }
  }
}

// Differences across zero see both sides of a kink.
HostTensor NormalAwayFromZero(const Shape& shape, uint32_t seed) {
  HostTensor x = HostTensor::Normal(shape, DType::kFloat32, seed);
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (std::abs(x.Get(i)) < 0.05) x.Set(i, x.Get(i) < 0 ? -0.05 : 0.05);
  }
  return x;
}

TEST_F(ActivationTest, BackwardIsTheDerivativeOfForward) {
  for (Activation activation : kActivations) {
    HostTensor x = NormalAwayFromZero({3, 33}, 1);
    const HostTensor dy = HostTensor::Normal({3, 33}, DType::kFloat32, 2);
    const HostTensor y({3, 33}, DType::kFloat32), dx({3, 33}, DType::kFloat32);
    ActivationBackward(stream_, activation, dy, x, dx);
    const auto loss = [&] {
      ActivationForward(stream_, activation, x, y);
      return Dot(y, dy);
    };
    ExpectNear(dx, FiniteDifference(&x, loss), kFiniteDifferenceTolerance);
  }
}

TEST_F(ActivationTest, SixteenBitBackwardFollowsFp32) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (Activation activation : kActivations) {
      const HostTensor x = HostTensor::Normal({3, 33}, dtype, 1);
      const HostTensor dy = HostTensor::Normal({3, 33}, dtype, 2);
      const HostTensor dx({3, 33}, dtype), wide_dx({3, 33}, DType::kFloat32);
      ActivationBackward(stream_, activation, dy, x, dx);
      ActivationBackward(stream_, activation, HostTensor::Of({3, 33}, DType::kFloat32, dy.Values()),
                         HostTensor::Of({3, 33}, DType::kFloat32, x.Values()), wide_dx);
      ExpectNear(dx, wide_dx.Values(), OpTolerance(dtype));
    }
  }
}

TEST_F(ActivationTest, OutputsMayReplaceInputs) {
  const HostTensor x = HostTensor::Normal({3, 33}, DType::kFloat32, 1);
  const HostTensor dy = HostTensor::Normal({3, 33}, DType::kFloat32, 2);
  const HostTensor y({3, 33}, DType::kFloat32), dx({3, 33}, DType::kFloat32);
  ActivationForward(stream_, Activation::kGeluErf, x, y);
  ActivationBackward(stream_, Activation::kGeluErf, dy, x, dx);
  ActivationBackward(stream_, Activation::kGeluErf, dy, x, dy);
  ActivationForward(stream_, Activation::kGeluErf, x, x);
  EXPECT_EQ(dy.Bytes(), dx.Bytes());
  EXPECT_EQ(x.Bytes(), y.Bytes());
}

const Gate kGates[] = {Activation::kSilu,
                       Activation::kGeluTanh,
                       Activation::kRelu,
                       {Activation::kQuickGelu, 1, 1},
                       {Activation::kSilu, 0.5f, 0},
                       {Activation::kSilu, std::numeric_limits<float>::infinity(), -0.25f}};

double Gated(const Gate& gate, double g, double u) {
  const double limit = gate.limit;
  return Activate(gate.activation, std::min(g, limit)) *
         (std::max(-limit, std::min(u, limit)) + gate.offset);
}

TEST_F(ActivationTest, TheGradientOfTheBiasInFrontIsTheColumnsSums) {
  for (DType dtype : kDTypes) {
    const HostTensor x = HostTensor::Normal({21, 19}, dtype, 1),
                     dy = HostTensor::Normal({21, 19}, dtype, 2), dx({21, 19}, dtype),
                     both({21, 19}, dtype), dbias = HostTensor::Normal({19}, DType::kFloat32, 3);
    std::vector<double> want = dbias.Values();
    ActivationBackward(stream_, Activation::kGeluTanh, dy, x, dx);
    for (int64_t i = 0; i < dx.numel(); ++i) want[i % 19] += dx.Get(i);
    ActivationBackwardAndBias(stream_, Activation::kGeluTanh, dy, x, both, dbias);
    EXPECT_EQ(both.Values(), dx.Values());
    ExpectNear(dbias, want, OpTolerance(DType::kFloat32));
  }
}

TEST_F(ActivationTest, GateForwardIsTheFormula) {
  for (DType dtype : kDTypes) {
    for (const Gate& gate : kGates) {
      for (int64_t features : {1, 3, 17, 33, 9000}) {
        const HostTensor gate_up = HostTensor::Normal({3, 2 * features}, dtype, 1);
        const HostTensor y({3, features}, dtype);
        GateForward(stream_, gate, gate_up, y);
        std::vector<double> want;
        for (int64_t i = 0; i < 3 * features; ++i) {
          const int64_t at = i / features * 2 * features + i % features;
          want.push_back(Gated(gate, gate_up.Get(at), gate_up.Get(at + features)));
        }
        ExpectNear(y, want, OpTolerance(dtype));
      }
    }
  }
}

TEST_F(ActivationTest, GateBackwardIsTheDerivativeOfForward) {
  for (const Gate& gate : kGates) {
    // Those within a step of a limit would see both sides of it.
    HostTensor gate_up = NormalAwayFromZero({3, 66}, 1);
    for (int64_t i = 0; i < gate_up.numel(); ++i) {
      const double beyond = std::abs(gate_up.Get(i)) - double{gate.limit};
      if (std::abs(beyond) < 0.05) gate_up.Set(i, gate_up.Get(i) < 0 ? -2 : 2);
    }
    const HostTensor dy = HostTensor::Normal({3, 33}, DType::kFloat32, 2);
    const HostTensor y({3, 33}, DType::kFloat32), d_gate_up({3, 66}, DType::kFloat32);
    GateBackward(stream_, gate, dy, gate_up, d_gate_up);
    const auto loss = [&] {
      GateForward(stream_, gate, gate_up, y);
      return Dot(y, dy);
    };
    ExpectNear(d_gate_up, FiniteDifference(&gate_up, loss), kFiniteDifferenceTolerance);
  }
}

TEST_F(ActivationTest, AGateWithALimitCutsWhatIsBeyondAndKeepsNaN) {
  const double nan = std::nan("");
  const Gate gate(Activation::kRelu, 2, 1);
  // Gates 3, 1, -5, NaN and 1; ups 5, -4, 1, 1 and NaN.
  const HostTensor gate_up =
      HostTensor::Of({1, 10}, DType::kFloat32, {3, 1, -5, nan, 1, 5, -4, 1, 1, nan});
  const HostTensor dy = HostTensor::Of({1, 5}, DType::kFloat32, {1, 1, 1, 1, 1});
  const HostTensor y({1, 5}, DType::kFloat32), d({1, 10}, DType::kFloat32);
  GateForward(stream_, gate, gate_up, y);
  GateBackward(stream_, gate, dy, gate_up, d);
  EXPECT_EQ(y.Get(0), 2 * 3);
  EXPECT_EQ(y.Get(1), 1 * -1);
  EXPECT_EQ(y.Get(2), 0);
  EXPECT_TRUE(std::isnan(y.Get(3)));
  EXPECT_TRUE(std::isnan(y.Get(4)));
  EXPECT_EQ(d.Get(0), 0);   // the gate is beyond the limit
  EXPECT_EQ(d.Get(1), -1);  // -2 + 1
  EXPECT_EQ(d.Get(5), 0);   // what it multiplies is, too
  EXPECT_EQ(d.Get(6), 0);
  EXPECT_EQ(d.Get(7), 0);
}

TEST_F(ActivationTest, SixteenBitGateBackwardFollowsFp32) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const HostTensor gate_up = HostTensor::Normal({3, 66}, dtype, 1);
    const HostTensor dy = HostTensor::Normal({3, 33}, dtype, 2);
    const HostTensor d_gate_up({3, 66}, dtype), wide({3, 66}, DType::kFloat32);
    GateBackward(stream_, Activation::kSilu, dy, gate_up, d_gate_up);
    GateBackward(stream_, Activation::kSilu, HostTensor::Of({3, 33}, DType::kFloat32, dy.Values()),
                 HostTensor::Of({3, 66}, DType::kFloat32, gate_up.Values()), wide);
    ExpectNear(d_gate_up, wide.Values(), OpTolerance(dtype));
  }
}

}  // namespace
}  // namespace megatron::ops
