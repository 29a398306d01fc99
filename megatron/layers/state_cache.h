// StateCache: what layers with a state (mamba_mixer.h, gated_delta_net.h) have of several
// sequences, where attention has keys and values (kv_cache.h), so that what follows costs its new
// tokens alone.
//
// Each slot has for each of these layers the state of the recurrence, in fp32, and the last inputs
// of the convolution. Their size does not depend on the number of tokens. A slot is that of the
// tokens up to the last one that was computed: it goes on with the next one, or begins anew with
// position 0.
//
// Legend: S slots.
#ifndef MEGATRON_LAYERS_STATE_CACHE_H_
#define MEGATRON_LAYERS_STATE_CACHE_H_

#include <cstdint>
#include <vector>

#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// The shapes of a slot's tensors on this rank.
struct StateShapes {
  Shape state;   // as ops::StateSpaceContinue and ops::GatedDeltaContinue have it
  Shape recent;  // as ops::CausalConvContinue has it
};

struct StateCacheOptions {
  struct Layer {
    int64_t number = 0;  // in the whole model
    StateShapes shapes;
  };
  std::vector<Layer> layers;
  int64_t slots = 1;
  DType dtype = DType::kFloat32;  // the type of the convolution's inputs
};

class StateCache {
 public:
  StateCache() = default;
  StateCache(const StateCacheOptions& options, const Stream& stream, MemoryLedger* ledger);

  bool empty() const { return places_.empty(); }
  int64_t bytes() const { return buffer_.bytes(); }

  // A layer's states and convolution's inputs of all slots: [S, ...].
  Tensor States(int64_t layer) const { return PlaceOf(layer).state; }
  Tensor Recent(int64_t layer) const { return PlaceOf(layer).recent; }

 private:
  struct Place {
    int64_t layer = 0;
    Tensor state, recent;
  };

  const Place& PlaceOf(int64_t layer) const;

  Buffer buffer_;
  std::vector<Place> places_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_STATE_CACHE_H_
