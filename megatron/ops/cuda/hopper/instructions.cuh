// The instructions of sm_90a for which nvcc has no functions, one function each: barriers in shared
// memory, copies of tiles by tensor maps (TMA), products by a warpgroup (wgmma), and the transfer
// of registers between warps. In tests without a GPU, emulation/hopper.h emulates them.
//
// A warpgroup is four warps; the number of the first is a multiple of four. Quoted titles are
// sections of the PTX ISA that define the layouts.
//
// Tiles in shared memory are rows of 128 bytes (64 elements). 8 rows are an atom of 1024 bytes, in
// which chunk c (of 16 bytes) of row r lies at chunk c ^ r ("Shared memory matrix layout", 128-byte
// swizzle). Copies write and products read this layout. Atoms begin at multiples of 1024 bytes.
//
// The sums of a product are 64 x 8 n ("Register fragments", m64nNk16, D). Warp w of the group holds
// rows 16 w to 16 w + 15, and each 16 x 8 of them as in mma.sync (tensor_core.cuh). A left operand
// in registers has the same layout.
#ifndef MEGATRON_OPS_CUDA_HOPPER_INSTRUCTIONS_CUH_
#define MEGATRON_OPS_CUDA_HOPPER_INSTRUCTIONS_CUH_

#include <cstdint>
#include <type_traits>

#include "megatron/ops/cuda/device.cuh"
#ifdef MEGATRON_EMULATED_CUDA
#include "megatron/ops/cuda/emulation/hopper.h"
#else
#include <cuda.h>
#ifdef MEGATRON_WATCH_BARRIERS
#include <cstdio>
#endif
#endif

// The bodies of kernels are compiled for sm_90a and for the emulation alone.
#if defined(MEGATRON_EMULATED_CUDA) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MEGATRON_HAS_HOPPER_INSTRUCTIONS
#endif

namespace megatron::ops::cuda::hopper {

constexpr int kWarpgroup = 128;
constexpr int kSwizzledRow = 128;  // bytes
constexpr int kAtomRows = 8;
constexpr int kAtomBytes = kAtomRows * kSwizzledRow;

// "Matrix descriptor format", with the 128-byte swizzle. `address` is in shared memory. `stride` is
// the distance in bytes of atoms 8 rows apart. `leading` is the distance of the next 64 columns of
// an operand whose rows are summed over; other operands ignore it.
__device__ inline uint64_t Descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  constexpr uint64_t kSwizzle128 = 1;
  const auto field = [](uint32_t bytes) { return uint64_t{(bytes & 0x3ffffu) >> 4}; };
  return field(address) | field(leading) << 16 | field(stride) << 32 | kSwizzle128 << 62;
}

#ifdef MEGATRON_EMULATED_CUDA

using TensorMap = emulation::TensorMap;

inline uint32_t SharedAddress(const void* at) { return emulation::SharedAddress(at); }
inline void InitBarrier(uint64_t* barrier, int arrivals) {
  emulation::InitBarrier(barrier, arrivals);
}
inline void FenceAsyncProxy() { emulation::FenceAsyncProxy(); }
inline void Arrive(uint64_t* barrier) { emulation::Arrive(barrier, 0); }
inline void ArriveExpecting(uint64_t* barrier, int bytes) { emulation::Arrive(barrier, bytes); }
inline void WaitForPhase(uint64_t* barrier, int parity) {
  emulation::WaitForPhase(barrier, parity);
}
inline void CopyBox(const TensorMap& map, int column, int head, int group, int token, void* shared,
                    uint64_t* barrier) {
  emulation::CopyBox(map, {column, head, group, token}, shared, barrier);
}
template <int kRegisters>
void GiveRegisters() {
  emulation::SetRegisters(kRegisters);
}
template <int kRegisters>
void TakeRegisters() {
  emulation::SetRegisters(kRegisters);
}
inline void FenceProducts() { emulation::FenceProducts(); }
inline void CommitProducts() { emulation::CommitProducts(); }
template <int kPending>
void WaitForProducts() {
  emulation::WaitForProducts(kPending);
}
template <int kTiles>
void Settle(float (&)[kTiles][4]) {}
inline float Exp2(float x) { return exp2f(x); }
inline int FetchAndIncrement(int* counter) { return (*counter)++; }
inline int ThreadAnew() { return static_cast<int>(threadIdx.x); }

template <typename T, bool kTransposed, int kTiles>
void Multiply(emulation::Product product, uint64_t right, float (&sums)[kTiles][4],
              bool accumulate) {
  product.columns = 8 * kTiles;
  product.accumulate = accumulate;
  product.transposed = kTransposed;
  product.right = right;
  product.sums = &sums[0][0];
  product.to_float = [](uint16_t bits) { return ToFloat(T{bits}); };
  emulation::Multiply(product);
}
template <typename T, bool kTransposed, int kTiles>
void Multiply(uint64_t left, uint64_t right, float (&sums)[kTiles][4], bool accumulate) {
  emulation::Product product;
  product.left = left;
  Multiply<T, kTransposed>(product, right, sums, accumulate);
}
template <typename T, bool kTransposed, int kTiles>
void Multiply(const uint32_t (&left)[4], uint64_t right, float (&sums)[kTiles][4],
              bool accumulate) {
  emulation::Product product;
  product.registers = left;
  Multiply<T, kTransposed>(product, right, sums, accumulate);
}

#else

using TensorMap = CUtensorMap;

__device__ inline uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// "mbarrier": a phase is complete when `arrivals` threads have arrived and the announced bytes have
// come. The first phase has parity 0.
__device__ inline void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
// Makes this thread's writes to shared memory, barriers included, visible to copies and products.
__device__ inline void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ inline void ArriveExpecting(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
// Returns whether the phase of this parity is complete; the phase before the current one counts as
// complete. The hardware waits a while before it says no.
__device__ inline bool PhaseIsComplete(uint64_t* barrier, int parity) {
  uint32_t complete;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(complete)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return complete != 0;
}

#ifdef MEGATRON_WATCH_BARRIERS

__device__ inline uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
// WaitForPhase in a build that looks for what hangs. After two seconds each warp says what it waits
// for; a second later, when all have spoken, the kernel ends with an error. The barriers of a
// kernel lie in the order of its class Buffers, 8 bytes each.
__device__ inline void WaitForPhase(uint64_t* barrier, int parity) {
  constexpr uint64_t kSecond = 1000000000;
  const uint64_t begin = Nanoseconds();
  bool said = threadIdx.x % kWarp != 0;
  while (!PhaseIsComplete(barrier, parity)) {
    const uint64_t waited = Nanoseconds() - begin;
    if (waited > 3 * kSecond) __trap();
    if (said || waited < 2 * kSecond) continue;
    said = true;
    printf("block (%u, %u, %u), warp %u waits for the barrier at shared address %u, phase %d\n",
           blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x / kWarp, SharedAddress(barrier), parity);
  }
}

#else

// Waits until the phase of this parity is complete; the phase before the current one counts as
// complete.
__device__ inline void WaitForPhase(uint64_t* barrier, int parity) {
  while (!PhaseIsComplete(barrier, parity)) {
  }
}

#endif

// Copies a box of the tensor to shared memory. The barrier counts all its bytes, including those of
// rows beyond the tensor, which are zeros.
__device__ inline void CopyBox(const TensorMap& map, int column, int head, int group, int token,
                               void* shared, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(SharedAddress(shared)),
      "l"(&map), "r"(column), "r"(head), "r"(group), "r"(token), "r"(SharedAddress(barrier))
      : "memory");
}

#ifdef MEGATRON_WATCH_BARRIERS

// Each thread keeps its registers: printf takes more than a copying warpgroup would have.
template <int kRegisters>
__device__ void GiveRegisters() {}
template <int kRegisters>
__device__ void TakeRegisters() {}

#else

// Sets the number of registers per thread; all warps of a warpgroup call it.
template <int kRegisters>
__device__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

// A fence between writes to registers and the products that read or add to them.
__device__ inline void FenceProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all groups of products but the last kPending have ended.
template <int kPending>
__device__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading sums before the wait that this follows.
template <int kTiles>
__device__ void Settle(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
  }
}

// Returns threadIdx.x. What is computed from it is computed where it is needed: the compiler keeps
// it in no register in between.
__device__ inline int ThreadAnew() {
  int thread;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
  return thread;
}

// Returns what was there before, to one thread of all blocks.
__device__ inline int FetchAndIncrement(int* counter) { return atomicAdd(counter, 1); }

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Operands of the products below.
#define MEGATRON_SUMS_32                                    \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
#define MEGATRON_SUMS_64                                             \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
#define MEGATRON_TILE(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define MEGATRON_TILES_4(c, n) \
  MEGATRON_TILE(c, n), MEGATRON_TILE(c, n + 1), MEGATRON_TILE(c, n + 2), MEGATRON_TILE(c, n + 3)
#define MEGATRON_TILES_8(c) MEGATRON_TILES_4(c, 0), MEGATRON_TILES_4(c, 4)
#define MEGATRON_TILES_16(c) MEGATRON_TILES_8(c), MEGATRON_TILES_4(c, 8), MEGATRON_TILES_4(c, 12)
#define MEGATRON_PRODUCT(n, type, sums, left, right, accumulate, bits)                    \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate                                          \
  ", 0;\n"                                                                                \
  "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " " sums left ", " right \
  ", p, 1, 1, " bits ";\n}"

// sums = (accumulate ? sums : 0) + left right: 64 x 16 by 16 x 8 kTiles, by a warpgroup. A column
// of the right operand is a row in shared memory; if kTransposed, a row is.
template <typename T, bool kTransposed, int kTiles>
__device__ void Multiply(uint64_t left, uint64_t right, float (&sums)[kTiles][4], bool accumulate) {
  static_assert(kTiles == 8 || kTiles == 16);
  constexpr bool kBFloat16 = std::is_same_v<T, __nv_bfloat16>;
  const int add = accumulate ? 1 : 0;
  if constexpr (kBFloat16 && kTiles == 8) {
    asm volatile(MEGATRON_PRODUCT("64", "bf16", MEGATRON_SUMS_32, "%32", "%33", "%34", "0, %35")
                 : MEGATRON_TILES_8(sums)
                 : "l"(left), "l"(right), "r"(add), "n"(kTransposed ? 1 : 0));
  } else if constexpr (kBFloat16 && kTiles == 16) {
    asm volatile(MEGATRON_PRODUCT("128", "bf16", MEGATRON_SUMS_64, "%64", "%65", "%66", "0, %67")
                 : MEGATRON_TILES_16(sums)
                 : "l"(left), "l"(right), "r"(add), "n"(kTransposed ? 1 : 0));
  } else if constexpr (kTiles == 8) {
    asm volatile(MEGATRON_PRODUCT("64", "f16", MEGATRON_SUMS_32, "%32", "%33", "%34", "0, %35")
                 : MEGATRON_TILES_8(sums)
                 : "l"(left), "l"(right), "r"(add), "n"(kTransposed ? 1 : 0));
  } else if constexpr (kTiles == 16) {
    asm volatile(MEGATRON_PRODUCT("128", "f16", MEGATRON_SUMS_64, "%64", "%65", "%66", "0, %67")
                 : MEGATRON_TILES_16(sums)
                 : "l"(left), "l"(right), "r"(add), "n"(kTransposed ? 1 : 0));
  }
}

// The product with the left operand in registers.
template <typename T, bool kTransposed, int kTiles>
__device__ void Multiply(const uint32_t (&left)[4], uint64_t right, float (&sums)[kTiles][4],
                         bool accumulate) {
  static_assert(kTiles == 8 || kTiles == 16);
  constexpr bool kBFloat16 = std::is_same_v<T, __nv_bfloat16>;
  const int add = accumulate ? 1 : 0;
  if constexpr (kBFloat16 && kTiles == 8) {
    asm volatile(
        MEGATRON_PRODUCT("64", "bf16", MEGATRON_SUMS_32, "{%32,%33,%34,%35}", "%36", "%37", "%38")
        : MEGATRON_TILES_8(sums)
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add),
          "n"(kTransposed ? 1 : 0));
  } else if constexpr (kBFloat16 && kTiles == 16) {
    asm volatile(
        MEGATRON_PRODUCT("128", "bf16", MEGATRON_SUMS_64, "{%64,%65,%66,%67}", "%68", "%69", "%70")
        : MEGATRON_TILES_16(sums)
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add),
          "n"(kTransposed ? 1 : 0));
  } else if constexpr (kTiles == 8) {
    asm volatile(
        MEGATRON_PRODUCT("64", "f16", MEGATRON_SUMS_32, "{%32,%33,%34,%35}", "%36", "%37", "%38")
        : MEGATRON_TILES_8(sums)
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add),
          "n"(kTransposed ? 1 : 0));
  } else if constexpr (kTiles == 16) {
    asm volatile(
        MEGATRON_PRODUCT("128", "f16", MEGATRON_SUMS_64, "{%64,%65,%66,%67}", "%68", "%69", "%70")
        : MEGATRON_TILES_16(sums)
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add),
          "n"(kTransposed ? 1 : 0));
  }
}

#undef MEGATRON_SUMS_32
#undef MEGATRON_SUMS_64
#undef MEGATRON_TILE
#undef MEGATRON_TILES_4
#undef MEGATRON_TILES_8
#undef MEGATRON_TILES_16
#undef MEGATRON_PRODUCT

#endif

}  // namespace megatron::ops::cuda::hopper

#endif  // MEGATRON_OPS_CUDA_HOPPER_INSTRUCTIONS_CUH_
