// KvCache: the keys and values of the tokens that a model has seen of several sequences, so that
// what follows costs its new tokens alone.
//
// The cache has *slots*, each for one sequence, and in a slot a place for each position, up to the
// capacity. A pass computes new tokens of any of the sequences, packed in the order of slots. Every
// self-attention puts their keys and values in their places. A query then sees the places of its
// slot up to its own position, whatever stands behind. So a slot is begun anew by tokens from
// position 0 on, and cut by going on from an earlier position.
//
// Legend: S slots, U places of all slots, T new tokens, G groups of this rank, W width of a key and
// a value together.
#ifndef MEGATRON_LAYERS_KV_CACHE_H_
#define MEGATRON_LAYERS_KV_CACHE_H_

#include <cstdint>
#include <vector>

#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct KvCacheOptions {
  std::vector<int64_t> layers;  // the numbers of the layers in the whole model
  int64_t slots = 1;
  int64_t capacity = 0;                  // places of each slot
  int64_t groups = 0;                    // this rank's groups
  int64_t key_size = 0, value_size = 0;  // the widths of a head; without values value_size is 0
  DType dtype = DType::kFloat32;
};

class KvCache {
 public:
  KvCache() = default;
  KvCache(const KvCacheOptions& options, const Stream& stream, MemoryLedger* ledger);

  int64_t slots() const { return options_.slots; }
  int64_t capacity() const { return options_.capacity; }
  int64_t bytes() const { return buffer_.bytes(); }

  // The keys and the values of a layer, [U, G, their size].
  Tensor Keys(int64_t layer) const { return Layer(layer).Slice(2, 0, options_.key_size); }
  Tensor Values(int64_t layer) const {
    return Layer(layer).Slice(2, options_.key_size, options_.key_size + options_.value_size);
  }
  // Puts the keys and values of new tokens in their places (int32 [T, 1, 1]).
  void Put(const Stream& stream, int64_t layer, const Tensor& new_TGW,
           const Tensor& place_T11) const;

  // Where each slot begins among all places, int32 [S + 1].
  const Tensor& cu_seqlens() const { return cu_seqlens_; }
  // The position of each place in its slot, int32.
  const Tensor& position_U() const { return position_U_; }

 private:
  Tensor Layer(int64_t layer) const;  // [U, G, W]

  KvCacheOptions options_;
  Buffer buffer_;
  Tensor keys_values_LUGW_;  // L is the number of this rank's layers
  Tensor cu_seqlens_, position_U_;
};

class StateCache;

// What a pass needs of the caches besides its micro-batch, whose sequences are the slots (some of
// them may have no new tokens) and whose position_T are the places in the slots.
struct CachedTokens {
  const KvCache* cache = nullptr;
  const StateCache* states = nullptr;  // what layers with a state have (state_cache.h)
  Tensor place_T11;  // int32: the place of each new token among those of all slots
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_KV_CACHE_H_
