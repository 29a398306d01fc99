// The matrix product of the CPU backend: C = epilogue(A B), in fp32 inside, over fp32, bf16 or
// fp16.
//
// Every element of A B is one sum over k in a fixed order: blocks of 384, each summed in order with
// fused multiply-adds, added one after another. So its bits depend neither on threads nor on where
// in the matrix it stands nor on how many rows there are: a token computed alone is a token
// computed in a batch. (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
// gives the scheme of packed panels.)
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
