// Which elements of a row dropout keeps: dropout.h's rule on the device.
#ifndef MEGATRON_OPS_CUDA_DROPOUT_CUH_
#define MEGATRON_OPS_CUDA_DROPOUT_CUH_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/ops/dropout.h"

namespace megatron::ops::cuda {

// A threshold of 0 keeps everything and reads nothing.
struct DropoutArgs {
  PhiloxKey key;
  uint32_t threshold = 0;
  float scale = 1;
  const int64_t* sample_T = nullptr;
  const int32_t* position_T = nullptr;
  int64_t first_column = 0;

  // Columns come in groups of four, counted from column 0 of the global row.
  __host__ __device__ int64_t first_group() const { return first_column / 4; }
  __host__ __device__ int64_t groups(int64_t columns) const {
    return (first_column + columns + 3) / 4 - first_group();
  }

  __device__ PhiloxBlock Words(int64_t token, int64_t group) const {
    const auto sample = static_cast<uint64_t>(sample_T[token]);
    return Philox(key, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                         static_cast<uint32_t>(position_T[token]),
                         static_cast<uint32_t>(first_group() + group)}});
  }
};

inline DropoutArgs MakeDropoutArgs(const Dropout& dropout) {
  DropoutArgs args;
  args.first_column = dropout.first_column;
  if (dropout.probability == 0) return args;
  args.key = dropout.key;
  args.threshold = static_cast<uint32_t>(static_cast<double>(dropout.probability) * 4294967296.0);
  args.scale = 1.0f / (1.0f - dropout.probability);
  args.sample_T = dropout.sample_T.data<int64_t>();
  args.position_T = dropout.position_T.data<int32_t>();
  return args;
}

// Calls body(column, scale) for the columns of this rank that lie in the group.
template <typename Body>
__device__ void ForEachColumn(const DropoutArgs& dropout, int64_t columns, int64_t token,
                              int64_t group, Body body) {
  PhiloxBlock words = {};
  if (dropout.threshold != 0) words = dropout.Words(token, group);
  const int64_t first = (dropout.first_group() + group) * 4 - dropout.first_column;
  for (int j = 0; j < 4; ++j) {
    const int64_t column = first + j;
    if (column < 0 || column >= columns) continue;
    body(column, words.word[j] >= dropout.threshold ? dropout.scale : 0.0f);
  }
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_DROPOUT_CUH_
