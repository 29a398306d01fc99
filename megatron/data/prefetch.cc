#include "megatron/data/prefetch.h"

#include <utility>

#include "glog/logging.h"

namespace megatron {

SamplePrefetcher::SamplePrefetcher(const SampleSource* source, const PrefetchOptions& options)
    : source_(source), options_(options) {
  if (options.num_workers == 0) return;
  CHECK_GT(options.capacity, 0);
  slots_.resize(static_cast<size_t>(options.capacity));
  for (int64_t i = 0; i < options.num_workers; ++i) workers_.emplace_back([this] { Work(); });
}

SamplePrefetcher::~SamplePrefetcher() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int64_t SamplePrefetcher::OrdinalOf(int64_t place) const {
  const int64_t run = options_.layout.micro_batch_size;
  return start_ + place / run * run * options_.layout.data_parallel_size + place % run;
}

bool SamplePrefetcher::MayRead() const {
  return start_ >= 0 && next_read_ < next_taken_ + options_.capacity &&
         OrdinalOf(next_read_) < source_->size();
}

void SamplePrefetcher::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stop_ || MayRead(); });
    if (stop_) return;
    const int64_t ordinal = OrdinalOf(next_read_);
    Slot& slot = slots_[static_cast<size_t>(next_read_ % options_.capacity)];
    ++next_read_;
    ++reading_;
    lock.unlock();
    absl::Status status = source_->Get(ordinal, &slot.sample);
    lock.lock();
    slot.status = std::move(status);
    slot.ready = true;
    --reading_;
    ready_.notify_all();
  }
}

void SamplePrefetcher::StartAt(int64_t ordinal, std::unique_lock<std::mutex>* lock) {
  start_ = -1;  // keeps threads from beginning another read
  ready_.wait(*lock, [this] { return reading_ == 0; });
  for (Slot& slot : slots_) slot.ready = false;
  next_read_ = next_taken_ = 0;
  start_ = ordinal;
  work_.notify_all();
}

absl::Status SamplePrefetcher::Get(int64_t ordinal, Sample* sample) {
  // No thread reads such an ordinal; the source reports what is wrong with it.
  if (workers_.empty() || ordinal < 0 || ordinal >= source_->size())
    return source_->Get(ordinal, sample);
  std::unique_lock<std::mutex> lock(mutex_);
  if (start_ < 0 || OrdinalOf(next_taken_) != ordinal) StartAt(ordinal, &lock);
  Slot& slot = slots_[static_cast<size_t>(next_taken_ % options_.capacity)];
  ready_.wait(lock, [&slot] { return slot.ready; });
  std::swap(*sample, slot.sample);
  slot.ready = false;
  ++next_taken_;
  work_.notify_one();
  return std::move(slot.status);
}

}  // namespace megatron
