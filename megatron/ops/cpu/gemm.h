// The matrix product of the CPU backend: C = epilogue(A B), over fp32, bf16 or fp16, with fp32
// arithmetic.
//
// Every element of A B is one sum over k in a fixed order: blocks of 384, each summed in order with
// fused multiply-adds, then added one after another. So its bits do not depend on threads, on its
// place in the matrix, or on the number of rows: a token has the same result alone and in a batch.
//
// With the processor's own products of bf16 (Bf16Products in isa.h) a block has 768 elements of k.
// AVX512-BF16 takes them in pairs, the second of a pair before the first, each by a fused
// multiply-add. AMX takes 32 at a time: it sums the even and the odd ones apart, adds both sums,
// and adds that to the block's. Both take numbers below 2^-126 for zero, as operands and as sums.
//
// A product of few rows with weights reads the weights once, as they stand (gemm_few_rows.h): it
// takes the time of reading them.
//
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
