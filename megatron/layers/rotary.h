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
// The factor by which YaRN or LongRoPE multiplies rotated vectors.
double RotaryMagnitude(const RotaryOptions& options);

// cos and sin, fp32 [positions, pairs], shared by all layers of a stage. Layers whose attention
// sees a window (`local`) have tables of their own if RotaryOptions::local_base says so.
class RotaryTables {
 public:
  RotaryTables(const RotaryOptions& options, int64_t head_size, int64_t positions, Device device,
               MemoryLedger* ledger);

  const Tensor& cos_SP(bool local = false) const { return Of(local).cos_SP; }
  const Tensor& sin_SP(bool local = false) const { return Of(local).sin_SP; }
  bool interleaved() const { return interleaved_; }

 private:
  struct Tables {
    Tensor cos_SP, sin_SP;
  };

  const Tables& Of(bool local) const { return local && local_.cos_SP ? local_ : all_; }
  // Makes the tables in buffer_ from byte `offset` on.
  Tables Make(const RotaryOptions& options, int64_t head_size, int64_t positions, Device device,
              int64_t offset) const;

  bool interleaved_;
  Buffer buffer_;
  Tables all_, local_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ROTARY_H_
