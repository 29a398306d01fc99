// CachedModel: the logits that follow tokens of several sequences at once, of which a cache keeps
// what the model has seen.
//
//   CachedModel model(setup, limits, stream, &ledger);
//   model.Run({{/*slot=*/0, /*position=*/0, token, false}, {0, 1, token, true}});
//   const float* logits = model.logits(0);       // those that follow the second token
//   model.Run({{0, 2, next, true}});             // costs one token
//
// A token's logits have the same bits on the CPU whatever other tokens are run with it and in
// however many runs its sequence has come. They are the bits of a pass over its whole sequence or,
// where the cache has latents or states, the same within rounding. Where several ranks hold the
// model, all make the same calls and get the same logits. The weights must not change while a
// sequence is continued.
#ifndef MEGATRON_MODELS_CACHED_MODEL_H_
#define MEGATRON_MODELS_CACHED_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/kv_cache.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/layers/state_cache.h"
#include "megatron/models/generator_setup.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct CachedModelLimits {
  int64_t slots = 1;        // the most sequences
  int64_t max_context = 0;  // the most tokens of each
  int64_t max_tokens = 0;   // the most tokens of a run
  int64_t max_logits = 1;   // the most tokens of a run that want logits
};

struct NewToken {
  int32_t slot = 0, position = 0, token = 0;
  bool wants_logits = false;
};

class CachedModel {
 public:
  // The stage takes a cache (ModelStage::TakesCache), and has memory for a run as large as the
  // limits, as Measure() finds it.
  CachedModel(const GeneratorSetup& setup, const CachedModelLimits& limits, const Stream& stream,
              MemoryLedger* ledger);
  CachedModel(const CachedModel&) = delete;
  CachedModel& operator=(const CachedModel&) = delete;

  // Allocates from the stage's arenas what the largest run needs. On a meta stream only.
  void Measure();

  // Runs one token or more, ascending by slot and position. The positions of a slot follow one
  // another, and all before them have been run. What the slot has from there on is forgotten; where
  // layers have states, a slot's first new position is the next one, or 0. Returns false if a peer
  // was lost.
  bool Run(absl::Span<const NewToken> tokens);
  // The logits (of the padded vocabulary) that follow the i-th token that wanted them in the last
  // run.
  const float* logits(int64_t i) const;

  const CachedModelLimits& limits() const { return limits_; }
  const Stream& stream() const { return stream_; }
  const KvCache& cache() const { return cache_; }
  const StateCache& states() const { return states_; }
  // Returns whether layers have states, here or on other ranks.
  bool has_states() const { return !next_position_.empty(); }
  // The bytes of the caches, and of these, tokens and logits.
  int64_t cache_bytes() const { return cache_.bytes() + states_.bytes(); }
  int64_t bytes() const { return cache_bytes() + numbers_.bytes() + logits_.bytes(); }

 private:
  // The batch of the first `tokens` of all_, the longest of whose sequences has `longest`.
  MicroBatch FirstTokens(int64_t tokens, int64_t longest) const;
  bool RunBatch(const MicroBatch& batch, int64_t rows);

  GeneratorSetup setup_;
  StagePlan plan_;
  CachedModelLimits limits_;
  Stream stream_;
  KvCache cache_;
  StateCache states_;
  std::vector<int64_t> next_position_;  // the position behind each slot's states; empty: no states
  Buffer numbers_, logits_;
  HostMirror host_numbers_, host_logits_;
  std::vector<MicroBatch> batches_;
  MicroBatch all_;  // the largest batch
  Tensor place_T11_, predicted_P_, logits_PV_;
  CachedTokens cached_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_CACHED_MODEL_H_
