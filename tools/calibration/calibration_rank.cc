#include "tools/calibration/calibration_rank.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "megatron/base/median.h"

namespace megatron::calibration {
namespace {

// Bytes of the operands that a kernel goes through in turn, on each core.
constexpr int64_t kColdBytes = 32 << 20;

using Clock = double (*)();

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// Returns the seconds of each run, of as many as the time suffices for.
std::vector<double> SecondsOfRuns(const Kernel& kernel, double seconds, Clock clock) {
  std::vector<double> runs;
  double sum = 0;
  while (runs.empty() || (sum < seconds && runs.size() < 1000)) {
    const double start = clock();
    kernel();
    runs.push_back(clock() - start);
    sum += runs.back();
  }
  return runs;
}

}  // namespace

Tensor Rank::Make(const Shape& shape, DType dtype) { return MakeMany(1, shape, dtype).front(); }

std::vector<Tensor> Rank::MakeMany(int64_t count, const Shape& shape, DType dtype) {
  const int64_t bytes = shape.numel() * SizeOf(dtype);
  buffers_.emplace_back(Device{}, count * bytes, "calibration", nullptr);
  // There are no denormals and no infinities among them.
  uint16_t* const words = static_cast<uint16_t*>(buffers_.back().data());
  for (int64_t i = 0; i < bytes / 2; ++i) words[i] = uint16_t(0x3f00 + i % 7);
  std::vector<Tensor> tensors;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) std::memcpy(words + i * bytes / 2, words, bytes);
    tensors.push_back(buffers_.back().At(i * bytes, dtype, shape));
  }
  return tensors;
}

Tensor Rank::MakeEnds(int64_t tokens) {
  const Tensor ends = Make({2}, DType::kInt32);
  ends.data<int32_t>()[0] = 0;
  ends.data<int32_t>()[1] = static_cast<int32_t>(tokens);
  return ends;
}

int64_t ColdSets(int64_t bytes) { return std::max<int64_t>(1, kColdBytes / bytes); }

double SecondsOnAllCores(int cores, const MakeKernel& make, double seconds) {
  std::vector<double> medians(cores);
  std::atomic<int> ready{0};
  std::atomic<int> measured{0};
  std::vector<std::thread> threads;
  for (int core = 0; core < cores; ++core) {
    threads.emplace_back([&, core] {
      Rank rank(1);
      const Kernel kernel = make(&rank);
      kernel();
      ++ready;
      while (ready < cores) std::this_thread::yield();
      medians[core] = Median(SecondsOfRuns(kernel, seconds, ThreadSeconds));
      // The others shall not see an idle core.
      ++measured;
      while (measured < cores) kernel();
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (double median : medians) sum += median;
  return sum / cores;
}

double SecondsOfARank(int threads, const MakeKernel& make, double seconds) {
  Rank rank(threads);
  const Kernel kernel = make(&rank);
  kernel();
  return Median(SecondsOfRuns(kernel, seconds, WallSeconds));
}

}  // namespace megatron::calibration
