// The instruction set that the CPU kernels of this process use.
//
// Every kernel is compiled for each instruction set. The choice is made once, at first use, by what
// the processor supports. Results may differ in the last bits between instruction sets, but never
// between processors or thread counts with the same one. The environment variable MEGATRON_CPU_ISA
// overrides the choice, for comparisons and for runs that must repeat another machine's bits:
//
//   avx2
//   avx512        chosen by default where the processor has it
//   avx512_bf16   avx512, with products of bf16 matrices by AVX512-BF16; never chosen by default
//   amx_bf16      avx512, with products of bf16 matrices by AMX; never chosen by default
#ifndef MEGATRON_OPS_CPU_ISA_H_
#define MEGATRON_OPS_CPU_ISA_H_

#include "absl/status/status.h"

namespace megatron::ops {

// The instruction set of all kernels but the products of bf16 matrices.
enum class CpuIsa { kAvx2, kAvx512 };

// The way of multiplying bf16 matrices: widened to fp32 with ActiveIsa(), or as they are.
enum class Bf16Products { kWidened, kAvx512Bf16, kAmx };

// Returns an error if the kernels cannot run here. It is kFailedPrecondition if the processor lacks
// AVX2, FMA or what the override asks for, and kInvalidArgument if the override is unknown.
// Programs call it before anything else.
absl::Status CheckCpu();

// These CHECK-fail if CheckCpu fails.
CpuIsa ActiveIsa();
Bf16Products ActiveBf16Products();
const char* IsaName();  // a name of the override, above

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ISA_H_
