// Softmax cross-entropy over a vocabulary that may be split over tensor-parallel ranks. The
// gradient is written over the logits.
//
// Legend: T tokens, V columns of this rank. Logits are fp32, bf16 or fp16 and contiguous; labels
// are int32; everything else is fp32. This rank holds global columns [first_column, first_column +
// V). Columns from `vocab_size` on are padding: they count as minus infinity and get no gradient.
//
//   CrossEntropyStatistics(logits, ...) -> max, sum, target
//   (over tensor ranks: all-reduce max to new_max; RescaleSum; all-reduce sum and target)
//   CrossEntropyLoss(...) -> loss;  CrossEntropyBackward(logits, ...) -> gradient, in place
//
// A rank that holds all columns has loss and gradient by one op:
//
//   CrossEntropy(logits, ...) -> loss, hit, gradient, in place
#ifndef MEGATRON_OPS_CROSS_ENTROPY_H_
#define MEGATRON_OPS_CROSS_ENTROPY_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct VocabRange {
  int64_t first_column = 0;
  int64_t vocab_size = 0;  // global, without padding
};

// Computes for each row, over this rank's columns: the largest logit, the sum of exp(logit - max),
// and the label's logit (0 if another rank holds it).
void CrossEntropyStatistics(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                            const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                            const Tensor& target_T);

// sum *= exp(old_max - new_max).
void RescaleSum(const Stream& stream, const Tensor& old_max_T, const Tensor& new_max_T,
                const Tensor& sum_T);

// loss = log(sum) + max - target.
void CrossEntropyLoss(const Stream& stream, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& target_T, const Tensor& loss_T);

// hit = 1 if the label's logit is the largest of all, else 0. The sum of hits is the number of
// correct predictions.
void CrossEntropyHits(const Stream& stream, const Tensor& max_T, const Tensor& target_T,
                      const Tensor& hit_T);

// logits (=) weight[t] * (softmax - one_hot(label)). A label outside the vocabulary has no one-hot
// entry; its weight should be 0. If the weight is 0, the gradient is 0 even if a logit is NaN.
// Where softcap is above 0, SoftCap (elementwise.h) made the logits with it, and the gradient is
// that of what it read.
void CrossEntropyBackward(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                          const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                          const Tensor& weight_T, float softcap = 0);

// Computes the losses, the hits unless hit_T is empty, and unless weight_T is empty the gradient in
// place of the logits, with the bits of the ops above. All words are this rank's; the range begins
// at column 0. On a GPU each row is read once, as far as shared memory holds it.
void CrossEntropy(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                  const VocabRange& range, const Tensor& weight_T, const Tensor& loss_T,
                  const Tensor& hit_T, float softcap = 0);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CROSS_ENTROPY_H_
