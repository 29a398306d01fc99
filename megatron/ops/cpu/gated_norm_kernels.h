// The kernels of gated_norm.h for one part of a row.
#ifndef MEGATRON_OPS_CPU_GATED_NORM_KERNELS_H_
#define MEGATRON_OPS_CPU_GATED_NORM_KERNELS_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct GatedPart {
  DType dtype = DType::kFloat32;
  int64_t width = 0;
  float epsilon = 0;
  bool norm_before_gate = false;
  const void *x = nullptr, *z = nullptr, *gamma = nullptr;
  void* y = nullptr;
  float* scratch = nullptr;  // [width]
  // The number of columns that are normalized together and, where these are not the part's alone,
  // the sums over them (gated_norm.h).
  int64_t columns = 0;
  const float *squares = nullptr, *products = nullptr;
  // Backward.
  const void* dy = nullptr;
  void *dx = nullptr, *dz = nullptr;
  float* dgamma = nullptr;  // +=
  // Where this is set, the next part's memory is fetched while this one is computed.
  const GatedPart* next = nullptr;
};

namespace avx2 {
// Return the part's summands of GatedNormSums and of GatedNormGradientSums.
float GatedPartSquares(const GatedPart& part);
float GatedPartProducts(const GatedPart& part);
void GatedPartForward(const GatedPart& part);
void GatedPartBackward(const GatedPart& part);
}  // namespace avx2
namespace avx512 {
float GatedPartSquares(const GatedPart& part);
float GatedPartProducts(const GatedPart& part);
void GatedPartForward(const GatedPart& part);
void GatedPartBackward(const GatedPart& part);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_GATED_NORM_KERNELS_H_
