// Stage: what a model implements to be trained by a pipeline: its part of the model on one rank.
//
// Vocabulary. A *work item* is one micro-batch on one chunk of this stage. An *edge* joins a chunk
// to the next one in the model, on the next stage or, between the last stage and the first, in the
// next chunk; a tuple of tensors crosses it forward, and their gradients, of the same specs, cross
// it backward. The first chunk of the model has no inputs and reads its batch; the last has no
// outputs and computes the loss.
//
// Memory. A work item lives in a *slot* of its chunk, a number below StagePlan::slots[chunk], from
// its forward until its backward is complete, or until the end of its forward where it has no
// backward; no two live items of one chunk share one. What a stage saves for backward it saves per
// chunk and slot, so its memory is planned and reused. In the same way a backward in two parts has
// a *deferred slot*, a number below StagePlan::deferred_slots[chunk], from its first part until its
// second is complete.
//
// Threads: all calls come from one thread.
#ifndef MEGATRON_PIPELINE_STAGE_H_
#define MEGATRON_PIPELINE_STAGE_H_

#include <vector>

#include "absl/types/span.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct TensorSpec {
  DType dtype = DType::kFloat32;
  Shape shape;

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.dtype == b.dtype && a.shape == b.shape;
  }
};

struct WorkItem {
  int microbatch = 0;  // number within the step
  int chunk = 0;
  int slot = 0;
  int deferred_slot = -1;  // used by a backward in two parts
};

class Stage {
 public:
  virtual ~Stage() = default;

  // The tensors that cross the edges into and out of a chunk for one micro-batch, known from the
  // batch's metadata alone before anything runs. Both ends of an edge say the same.
  virtual std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const = 0;
  virtual std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const = 0;

  // outputs = the chunk applied to inputs. `inputs` stay where they are, unchanged, until the
  // item's backward is complete, or its forward where it has no backward: they need not be copied.
  // `outputs` are gone when Forward has returned.
  virtual void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
                       absl::Span<const Tensor> outputs, const Stream& stream) = 0;

  // input_gradients = the gradients of inputs; parameter gradients += theirs, or where the item has
  // a deferred slot as few of them as may be: BackwardWeight follows, with other items between.
  // `output_gradients` are gone when Backward has returned. `input_gradients` are empty where no
  // part before this one has parameters to train (Schedule::first_trained). Those parts have no
  // Backward.
  virtual void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                        absl::Span<const Tensor> input_gradients, const Stream& stream) = 0;

  // Parameter gradients += those that the item's Backward has put off.
  virtual void BackwardWeight(const WorkItem& item, const Stream& stream) = 0;
};

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_STAGE_H_
