// DiLoCo's outer optimizer (A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of
// Language Models", arXiv 2311.08105).
//
// Islands (comm/island_groups.h) train apart. Each has all master weights w; every `sync_every`
// steps the islands agree on new ones. Each rank does so for its optimizer range, with the ranks
// that have the same range in the other islands:
//
//   d = mean over islands of (global - w)              the outer gradient
//   v = momentum * v + d                               0 at first, as torch.optim.SGD has it
//   global -= lr * (d + momentum * v), or without Nesterov lr * v
//   w = global
//
// The inner optimizer's states are neither averaged nor reset. With lr 1 and momentum 0 the new
// weights are the mean of the islands' weights: FedAvg's, or those of local SGD.
//
// The global copy and v are fp32. The outer gradient is formed in the memory of the gradients,
// which are lost. Sums over islands have the order of islands, so that all ranks get the same bits.
//
// Islands send each other their global - w in fp32, or in codes of fewer bits (outer_codec.h), each
// island all of its codes to each other. The codes are rounded once, and their values summed in
// fp32. The processor does this, wherever the weights are.
#ifndef MEGATRON_OPTIM_OUTER_OPTIMIZER_H_
#define MEGATRON_OPTIM_OUTER_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "megatron/comm/process_groups.h"
#include "megatron/optim/outer_codec.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct OuterOptimizerOptions {
  int64_t sync_every = 0;  // number of steps from one outer step to the next; 0: there are none
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
  OuterGradientType gradient_type = OuterGradientType::kFloat32;

  bool enabled() const { return sync_every > 0; }
};

class OuterOptimizer {
 public:
  // `groups` are those of the whole run, whose replicas are the islands. Masters and states of the
  // buffers, which must outlive this, are on their device.
  OuterOptimizer(const OuterOptimizerOptions& options, const ProcessGroups& groups,
                 ParameterBuffers* buffers, MemoryLedger* ledger);

  int islands() const { return groups_.data_context_replicas.size(); }
  int island() const { return groups_.data_context_replicas.rank(); }
  // Returns whether an outer step follows when so many steps are done.
  bool IsDue(int64_t iteration) const { return iteration % options_.sync_every == 0; }

  // Begins from the masters, which are the same in all islands: they are the global copy, and there
  // is no momentum.
  void Start(const Stream& stream);
  // Makes an outer step, and rounds the masters to the weights of the optimizer range. The
  // gradients are undefined then. Collective over islands.
  void Step(const Stream& stream);
  // Exchanges the masters and the global copy, and rounds the masters to the weights. The gradients
  // are undefined then.
  void SwapWithMasters(const Stream& stream);

  // Elements `range` of a bucket, which are in this rank's optimizer range.
  Tensor Global(const Bucket& bucket, const FlatRange& range) const;
  Tensor Momentum(const Bucket& bucket, const FlatRange& range) const;
  bool has_momentum() const { return options_.momentum != 0; }
  // All memory of this, for mirrors.
  std::vector<Tensor> tensors() const;

 private:
  const ProcessGroup& IslandsOf(const Bucket& bucket) const;
  Tensor Part(const Buffer& buffer, const Bucket& bucket, const FlatRange& range) const;
  void StepBucket(const Bucket& bucket, const FlatRange& range, const Stream& stream) const;
  bool sends_codes() const {
    return islands() > 1 && options_.gradient_type != OuterGradientType::kFloat32;
  }
  // gradient = the sum over islands of what the codes of their gradients say.
  void SumCodes(const ProcessGroup& islands, const Tensor& gradient, const Stream& stream) const;

  const OuterOptimizerOptions options_;
  const ProcessGroups groups_;
  ParameterBuffers* const buffers_;
  std::vector<int64_t> positions_;  // where the optimizer range of each bucket begins
  int64_t elements_ = 0;
  Buffer global_, momentum_;
  // Memory of the host for a piece of the gradients: the codes of this island, behind them those of
  // all islands; the values of one island, and the sum.
  int64_t piece_elements_ = 0;
  Buffer codes_, values_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OUTER_OPTIMIZER_H_
