// The activations of linear layers.
#ifndef MEGATRON_OPS_ACTIVATION_TYPE_H_
#define MEGATRON_OPS_ACTIVATION_TYPE_H_

namespace megatron::ops {

enum class Activation { kNone, kGeluTanh, kGeluErf, kSquaredRelu, kTanh, kRelu, kSilu };

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ACTIVATION_TYPE_H_
