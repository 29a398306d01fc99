// RankAverage: how an optimizer whose gradients are a rank's own averages what it makes of them.
#ifndef MEGATRON_OPTIM_RANK_AVERAGE_H_
#define MEGATRON_OPTIM_RANK_AVERAGE_H_

#include "megatron/optim/flat_layout.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class RankAverage {
 public:
  virtual ~RankAverage() = default;

  // The number of data-parallel ranks. The gradients of the batch are the sum over them of the
  // ranks' own.
  virtual int ranks() const = 0;
  // The parameters' elements of `values`, an fp32 tensor as long as the bucket, = about their mean
  // over ranks; all ranks get the same bits. What the mean lacks is kept for the next call. All
  // ranks call this for the same buckets in the same order.
  virtual void Average(const Bucket& bucket, const Tensor& values, const Stream& stream) const = 0;
  // Forgets what means have lacked so far.
  virtual void ForgetErrors(const Stream& stream) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RANK_AVERAGE_H_
