// Ranges of a bucket's elements.
#ifndef MEGATRON_OPTIM_BUCKET_RANGES_H_
#define MEGATRON_OPTIM_BUCKET_RANGES_H_

#include "megatron/optim/flat_layout.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Returns the range counted from the bucket's begin.
inline FlatRange Within(const FlatRange& range, const Bucket& bucket) {
  return {range.begin - bucket.range.begin, range.end - bucket.range.begin};
}

inline Tensor SliceOf(const Tensor& flat, const FlatRange& range) {
  return flat.Slice(0, range.begin, range.end);
}

}  // namespace megatron

#endif  // MEGATRON_OPTIM_BUCKET_RANGES_H_
