// The memory of a stage's parameters: weights, gradients, master weights and optimizer state, each
// flat.
//
// One *layout* serves all of them: an element has the same place in each. Parameters stand in
// reverse order of registration, which is about the order in which backward finishes their
// gradients, in three *sections*: copies of tied weights that another stage owns, dense parameters,
// expert parameters. Each parameter starts at a multiple of 64 elements, each section ends at a
// multiple of lcm(data-parallel ranks, 128), so that it can be cut evenly over them (Megatron's
// layout of its gradient buffers). Elements between parameters are zero and stay so.
//
// Weights and gradients cover all sections. Master weights and moments are fp32 and cover what this
// rank *holds* the state of: what is optimized here, all but the copies, or with shard_states its
// part of that. Where the model's dtype is fp32 the weights are their own masters.
//
// The parameters' `data` and `grad` are bound to this memory while the buffers live. On the meta
// device everything works and no memory is taken.
#ifndef MEGATRON_OPTIM_PARAMETER_BUFFERS_H_
#define MEGATRON_OPTIM_PARAMETER_BUFFERS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct ParameterBuffersOptions {
  DType model_dtype = DType::kFloat32;
  Device device;
  int num_moments = 2;  // of the optimizer: 2 for AdamW, 1 for SGD with momentum, 0 without
  int data_parallel_size = 1;
  int expert_data_parallel_size = 1;
  // Master weights and moments are shared out over the data-parallel ranks, of which this is the
  // data_parallel_rank-th: ZeRO-1 (S. Rajbhandari et al., arXiv 1910.02054). Not with experts.
  bool shard_states = false;
  int data_parallel_rank = 0;
};

// Elements [begin, end) of the flat weights and gradients.
struct FlatRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
// What two ranges share; of size 0 where that is nothing.
FlatRange Common(const FlatRange& a, const FlatRange& b);

// Where a parameter stands: elements [begin, end) of the flat weights and gradients.
struct ParameterPlace {
  Parameter* parameter = nullptr;
  int64_t begin = 0, end = 0;
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
  // Allocates under the names "weights", "gradients", "master weights", "exp_avg" and "exp_avg_sq".
  // The parameters and the ledger must outlive the buffers.
  ParameterBuffers(const std::vector<Parameter*>& parameters,
                   const ParameterBuffersOptions& options, MemoryLedger* ledger);

  // Fills masters and weights by each parameter's Initializer; the same bits on any layout. Where
  // there are masters the gradients lend their memory, and are zero afterwards.
  void InitializeWeights(uint64_t seed, const Stream& stream);
  // Rounds the masters to the weights, as far as they are held here, after the masters were loaded
  // from somewhere.
  void CopyMastersToWeights(const Stream& stream);
  void ZeroGradients(const Stream& stream);

  // By place.
  absl::Span<const ParameterPlace> places() const { return places_; }
  // Of what is held here, by falling place: dense parameters come in order of registration.
  std::vector<ParameterState> States() const;

  // Flat tensors. The last three begin at element held().begin of the first two.
  Tensor weights() const;
  Tensor gradients() const;
  Tensor masters() const;
  Tensor exp_avg() const { return Moment(0); }     // empty if there is none
  Tensor exp_avg_sq() const { return Moment(1); }  // empty if there is none

  // Sections: copies [0, optimized_begin), dense [.., experts_begin), experts [.., num_elements).
  int64_t optimized_begin() const { return optimized_begin_; }
  int64_t experts_begin() const { return experts_begin_; }
  int64_t num_elements() const { return num_elements_; }
  // What the masters and moments here are of.
  FlatRange held() const { return held_; }
  // The rank-th of `size` equal parts of the dense section: how ranks that hold the same parameters
  // share out work and state.
  FlatRange DensePart(int rank, int size) const;
  bool has_masters() const { return options_.model_dtype != DType::kFloat32; }
  const ParameterBuffersOptions& options() const { return options_; }

 private:
  void Plan(const std::vector<Parameter*>& parameters);
  Tensor Moment(int index) const;

  ParameterBuffersOptions options_;
  std::vector<ParameterPlace> places_;
  int64_t optimized_begin_ = 0, experts_begin_ = 0, num_elements_ = 0;
  FlatRange held_;
  Buffer weights_, gradients_, masters_;
  std::vector<Buffer> moments_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PARAMETER_BUFFERS_H_
