#include "megatron/train/trainer/source_losses.h"

#include "megatron/base/round_up.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron {

SourceLosses::SourceLosses(const ModelOptions& model, int64_t num_sources, int64_t most_tokens,
                           Device device, MemoryLedger* ledger)
    : of_sequences_(model.num_classes > 0),
      group_(model.num_choices),
      come_in_backward_(model.num_classes == 0 && model.logits_chunk > 0) {
  const Shape losses{most_tokens}, sums{num_sources, 2};
  const int64_t size = SizeOf(DType::kFloat32);
  const int64_t sums_bytes = RoundUp(sums.numel() * size, Buffer::kAlignment);
  buffer_ = Buffer(device, sums_bytes + losses.numel() * size, "losses by file", ledger);
  sums_S2_ = buffer_.At(0, DType::kFloat32, sums);
  token_losses_T_ = buffer_.At(sums_bytes, DType::kFloat32, losses);
}

void SourceLosses::StartStep(const Stream& stream) const { ops::Zero(stream, sums_S2_); }

// What fills a micro-batch up says that it is of sample 0, and has no weight.
void SourceLosses::Add(const Stream& stream, const SampleSource& samples, const MicroBatch& host,
                       const MicroBatch& batch) const {
  const int64_t stride = of_sequences_ ? group_ : 1;
  const int64_t groups = group_ > 1 ? host.num_samples : host.num_sequences();
  const int64_t count = of_sequences_ ? groups : host.num_tokens();
  const int64_t* const sample =
      (of_sequences_ ? host.sequence_sample_S : host.sample_T).data<int64_t>();
  const Tensor& weights = of_sequences_ ? batch.sequence_weight_S : batch.loss_weight_T;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    int64_t last = sample[begin * stride];
    const int source = samples.SourceOf(last);
    for (end = begin + 1; end < count; ++end) {
      const int64_t next = sample[end * stride];
      if (next != last && samples.SourceOf(next) != source) break;
      last = next;
    }
    ops::WeightedSum(stream, token_losses_T_.Slice(0, begin, end), weights.Slice(0, begin, end),
                     sums_S2_.Select(0, source));
  }
}

}  // namespace megatron
