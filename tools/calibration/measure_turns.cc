#include "tools/calibration/measure_turns.h"

#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

// What a stage of a small model computes between two messages.
constexpr double kPieceSeconds = 0.005;

double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Time without a core doesn't count, as it doesn't for a rank's kernels.
void Compute(double seconds) {
  const double end = ThreadSeconds() + seconds;
  while (ThreadSeconds() < end) continue;
}

// A thread that waits leaves its core to others.
class Mailbox {
 public:
  void Send() {
    std::lock_guard<std::mutex> lock(mutex_);
    sent_ = Clock::now();
    is_full_ = true;
    full_.notify_one();
  }

  // Waits for a message and returns the seconds since it was sent.
  double Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    full_.wait(lock, [this] { return is_full_; });
    is_full_ = false;
    return std::chrono::duration<double>(Clock::now() - sent_).count();
  }

 private:
  std::mutex mutex_;
  std::condition_variable full_;
  Clock::time_point sent_;
  bool is_full_ = false;
};

}  // namespace

double MeasureTurnSeconds(int cores, int turns) {
  Mailbox there, back;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> others;
  for (int core = 0; core < cores; ++core) {
    others.emplace_back([&] {
      while (!is_over) Compute(1e-4);
    });
  }
  std::thread partner([&] {
    for (int turn = 0; turn < turns; ++turn) {
      there.Take();
      Compute(kPieceSeconds);
      back.Send();
    }
  });
  double waited = 0;
  for (int turn = 0; turn < turns; ++turn) {
    Compute(kPieceSeconds);
    there.Send();
    waited += back.Take();
  }
  partner.join();
  is_over = true;
  for (std::thread& other : others) other.join();
  return turns == 0 ? 0 : waited / turns;
}

}  // namespace megatron
