// The training loss of each of several sources of samples (SampleSource::SourceOf).
//
// The last stage writes the losses of a micro-batch to one place (StepInputs::token_losses_T).
// Behind the pass that has written them they are added to the sums of their samples' sources. No
// pass knows of sources, so one CUDA graph serves the micro-batches of all of them.
#ifndef MEGATRON_TRAIN_TRAINER_SOURCE_LOSSES_H_
#define MEGATRON_TRAIN_TRAINER_SOURCE_LOSSES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "megatron/data/sample.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/models/model_options.h"
#include "megatron/pipeline/stage_wrapper.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"
#include "megatron/train/batches/micro_batch_packer.h"

namespace megatron {

// The memory of a rank that has the model's last part, and how it is used.
class SourceLosses {
 public:
  // `most_tokens` are those of a micro-batch on this rank.
  SourceLosses(const ModelOptions& model, int64_t num_sources, int64_t most_tokens, Device device,
               MemoryLedger* ledger);

  // Returns the place of a micro-batch's losses: fp32 [most_tokens].
  const Tensor& token_losses_T() const { return token_losses_T_; }
  // Returns the step's sums of weight * loss and of weight: fp32 [sources, 2].
  const Tensor& sums_S2() const { return sums_S2_; }

  void StartStep(const Stream& stream) const;
  // Adds the losses that lie in their place, which are those of `batch`. `host` is its copy on the
  // host, `samples` where its samples come from.
  void Add(const Stream& stream, const SampleSource& samples, const MicroBatch& host,
           const MicroBatch& batch) const;
  // Returns whether backward passes write losses, and not forward passes.
  bool come_in_backward() const { return come_in_backward_; }

 private:
  const bool of_sequences_;  // whether losses are those of sequences, or of groups of them
  const int64_t group_;      // number of sequences of a group
  const bool come_in_backward_;
  Buffer buffer_;
  Tensor token_losses_T_, sums_S2_;
};

// A stage whose training losses are added up by source.
class SourceLossStage : public StageWrapper {
 public:
  // All must outlive this. Nothing is added if `losses` is null. The model's last part is the
  // stage's chunk `last_chunk`, and `packer` has packed its micro-batches from `samples`.
  SourceLossStage(Stage* stage, const SourceLosses* losses, int last_chunk,
                  const SampleSource& samples, const MicroBatchPacker& packer)
      : StageWrapper(stage),
        losses_(losses),
        last_chunk_(last_chunk),
        samples_(samples),
        packer_(packer) {}

  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override {
    inner().Forward(item, inputs, outputs, stream);
    Add(item, /*in_backward=*/false, stream);
  }
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override {
    inner().Backward(item, output_gradients, input_gradients, stream);
    Add(item, /*in_backward=*/true, stream);
  }
  void BackwardWeight(const WorkItem& item, const Stream& stream) override {
    inner().BackwardWeight(item, stream);
  }

 private:
  void Add(const WorkItem& item, bool in_backward, const Stream& stream) const {
    if (losses_ == nullptr || item.chunk != last_chunk_) return;
    if (losses_->come_in_backward() != in_backward) return;
    losses_->Add(stream, samples_, packer_.HostBatch(item.microbatch),
                 packer_.batches()[item.microbatch]);
  }

  const SourceLosses* const losses_;
  const int last_chunk_;
  const SampleSource& samples_;
  const MicroBatchPacker& packer_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_SOURCE_LOSSES_H_
