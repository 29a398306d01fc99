// ParameterNorms: sums of squares of gradients, weights and updates, over groups of parameters such
// as the layers of a model.
//
//   ParameterNorms norms(buffers, process_groups, group_of, sums, ledger);
//   norms.AddGradients(1 / loss_scale, stream);     // complete gradients
//   options.observer = &norms;                      // sums the squares of what an update changes
//   optimizer.Step(options, process_groups, stream);
//   norms.AddWeights(stream);
//   process_groups.world.AllReduce(sums, ReduceOp::kSum, stream);
//
// Each element of the model is added by one rank, so that the sums over the world do not depend on
// the layout but by rounding. Nothing here waits for the stream, except where masters lie in host
// memory.
#ifndef MEGATRON_OPTIM_PARAMETER_NORMS_H_
#define MEGATRON_OPTIM_PARAMETER_NORMS_H_

#include <cstdint>
#include <vector>

#include "megatron/comm/process_groups.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/memory.h"

namespace megatron {

class ParameterNorms : public UpdateObserver {
 public:
  enum Kind { kGradients, kWeights, kUpdates, kNumKinds };

  // group_of[i] is the group of buffers.parameters()[i]. `sums` is fp32 [groups, kNumKinds, 2],
  // where the last dimension is what ops::SumOfSquares writes; the caller zeroes it. The buffers
  // must outlive this.
  ParameterNorms(const ParameterBuffers& buffers, const ProcessGroups& groups,
                 std::vector<int> group_of, const Tensor& sums, MemoryLedger* ledger);

  // Adds to the sums of kGradients; the gradients are multiplied by `scale`.
  void AddGradients(float scale, const Stream& stream) const;
  void AddWeights(const Stream& stream) const;
  // Memory on the device, fp32 and flat, for others between calls: of a parameter's elements, or of
  // as many as an update shows at once.
  Tensor scratch() const;
  // Add to the sums of kUpdates.
  void BeforeUpdate(const FlatParameter& flat, const FlatRange& range,
                    const Stream& stream) override;
  void AfterUpdate(const FlatParameter& flat, const FlatRange& range,
                   const Stream& stream) override;

 private:
  Tensor SumOf(const FlatParameter& flat, Kind kind) const;
  // Returns the masters on the device: they themselves, or a copy in after_.
  Tensor Masters(const FlatParameter& flat, const FlatRange& range, const Stream& stream) const;

  const ParameterBuffers& buffers_;
  ProcessGroups groups_;
  std::vector<int> group_of_;
  Tensor sums_;
  Buffer before_;  // the weights of a part before its update
  Buffer after_;   // the same after it, or others, where they come from host memory
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PARAMETER_NORMS_H_
