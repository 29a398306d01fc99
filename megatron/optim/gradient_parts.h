// GradientParts: the norms of the gradients of parts of a step's batch, beside that of the whole
// batch. Their difference says how noisy gradients are (gradient_noise.h).
//
// With several data-parallel ranks the parts are what each of them reduces: its share of the batch,
// or where gradients are sharded, or kept in bf16, its micro-batches one by one. On one
// data-parallel rank the parts are the micro-batches where gradients are kept in bf16. Otherwise
// the part is the first half of the micro-batches, whose gradient lies in memory between two
// backward passes. So nothing is computed twice. A step of one micro-batch on one rank has no
// parts. Neither have steps with context parallelism, whose ranks hold parts of the same samples,
// and those of one data-parallel rank whose schedule puts gradients of weights off.
//
// Both norms are those of the dense parameters whose gradients are complete on each data-parallel
// rank: without experts, tied weights of several stages, and those of which tensor-parallel ranks
// hold summands.
#ifndef MEGATRON_OPTIM_GRADIENT_PARTS_H_
#define MEGATRON_OPTIM_GRADIENT_PARTS_H_

#include <cstdint>
#include <vector>

#include "megatron/comm/process_groups.h"
#include "megatron/optim/parameter_buffers.h"

namespace megatron {

class GradientParts {
 public:
  // `sums` is fp32 [2, 2], of the parts and of the whole, as ops::SumOfSquares writes it; the
  // caller zeroes it before a step. Sums over the world are what part_factor() is for. The buffers
  // must outlive this.
  GradientParts(const ParameterBuffers& buffers, const ProcessGroups& groups, const Tensor& sums);

  // Measures the step that begins; the gradients are multiplied by `scale`. `in_order`: the
  // gradients of a block are complete in one micro-batch before they begin in the next one, which
  // schedules that put gradients of weights off do not promise.
  void StartStep(int64_t micro_batches, float scale, bool in_order);
  // The step is over: nothing is added until the next StartStep.
  void FinishStep() { source_ = Source::kNone; }

  // Returns whether the step that was started has parts.
  bool has_parts() const { return source_ != Source::kNone; }
  // The size of a part beside the whole batch.
  double part_share() const;
  // The factor that makes the sum over the world the mean square norm of a part's mean gradient.
  double part_factor() const;

  // DataParallel calls these: before the bucket's whole gradients are reduced, on the stream that
  // reduces them, and behind each micro-batch's last gradient of a block.
  void BeforeReduce(const Bucket& bucket, const Tensor& whole, const Stream& stream) const;
  void AfterMicroBatch(int block, const Stream& stream);
  // Adds the squares of the whole batch's gradients, which are complete. Those that are not on the
  // device as fp32 come through `scratch`, which is fp32, flat and on the device.
  void AddWhole(const Tensor& scratch, const Stream& stream) const;

 private:
  enum class Source { kNone, kReduced, kFirstMicroBatches };

  // Whether what a rank reduces are the gradients of one micro-batch.
  bool ReducesEachMicroBatch() const;
  bool Counts(const FlatParameter& flat) const;

  const ParameterBuffers& buffers_;
  ProcessGroups groups_;
  Tensor parts_2_, whole_2_;
  Source source_ = Source::kNone;
  int64_t micro_batches_ = 0;
  float scale_ = 1;
  std::vector<int64_t> ended_;  // micro-batches whose gradients are in memory, by block
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_GRADIENT_PARTS_H_
