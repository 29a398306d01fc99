// Which samples of a run each data-parallel rank reads, in Megatron's order (--dataloader-type
// single).
//
// Samples are consumed in the order of their indices. An iteration takes the next global_batch_size
// of them, micro-step by micro-step, and of each micro-step's micro_batch_size × data_parallel_size
// samples rank r takes the r-th run of micro_batch_size. So the set of samples of an iteration
// depends only on how many were consumed before it: not on the micro-batch size, not on the number
// of ranks. megatron/data/sample_order.h has other orders, which begin where these indices end.
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

// What micro-batch `micro_batch` (from 0) of the iteration that begins after `consumed_samples`
// holds on this rank.
SampleRange MicroBatchSamples(const SamplerLayout& layout, int64_t consumed_samples,
                              int64_t micro_batch);

}  // namespace megatron

#endif  // MEGATRON_DATA_SAMPLER_H_
