#include "megatron/data/sampler.h"

#include "glog/logging.h"

namespace megatron {

SampleRange MicroBatchSamples(const SamplerLayout& layout, int64_t consumed_samples,
                              int64_t micro_batch) {
  CHECK(0 <= layout.data_parallel_rank && layout.data_parallel_rank < layout.data_parallel_size)
      << "rank " << layout.data_parallel_rank << " of " << layout.data_parallel_size;
  const int64_t place = micro_batch * layout.data_parallel_size + layout.data_parallel_rank;
  return {consumed_samples + place * layout.micro_batch_size, layout.micro_batch_size};
}

}  // namespace megatron
