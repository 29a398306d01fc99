// A fixed set of threads that share loops out statically.
//
// A loop over [0, count) is cut into contiguous ranges, one per thread, by arithmetic alone: there
// is no stealing and no queue. What a kernel computes for index i must not depend on the range that
// i falls into; every kernel of this project obeys this rule, so results are the same for any
// number of threads.
//
// One thread at a time may call; it works on the loop too. A ParallelFor inside a ParallelFor runs
// inline on its thread.
#ifndef MEGATRON_BASE_THREAD_POOL_H_
#define MEGATRON_BASE_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace megatron {

class ThreadPool {
 public:
  // `num_threads` includes the calling thread, so 1 starts no thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on ranges that cover [0, count) exactly once, in parallel, and returns
  // when all calls have returned. The caller sees everything that the bodies wrote. Allocates
  // nothing.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t begin, int64_t end)> body);

 private:
  using Body = absl::FunctionRef<void(int64_t, int64_t)>;
  void Work(int index);
  void RunRange(int index, int64_t count, Body body) const;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};  // number of the current loop
  std::atomic<int> unfinished_{0};
  std::atomic<bool> stop_{false};
  int64_t count_ = 0;
  const Body* body_ = nullptr;
};

// Returns the number of cores that this process may run on.
int AvailableCores();

}  // namespace megatron

#endif  // MEGATRON_BASE_THREAD_POOL_H_
