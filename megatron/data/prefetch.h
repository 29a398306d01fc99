// Reads the samples that a rank will ask for next, on its own threads.
//
// A rank asks for ordinals in an order that follows from its layout (megatron/data/sampler.h): runs
// of micro_batch_size samples, from every data_parallel_size-th micro-batch. The threads read ahead
// in that order into a bounded queue. Get returns what the source returns, errors included. A
// caller that keeps to the order finds its sample ready. A caller that jumps (after a checkpoint,
// or when evaluation starts again) gets its sample too, and reading ahead continues from there.
//
// One thread at a time may call Get. The destructor waits for reads in progress.
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
  // The number of threads; 0 means none: every sample is read when it is asked for.
  int64_t num_workers = 0;
  // The largest number of samples to read ahead. A good value is one micro-batch for each worker
  // and one more.
  int64_t capacity = 0;
};

class SamplePrefetcher {
 public:
  // `source` must outlive this object.
  SamplePrefetcher(const SampleSource* source, const PrefetchOptions& options);
  ~SamplePrefetcher();
  SamplePrefetcher(const SamplePrefetcher&) = delete;
  SamplePrefetcher& operator=(const SamplePrefetcher&) = delete;

  // Does the same as SampleSource::Get. The memory of `sample` and that of the queue are swapped,
  // not copied.
  absl::Status Get(int64_t ordinal, Sample* sample);

 private:
  struct Slot {
    Sample sample;
    absl::Status status;
    bool ready = false;
  };

  void Work();
  // Returns the ordinal at position `place` of this rank's order, counted from start_.
  int64_t OrdinalOf(int64_t place) const;
  bool MayRead() const;
  void StartAt(int64_t ordinal, std::unique_lock<std::mutex>* lock);

  const SampleSource* const source_;
  const PrefetchOptions options_;
  std::mutex mutex_;
  std::condition_variable work_;   // notified if there is something to read, or to stop for
  std::condition_variable ready_;  // notified when a sample was read
  std::vector<Slot> slots_;        // place p uses slot p modulo the number of slots
  int64_t start_ = -1;             // the first ordinal that was asked for; -1: none yet
  int64_t next_read_ = 0;          // next place to read, counted from start_
  int64_t next_taken_ = 0;
  int64_t reading_ = 0;  // number of threads that are reading
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_PREFETCH_H_
