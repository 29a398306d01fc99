// The matrix product of the CPU backend: C = epilogue(A B), over fp32, bf16 or fp16, with fp32
// arithmetic.
//
// Every element of A B is one sum over k in a fixed order: blocks of 384, each summed in order with
// fused multiply-adds, then added one after another. So its bits do not depend on threads, on its
// place in the matrix, or on the number of rows: a token has the same result alone and in a batch.
// (The scheme of packed panels is that of Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication".)
//
// Legend: M rows, N columns, K the summed dim.
#ifndef MEGATRON_OPS_CPU_GEMM_H_
#define MEGATRON_OPS_CPU_GEMM_H_

#include <cstdint>

#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/gemm_kernels.h"

namespace megatron::ops {

void RunGemm(ThreadPool* pool, const Gemm& gemm);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_GEMM_H_
