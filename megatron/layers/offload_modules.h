// The parts of what a layer keeps for backward that may lie apart from the rest, named after what
// reads them in the forward pass.
#ifndef MEGATRON_LAYERS_OFFLOAD_MODULES_H_
#define MEGATRON_LAYERS_OFFLOAD_MODULES_H_

#include <cstdint>
#include <initializer_list>

namespace megatron {

enum class OffloadModule {
  kAttentionNorm,  // the norm in front of attention: the layer's input
  kQkvLinear,      // the projections to queries, keys and values
  kCoreAttention,  // attention: queries, keys and values
  kAttentionProj,  // the projection behind attention
  kMlpNorm,        // the norm in front of the MLP: the sum behind attention
  kMlp,            // an MLP, with what lies between its matrices; a mixture's router
  kExpertFc1,      // the first matrices of experts: their rows
  kMoeActivation,  // the activation of experts, with what it writes
};

// A set of them.
class OffloadModules {
 public:
  OffloadModules() = default;
  OffloadModules(std::initializer_list<OffloadModule> modules) {
    for (const OffloadModule module : modules) Add(module);
  }

  void Add(OffloadModule module) { bits_ |= BitOf(module); }
  bool Has(OffloadModule module) const { return (bits_ & BitOf(module)) != 0; }
  bool empty() const { return bits_ == 0; }
  // A number that differs from those of other sets.
  uint32_t bits() const { return bits_; }

 private:
  static uint32_t BitOf(OffloadModule module) { return 1u << static_cast<int>(module); }

  uint32_t bits_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_OFFLOAD_MODULES_H_
