// The peak of this machine's arithmetic with the active instruction set (isa.h), which benchmarks
// print beside the rates that they measure.
#ifndef MEGATRON_OPS_CPU_FMA_PEAK_H_
#define MEGATRON_OPS_CPU_FMA_PEAK_H_

#include "megatron/base/thread_pool.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

// Measures for about a millisecond on all threads of the pool at once, and returns FLOP/s. A fused
// multiply-add counts as two. The peak is that of products of matrices of the dtype: of fp32
// arithmetic, or of the processor's products of bf16 if they are in use. Clock rates change while a
// program runs, so a caller measures it in turn with what it compares.
double MeasureFmaPeak(ThreadPool* pool, DType dtype = DType::kFloat32);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_FMA_PEAK_H_
