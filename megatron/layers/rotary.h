// The tables of the rotary position embedding.
#ifndef MEGATRON_LAYERS_ROTARY_H_
#define MEGATRON_LAYERS_ROTARY_H_

#include <cstdint>
#include <vector>

#include "megatron/layers/transformer_options.h"
#include "megatron/tensor/memory.h"

namespace megatron {

// The angle per position of each rotated pair of a head of `head_size` channels.
std::vector<double> InverseFrequencies(const RotaryOptions& options, int64_t head_size);

// cos and sin, fp32 [positions, pairs], shared by all layers of a stage.
class RotaryTables {
 public:
  RotaryTables(const RotaryOptions& options, int64_t head_size, int64_t positions, Device device,
               MemoryLedger* ledger);

  const Tensor& cos_SP() const { return cos_SP_; }
  const Tensor& sin_SP() const { return sin_SP_; }
  bool interleaved() const { return interleaved_; }

 private:
  bool interleaved_;
  Buffer buffer_;
  Tensor cos_SP_, sin_SP_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ROTARY_H_
