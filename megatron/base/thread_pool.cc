#include "megatron/base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "glog/logging.h"

namespace megatron {
namespace {

thread_local bool inside_loop = false;

// Number of polls before a thread sleeps (workers) or yields (the caller). The kernels of a step
// follow each other within microseconds, and waking a sleeping thread takes longer than that.
constexpr int kSpins = 4000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK_GE(num_threads, 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, Body body) {
  if (count <= 0) return;
  if (inside_loop || workers_.empty() || count == 1) {
    body(0, count);
    return;
  }
  count_ = count;
  body_ = &body;
  unfinished_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  RunRange(0, count, body);
  for (int spin = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::RunRange(int index, int64_t count, Body body) const {
  const int64_t threads = num_threads();
  const int64_t begin = count * index / threads;
  const int64_t end = count * (index + 1) / threads;
  if (begin == end) return;
  inside_loop = true;
  body(begin, end);
  inside_loop = false;
}

void ThreadPool::Work(int index) {
  uint64_t seen = 0;
  while (true) {
    for (int spin = 0;
         spin < kSpins && generation_.load(std::memory_order_acquire) == seen && !stop_; ++spin)
      Pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock,
                 [&] { return stop_ || generation_.load(std::memory_order_acquire) != seen; });
    }
    if (generation_.load(std::memory_order_acquire) == seen) return;  // no new loop: the pool stops
    ++seen;
    RunRange(index, count_, *body_);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0)
    return std::max(1u, std::thread::hardware_concurrency());
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace megatron
