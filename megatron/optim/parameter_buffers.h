// The memory of a stage's parameters: weights, gradients, master weights and optimizer state, each
// flat and laid out alike (flat_layout.h).
//
// Master weights and moments are fp32 and cover what this rank *holds* the state of: what is
// optimized here, all but the copies of tied weights, or its parts of that where states are
// sharded. Where the model's dtype is fp32 the weights are their own masters.
//
// Weights and gradients cover everything, or where they are sharded this rank's parts. What is
// stored whole the parameters' `data` and `grad` are bound to while the buffers live; the others
// are bound by whoever gathers and reduces them (data_parallel.h).
//
// On the meta device everything works and no memory is taken.
#ifndef MEGATRON_OPTIM_PARAMETER_BUFFERS_H_
#define MEGATRON_OPTIM_PARAMETER_BUFFERS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// What the ranks that hold the same parameters share out among them, each with what stands before
// it: ZeRO-1, 2 and 3 (S. Rajbhandari et al., arXiv 1910.02054).
enum class DataSharding { kNone, kStates, kGradients, kWeights };

struct ParameterBuffersOptions {
  DType model_dtype = DType::kFloat32;
  Device device;
  int num_moments = 2;         // of the optimizer: 2 for AdamW, 1 for SGD with momentum, 0 without
  DataRank data, expert_data;  // of dense parameters, and of experts
  DataSharding sharding = DataSharding::kNone;
  int64_t bucket_size = 0;  // of PlanLayout; 0 where gradients are sharded
};

// What this rank holds of one parameter's state: of elements `held` (counted within the parameter's
// block, row-major), flat. A moment that the optimizer does not have is empty; SGD's momentum
// buffer is exp_avg.
struct ParameterState {
  Parameter* parameter = nullptr;
  FlatRange held;
  Tensor master, exp_avg, exp_avg_sq;
};

class ParameterBuffers {
 public:
  // The parameters, in order of registration, must outlive the buffers. The ledger may be null.
  ParameterBuffers(const std::vector<Parameter*>& parameters,
                   const ParameterBuffersOptions& options, MemoryLedger* ledger);

  // Fills masters and weights by each parameter's Initializer; the same bits on any layout.
  void InitializeWeights(uint64_t seed, const Stream& stream);
  // Rounds the masters to the weights, as far as they are held here, after the masters were loaded
  // from somewhere.
  void CopyMastersToWeights(const Stream& stream);
  void ZeroGradients(const Stream& stream);

  absl::Span<const ParameterPlace> places() const { return layout_.places; }
  absl::Span<const Bucket> buckets() const { return layout_.buckets; }
  const Bucket& bucket_of(const ParameterPlace& place) const {
    return layout_.buckets[place.bucket];
  }
  const FlatLayout& layout() const { return layout_; }
  int UnitOf(int block) const { return layout_.unit_of_block[block]; }
  // Of what is held here, by falling place: dense parameters come in order of registration.
  std::vector<ParameterState> States() const;

  // What the masters and moments here are of; nothing of copies.
  FlatRange Held(const Bucket& bucket) const;
  // What is stored here of weights and of gradients.
  FlatRange StoredWeights(const Bucket& bucket) const;
  FlatRange StoredGradients(const Bucket& bucket) const;
  // Flat, elements `range` of a bucket, of which nothing but what is stored or held may be asked.
  Tensor Weights(const Bucket& bucket, const FlatRange& range) const;
  Tensor Gradients(const Bucket& bucket, const FlatRange& range) const;
  Tensor Masters(const Bucket& bucket, const FlatRange& range) const;
  // Empty if the optimizer has no such moment.
  Tensor ExpAvg(const Bucket& bucket, const FlatRange& range) const;
  Tensor ExpAvgSq(const Bucket& bucket, const FlatRange& range) const;

  // All that is stored; empty if there is none.
  Tensor weights() const;
  Tensor gradients() const;
  Tensor masters() const;  // where the weights are not
  Tensor exp_avg() const;
  Tensor exp_avg_sq() const;

  bool shards(DataSharding what) const { return options_.sharding >= what; }
  bool has_masters() const { return options_.model_dtype != DType::kFloat32; }
  const ParameterBuffersOptions& options() const { return options_; }

 private:
  Tensor Moment(size_t index, const Bucket& bucket, const FlatRange& range) const;
  // Where elements from `begin` on stand in memory for everything or, `sharded`, for parts.
  int64_t Position(const Bucket& bucket, int64_t begin, bool sharded) const;
  int64_t StatePosition(const Bucket& bucket, int64_t begin) const;

  ParameterBuffersOptions options_;
  FlatLayout layout_;
  Buffer weights_, gradients_, masters_;
  std::vector<Buffer> moments_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PARAMETER_BUFFERS_H_
