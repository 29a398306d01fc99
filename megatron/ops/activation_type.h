// The activations of linear layers, and gates made of them.
#ifndef MEGATRON_OPS_ACTIVATION_TYPE_H_
#define MEGATRON_OPS_ACTIVATION_TYPE_H_

#include <limits>

namespace megatron::ops {

enum class Activation {
  kNone,
  kGeluTanh,
  kGeluErf,
  kSquaredRelu,
  kTanh,
  kRelu,
  kSilu,
  kQuickGelu,  // x * sigmoid(1.702 x)
  kSigmoid,
};

// What a gated layer computes of a gate g and of u, which it multiplies:
// activation(min(g, limit)) * (max(-limit, min(u, limit)) + offset).
struct Gate {
  Gate(Activation activation) : activation(activation) {}  // NOLINT: an activation is a gate
  Gate(Activation activation, float limit, float offset)
      : activation(activation), limit(limit), offset(offset) {}

  // Whether it is activation(g) * u.
  bool is_plain() const { return limit == std::numeric_limits<float>::infinity() && offset == 0; }

  Activation activation;
  float limit = std::numeric_limits<float>::infinity();
  float offset = 0;
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ACTIVATION_TYPE_H_
