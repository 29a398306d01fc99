// Parallel loops over elements, in pieces that are large enough for a thread.
#ifndef MEGATRON_OPS_CPU_PARALLEL_ELEMENTS_H_
#define MEGATRON_OPS_CPU_PARALLEL_ELEMENTS_H_

#include <algorithm>
#include <cstdint>

#include "megatron/base/thread_pool.h"

namespace megatron::ops {

// Calls body(begin, count) on pieces that cover [0, total). All pieces but the last are multiples
// of `grain`.
template <typename Body>
void ParallelElements(ThreadPool* pool, int64_t total, int64_t grain, const Body& body) {
  pool->ParallelFor((total + grain - 1) / grain, [&](int64_t begin, int64_t end) {
    body(begin * grain, std::min(total, end * grain) - begin * grain);
  });
}

// Number of elements that take about as long as waking a thread.
constexpr int64_t kElementGrain = 8192;

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_PARALLEL_ELEMENTS_H_
