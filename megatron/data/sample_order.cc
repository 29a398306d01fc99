#include "megatron/data/sample_order.h"

#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron {
namespace {

// Four rounds make a permutation that cannot be told from a random one (Luby and Rackoff). Two more
// are added because small halves mix less.
constexpr int kRounds = 6;

// Mixes x so that every bit of the result depends on every bit of x (Stafford's 13th mixer, as in
// splitmix64).
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace

GlobalOrder::GlobalOrder(int64_t num_samples, uint64_t seed)
    : num_samples_(num_samples), seed_(seed), half_bits_(1) {
  CHECK_GT(num_samples, 0);
  while (half_bits_ < 32 && int64_t{1} << (2 * half_bits_ - 1) < (num_samples + 1) / 2)
    ++half_bits_;
}

int64_t GlobalOrder::SampleOf(int64_t ordinal) const {
  CHECK_GE(ordinal, 0);
  const uint64_t epoch = static_cast<uint64_t>(ordinal / num_samples_);
  const uint64_t key = Mix(Mix(seed_ + 0x9e3779b97f4a7c15u) + epoch);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = static_cast<uint64_t>(ordinal % num_samples_);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (Mix(key + (round << 32 | right)) & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(num_samples_));
  return static_cast<int64_t>(value);
}

BucketOrder::BucketOrder(int64_t num_samples, int64_t micro_batch_size, int64_t data_parallel_size)
    : micro_batch_size_(micro_batch_size),
      data_parallel_size_(data_parallel_size),
      bucket_size_(num_samples / (micro_batch_size * data_parallel_size) * micro_batch_size) {
  CHECK_GT(bucket_size_, 0) << num_samples << " samples for " << data_parallel_size
                            << " ranks and micro-batches of " << micro_batch_size;
  CHECK_LT(num_samples, kMaxBucketSamples);
}

BucketOrder::Permutation BucketOrder::PermutationOf(int64_t epoch) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (recent_[0].first != epoch) std::swap(recent_[0], recent_[1]);
  if (recent_[0].first == epoch) return recent_[0].second;
  // torch.randperm of a torch.Generator seeded by the epoch.
  std::mt19937 random(static_cast<uint32_t>(epoch));
  std::vector<int32_t> drawn(static_cast<size_t>(bucket_size_));
  std::iota(drawn.begin(), drawn.end(), 0);
  for (size_t i = 0; i + 1 < drawn.size(); ++i)
    std::swap(drawn[i], drawn[i + random() % (drawn.size() - i)]);
  recent_[0] = {epoch, std::make_shared<const std::vector<int32_t>>(std::move(drawn))};
  return recent_[0].second;
}

int64_t BucketOrder::SampleOf(int64_t ordinal) const {
  CHECK_GE(ordinal, 0);
  const int64_t epoch_size = bucket_size_ * data_parallel_size_;
  const int64_t in_epoch = ordinal % epoch_size;
  const int64_t micro_step = in_epoch / (micro_batch_size_ * data_parallel_size_);
  const int64_t rank = in_epoch / micro_batch_size_ % data_parallel_size_;
  const int64_t in_bucket = micro_step * micro_batch_size_ + in_epoch % micro_batch_size_;
  return rank * bucket_size_ +
         (*PermutationOf(ordinal / epoch_size))[static_cast<size_t>(in_bucket)];
}

int64_t OrderedSamples::size() const { return std::numeric_limits<int64_t>::max(); }

absl::Status OrderedSamples::Get(int64_t index, Sample* sample) const {
  if (index < 0) return absl::OutOfRangeError(absl::StrCat("sample ", index, " does not exist"));
  return source_->Get(order_->SampleOf(index), sample);
}

}  // namespace megatron
