// Ranks that run one kernel again and again, on all cores at once.
#ifndef TOOLS_CALIBRATION_CALIBRATION_RANK_H_
#define TOOLS_CALIBRATION_CALIBRATION_RANK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "megatron/base/thread_pool.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron::calibration {

// A rank of some threads with tensors of its own.
class Rank {
 public:
  explicit Rank(int threads) : pool_(threads), stream_(Stream::Cpu(&pool_)) {}

  const Stream& stream() const { return stream_; }

  // Values are around 0.5 in any of the formats.
  Tensor Make(const Shape& shape, DType dtype = DType::kFloat32);
  std::vector<Tensor> MakeMany(int64_t count, const Shape& shape, DType dtype);
  // Returns the ends of one sequence of so many tokens, int32 [2].
  Tensor MakeEnds(int64_t tokens);

 private:
  ThreadPool pool_;
  Stream stream_;
  std::deque<Buffer> buffers_;
};

// Returns how many sets of operands of so many bytes a kernel goes through, so that caches of a
// core have lost each when it comes back to it.
int64_t ColdSets(int64_t bytes);

using Kernel = std::function<void()>;
using MakeKernel = std::function<Kernel(Rank*)>;

// Each of these runs kernels for about so many seconds on each core. Seconds of ranks of one thread
// are those of the thread on its core, so that other threads' turns don't count.

// Returns the mean over ranks, of which each core has one, of their median seconds.
double SecondsOnAllCores(int cores, const MakeKernel& make, double seconds);

// Returns the median seconds of one rank of so many threads, by the clock on the wall.
double SecondsOfARank(int threads, const MakeKernel& make, double seconds);

}  // namespace megatron::calibration

#endif  // TOOLS_CALIBRATION_CALIBRATION_RANK_H_
