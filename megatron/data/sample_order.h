// Orders of a training that goes through its samples again and again, each time in another random
// order (--dataloader-type cyclic).
//
// Vocabulary. A training consumes samples one after another; the number of those before is an
// *ordinal*. It depends neither on the number of ranks nor on the micro-batch size
// (megatron/data/sampler.h). An order says which sample of the dataset an ordinal is. Both orders
// here are functions: training can go on at any ordinal, and each epoch takes each of its samples
// exactly once.
//
// Any number of threads may use an order.
#ifndef MEGATRON_DATA_SAMPLE_ORDER_H_
#define MEGATRON_DATA_SAMPLE_ORDER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "megatron/data/sample.h"

namespace megatron {

class SampleOrder {
 public:
  virtual ~SampleOrder() = default;
  // In [0, number of samples), for any ordinal from 0 on.
  virtual int64_t SampleOf(int64_t ordinal) const = 0;
};

// One permutation of all samples for each epoch, the same for any number of ranks. It is computed
// number by number (a Feistel network over the next power of four, walked until it lands on a
// sample), so it takes no memory.
class GlobalOrder : public SampleOrder {
 public:
  GlobalOrder(int64_t num_samples, uint64_t seed);
  int64_t SampleOf(int64_t ordinal) const override;

 private:
  int64_t num_samples_;
  uint64_t seed_;
  int half_bits_;
};

// Megatron's order (its data sharding): samples are cut into one bucket for each data-parallel
// rank, and each rank goes through its own by the permutation that PyTorch draws from the number of
// the epoch. So the order depends on micro-batch size and number of ranks, and no seed; samples
// that do not fill a micro-batch on every rank are left out of every epoch.
class BucketOrder : public SampleOrder {
 public:
  // There are at least micro_batch_size · data_parallel_size samples, and fewer than 2^32 / 20: up
  // to there PyTorch draws as this does.
  BucketOrder(int64_t num_samples, int64_t micro_batch_size, int64_t data_parallel_size);
  int64_t SampleOf(int64_t ordinal) const override;

 private:
  using Permutation = std::shared_ptr<const std::vector<int32_t>>;
  Permutation PermutationOf(int64_t epoch) const;

  int64_t micro_batch_size_;
  int64_t data_parallel_size_;
  int64_t bucket_size_;
  mutable std::mutex mutex_;
  // Of the two epochs asked for last: readers that run ahead are in the next one already.
  mutable std::pair<int64_t, Permutation> recent_[2] = {{-1, nullptr}, {-1, nullptr}};
};

constexpr int64_t kMaxBucketSamples = 4294967295 / 20;

// A dataset in an order: sample k is the dataset's sample order->SampleOf(k), without end.
class OrderedSamples : public SampleSource {
 public:
  OrderedSamples(std::unique_ptr<SampleSource> source, std::unique_ptr<SampleOrder> order)
      : source_(std::move(source)), order_(std::move(order)) {}

  int64_t size() const override;
  absl::Status Get(int64_t index, Sample* sample) const override;

 private:
  const std::unique_ptr<SampleSource> source_;
  const std::unique_ptr<SampleOrder> order_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_SAMPLE_ORDER_H_
