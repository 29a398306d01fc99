// Orders for training that goes through its samples repeatedly, each time in another random order
// (--dataloader-type cyclic).
//
// Vocabulary. Training consumes samples one after another; a sample's *ordinal* is the number of
// samples consumed before it. It depends neither on the number of ranks nor on the micro-batch size
// (megatron/data/sampler.h). An order maps an ordinal to a sample of the dataset. Both orders here
// are pure functions: training can resume at any ordinal, and each epoch takes each of its samples
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
  // Returns a sample in [0, number of samples) for any ordinal from 0 on.
  virtual int64_t SampleOf(int64_t ordinal) const = 0;
};

// One permutation of all samples for each epoch, the same for any number of ranks. Each element is
// computed on its own (a Feistel network over the next power of four, applied again until it gives
// a valid sample), so it takes no memory.
class GlobalOrder : public SampleOrder {
 public:
  GlobalOrder(int64_t num_samples, uint64_t seed);
  int64_t SampleOf(int64_t ordinal) const override;

 private:
  int64_t num_samples_;
  uint64_t seed_;
  int half_bits_;
};

// Megatron's order (its data sharding): samples are divided into one bucket for each data-parallel
// rank, and each rank goes through its bucket in the permutation that PyTorch draws with the epoch
// as seed. So the order depends on micro-batch size and number of ranks, and on no seed; every
// epoch leaves out the samples that do not fill a micro-batch on every rank.
class BucketOrder : public SampleOrder {
 public:
  // There must be at least micro_batch_size · data_parallel_size samples, and fewer than 2^32 / 20:
  // below that PyTorch draws as this class does.
  BucketOrder(int64_t num_samples, int64_t micro_batch_size, int64_t data_parallel_size);
  int64_t SampleOf(int64_t ordinal) const override;

 private:
  using Permutation = std::shared_ptr<const std::vector<int32_t>>;
  Permutation PermutationOf(int64_t epoch) const;

  int64_t micro_batch_size_;
  int64_t data_parallel_size_;
  int64_t bucket_size_;
  mutable std::mutex mutex_;
  // The permutations of the two epochs asked for last: readers that run ahead are already in the
  // next epoch.
  mutable std::pair<int64_t, Permutation> recent_[2] = {{-1, nullptr}, {-1, nullptr}};
};

constexpr int64_t kMaxBucketSamples = 4294967295 / 20;

// A dataset in a given order: sample k is the dataset's sample order->SampleOf(k), without end.
class OrderedSamples : public SampleSource {
 public:
  OrderedSamples(std::unique_ptr<SampleSource> source, std::unique_ptr<SampleOrder> order)
      : source_(std::move(source)), order_(std::move(order)) {}

  int64_t size() const override;
  absl::Status Get(int64_t index, Sample* sample) const override;
  int SourceOf(int64_t index) const override { return source_->SourceOf(order_->SampleOf(index)); }

 private:
  const std::unique_ptr<SampleSource> source_;
  const std::unique_ptr<SampleOrder> order_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_SAMPLE_ORDER_H_
