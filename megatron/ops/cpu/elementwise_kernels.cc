#include "megatron/ops/cpu/elementwise_kernels.h"

#include "megatron/ops/cpu/activation_vec.h"
#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/soft_cap.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

void ConvertKernel(DType from, const void* in, DType to, void* out, int64_t count) {
  WithType(from, [=](auto* from_type) {
    WithType(to, [=](auto* to_type) {
      const auto* x = As(from_type, in);
      auto* y = As(to_type, out);
      ForEachVec(count, [=](auto access, int64_t i) { access.store(y + i, access.load(x + i)); });
    });
  });
}

void AddKernel(DType from, const void* in, DType to, void* out, int64_t count) {
  WithType(to, [=](auto* type) {
    auto* y = As(type, out);
    const auto add = [=](const auto* x) {
      ForEachVec(count, [=](auto access, int64_t i) {
        access.store(y + i, access.load(y + i) + access.load(x + i));
      });
    };
    if (from == to) {
      add(As(type, in));
    } else {
      add(static_cast<const float*>(in));
    }
  });
}

void ScaleKernel(DType dtype, float factor, void* out, int64_t count) {
  WithType(dtype, [=](auto* type) {
    auto* y = As(type, out);
    ForEachVec(count, [=](auto access, int64_t i) {
      access.store(y + i, access.load(y + i) * Set(factor));
    });
  });
}

void SoftCapKernel(DType dtype, float cap, void* x, int64_t count) {
  WithType(dtype, [=](auto* type) {
    auto* y = As(type, x);
    ForEachVec(count, [=](auto access, int64_t i) {
      access.store(y + i, SoftCapOf(access.load(y + i), cap));
    });
  });
}

// Calls body(value) with a type whose kActivation is the activation.
template <Activation kValue>
struct ActivationConstant {
  static constexpr Activation kActivation = kValue;
};
template <typename Body>
MEGATRON_INLINE void WithActivation(Activation activation, Body body) {
  switch (activation) {
    case Activation::kNone:
      return body(ActivationConstant<Activation::kNone>());
    case Activation::kGeluTanh:
      return body(ActivationConstant<Activation::kGeluTanh>());
    case Activation::kGeluErf:
      return body(ActivationConstant<Activation::kGeluErf>());
    case Activation::kSquaredRelu:
      return body(ActivationConstant<Activation::kSquaredRelu>());
    case Activation::kTanh:
      return body(ActivationConstant<Activation::kTanh>());
    case Activation::kRelu:
      return body(ActivationConstant<Activation::kRelu>());
    case Activation::kSilu:
      return body(ActivationConstant<Activation::kSilu>());
    case Activation::kQuickGelu:
      return body(ActivationConstant<Activation::kQuickGelu>());
    case Activation::kSigmoid:
      return body(ActivationConstant<Activation::kSigmoid>());
  }
}

void ActivateKernel(Activation activation, DType dtype, const void* x, void* y, int64_t count) {
  WithActivation(activation, [=](auto constant) {
    WithType(dtype, [=](auto* type) {
      const auto* in = As(type, x);
      auto* out = As(type, y);
      ForEachVec(count, [=](auto access, int64_t i) {
        access.store(out + i, Activate<decltype(constant)::kActivation>(access.load(in + i)));
      });
    });
  });
}

void ActivateBackwardKernel(Activation activation, DType dtype, const void* dy, const void* x,
                            void* dx, int64_t count) {
  WithActivation(activation, [=](auto constant) {
    WithType(dtype, [=](auto* type) {
      const auto *in = As(type, x), *gradient = As(type, dy);
      auto* out = As(type, dx);
      ForEachVec(count, [=](auto access, int64_t i) {
        const Vec slope = ActivationSlope<decltype(constant)::kActivation>(access.load(in + i));
        access.store(out + i, access.load(gradient + i) * slope);
      });
    });
  });
}

// Min and Max keep a second operand that is NaN.
MEGATRON_INLINE Vec CutGate(Vec gate, float limit) { return Min(Set(limit), gate); }
MEGATRON_INLINE Vec CutUp(Vec up, float limit) { return Max(Set(-limit), Min(Set(limit), up)); }

void GateKernel(const Gate& gate, DType dtype, const void* gate_up, void* y, int64_t features) {
  WithActivation(gate.activation, [=](auto constant) {
    constexpr Activation kActivation = decltype(constant)::kActivation;
    WithType(dtype, [=](auto* type) {
      const auto *gates = As(type, gate_up), *ups = gates + features;
      auto* out = As(type, y);
      if (gate.is_plain()) {
        return ForEachVec(features, [=](auto access, int64_t i) {
          const Vec open = Activate<kActivation>(access.load(gates + i));
          access.store(out + i, open * access.load(ups + i));
        });
      }
      ForEachVec(features, [=](auto access, int64_t i) {
        const Vec open = Activate<kActivation>(CutGate(access.load(gates + i), gate.limit));
        access.store(out + i, open * (CutUp(access.load(ups + i), gate.limit) + Set(gate.offset)));
      });
    });
  });
}

void GateBackwardKernel(const Gate& gate, DType dtype, const void* dy, const void* gate_up,
                        void* d_gate_up, int64_t features) {
  WithActivation(gate.activation, [=](auto constant) {
    constexpr Activation kActivation = decltype(constant)::kActivation;
    WithType(dtype, [=](auto* type) {
      const auto *gradient = As(type, dy), *gates = As(type, gate_up), *ups = gates + features;
      auto* d_gates = As(type, d_gate_up);
      auto* d_ups = d_gates + features;
      if (gate.is_plain()) {
        return ForEachVec(features, [=](auto access, int64_t i) {
          const Vec g = access.load(gates + i), up = access.load(ups + i);
          const Vec d = access.load(gradient + i);
          access.store(d_ups + i, d * Activate<kActivation>(g));
          access.store(d_gates + i, d * up * ActivationSlope<kActivation>(g));
        });
      }
      ForEachVec(features, [=](auto access, int64_t i) {
        const Vec g = access.load(gates + i), up = access.load(ups + i);
        const Vec d = access.load(gradient + i);
        const Vec cut_gate = CutGate(g, gate.limit), cut_up = CutUp(up, gate.limit);
        const Vec d_up = d * Activate<kActivation>(cut_gate);
        const Vec d_gate = d * (cut_up + Set(gate.offset)) * ActivationSlope<kActivation>(cut_gate);
        const Vec within = Select(Less(up, cut_up), Zero(), d_up);
        access.store(d_ups + i, Select(Less(cut_up, up), Zero(), within));
        access.store(d_gates + i, Select(Less(cut_gate, g), Zero(), d_gate));
      });
    });
  });
}

}  // namespace

const ElementwiseKernels kElementwiseKernels = {
    ConvertKernel,          AddKernel,  ScaleKernel,       SoftCapKernel, ActivateKernel,
    ActivateBackwardKernel, GateKernel, GateBackwardKernel};

}  // namespace megatron::ops::MEGATRON_ISA
