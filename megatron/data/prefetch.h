// Reads the samples that a rank will ask for next, on threads of its own.
//
// A rank asks for ordinals in an order that its layout tells (megatron/data/sampler.h): runs of
// micro_batch_size, of every data_parallel_size-th micro-batch. The threads read ahead in that
// order into a bounded queue. What Get gives is what the source gives, errors included: for a
// caller that keeps to the order it is there already, and one that jumps (after a checkpoint, or
// where evaluation starts again) gets it all the same and is followed from there.
//
// One thread at a time may call Get. Destruction waits for the reads that are under way.
#ifndef MEGATRON_DATA_PREFETCH_H_
#define MEGATRON_DATA_PREFETCH_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "megatron/data/sample.h"
#include "megatron/data/sampler.h"

namespace megatron {

struct PrefetchOptions {
  SamplerLayout layout;
  // Threads; 0: none, and every sample is read when it is asked for.
  int64_t num_workers = 0;
  // Samples that are read ahead at most. A micro-batch for each worker and one more is a good
  // number.
  int64_t capacity = 0;
};

class SamplePrefetcher {
 public:
  // `source` must live longer than this.
  SamplePrefetcher(const SampleSource* source, const PrefetchOptions& options);
  ~SamplePrefetcher();
  SamplePrefetcher(const SamplePrefetcher&) = delete;
  SamplePrefetcher& operator=(const SamplePrefetcher&) = delete;

  // As SampleSource::Get. The memory of `sample` and that of the queue are exchanged, not
  // copied.
  absl::Status Get(int64_t ordinal, Sample* sample);

 private:
  struct Slot {
    Sample sample;
    absl::Status status;
    bool ready = false;
  };

  void Work();
  // The ordinal of place `place` in this rank's order, counted from start_.
  int64_t OrdinalOf(int64_t place) const;
  bool MayRead() const;
  void StartAt(int64_t ordinal, std::unique_lock<std::mutex>* lock);

  const SampleSource* const source_;
  const PrefetchOptions options_;
  std::mutex mutex_;
  std::condition_variable work_;   // there is something to read, or to stop for
  std::condition_variable ready_;  // a sample was read
  std::vector<Slot> slots_;        // place p is in slot p modulo their number
  int64_t start_ = -1;             // the first ordinal that was asked for; -1: none yet
  int64_t next_read_ = 0;          // places from start_
  int64_t next_taken_ = 0;
  int64_t reading_ = 0;  // threads that are
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_PREFETCH_H_
