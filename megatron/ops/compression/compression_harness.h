// What the tests of ops that take elements out of tensors share: their threads, and the elements of
// a tensor as they lie.
#ifndef MEGATRON_OPS_COMPRESSION_COMPRESSION_HARNESS_H_
#define MEGATRON_OPS_COMPRESSION_COMPRESSION_HARNESS_H_

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops {

// Returns the elements of a tensor of fp32.
inline std::vector<float> Floats(const HostTensor& x) {
  return {x.tensor().data<float>(), x.tensor().data<float>() + x.numel()};
}

// Returns the elements of a tensor of int32.
inline std::vector<int32_t> Ints(const HostTensor& x) {
  return {x.tensor().data<int32_t>(), x.tensor().data<int32_t>() + x.numel()};
}

class CompressionOpTest : public ::testing::Test {
 protected:
  ThreadPool pool_{3};
  Stream stream_ = Stream::Cpu(&pool_);
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_COMPRESSION_COMPRESSION_HARNESS_H_
