// Tells which samples each data-parallel rank reads, in Megatron's order (--dataloader-type
// single).
//
// Samples are consumed in the order of their indices. An iteration takes the next global_batch_size
// samples, micro-step by micro-step. Of the micro_batch_size × data_parallel_size samples of a
// micro-step, rank r takes the r-th run of micro_batch_size. So the set of samples of an iteration
// depends only on how many were consumed before it, not on the micro-batch size or the number of
// ranks. megatron/data/sample_order.h has other orders, which map these indices to other
// samples.
#ifndef MEGATRON_DATA_SAMPLER_H_
#define MEGATRON_DATA_SAMPLER_H_

#include <cstdint>

namespace megatron {

struct SamplerLayout {
  int64_t micro_batch_size = 1;
  int64_t data_parallel_size = 1;
  int64_t data_parallel_rank = 0;
};

// Samples [begin, begin + count).
struct SampleRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// Returns this rank's samples of micro-batch `micro_batch` (from 0) in the iteration that begins
// after `consumed_samples`.
SampleRange MicroBatchSamples(const SamplerLayout& layout, int64_t consumed_samples,
                              int64_t micro_batch);

}  // namespace megatron

#endif  // MEGATRON_DATA_SAMPLER_H_
