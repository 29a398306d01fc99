// Rows of a softmax cross-entropy; ops/cross_entropy.h says what is computed.
#ifndef MEGATRON_OPS_CPU_CROSS_ENTROPY_KERNELS_H_
#define MEGATRON_OPS_CPU_CROSS_ENTROPY_KERNELS_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct CrossEntropyRows {
  DType dtype = DType::kFloat32;
  void* logits = nullptr;  // [T, columns]
  int64_t columns = 0;
  int64_t counted = 0;       // columns [counted, columns) are padding
  int64_t first_column = 0;  // global index of column 0, from which labels count
  const int32_t* labels = nullptr;
  float *max = nullptr, *sum = nullptr, *target = nullptr;
  const float* weight = nullptr;
  float softcap = 0;  // 0: none
};

namespace avx2 {
void CrossEntropyStatisticsRows(const CrossEntropyRows& rows, int64_t begin, int64_t end);
void CrossEntropyBackwardRows(const CrossEntropyRows& rows, int64_t begin, int64_t end);
}  // namespace avx2
namespace avx512 {
void CrossEntropyStatisticsRows(const CrossEntropyRows& rows, int64_t begin, int64_t end);
void CrossEntropyBackwardRows(const CrossEntropyRows& rows, int64_t begin, int64_t end);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_CROSS_ENTROPY_KERNELS_H_
