// The instructions of ../hopper/instructions.cuh on the CPU, as the PTX ISA defines them. Whatever
// the PTX ISA leaves open is decided against the program:
//
// - A copy of a tile poisons its destination when it is issued, and delivers its bytes only when a
// thread waits for them.
// - A product by a warpgroup poisons its sums when it is issued. It reads its operands, including
// those in registers, and delivers its sums only when its warp waits for it and no other thread can
// continue.
//
// So a missing wait, a wrong phase, a buffer released too early or registers used too early show as
// NaN, as different sums, or as threads that wait forever, which the emulation names. Operands in
// shared memory are read only through the 64 bits of the descriptor.
#ifndef MEGATRON_OPS_CUDA_EMULATION_HOPPER_H_
#define MEGATRON_OPS_CUDA_EMULATION_HOPPER_H_

#include <cstdint>

namespace megatron::emulation {

// "Tensor-map": rows of a tensor of four dims, the first contiguous, elements of two bytes.
struct TensorMap {
  const char* data = nullptr;
  int64_t dims[4] = {};
  int64_t strides[4] = {};  // bytes; the first is the size of an element
  int box[4] = {};
};

// The address in the window of shared memory, whose dynamic part begins at some multiple of 16.
uint32_t SharedAddress(const void* at);

// "mbarrier".
void InitBarrier(const uint64_t* barrier, int arrivals);
void FenceAsyncProxy();
// Says that `bytes` more are expected in this phase.
void Arrive(const uint64_t* barrier, int bytes);
void WaitForPhase(const uint64_t* barrier, int parity);

// "cp.async.bulk.tensor" of a box at `at`, in rows of 128 bytes with the 128-byte swizzle.
void CopyBox(const TensorMap& map, const int (&at)[4], void* shared, const uint64_t* barrier);

// "setmaxnreg": may only wait for registers that other warps give back.
void SetRegisters(int count);

// "wgmma.mma_async" m64nNk16: the arguments of one thread of the four warps.
struct Product {
  int columns = 0;
  bool accumulate = false;
  bool transposed = false;                // the right operand
  const uint32_t* registers = nullptr;    // four of the left operand; null: `left` describes it
  uint64_t left = 0, right = 0;           // descriptors
  float* sums = nullptr;                  // columns / 2
  float (*to_float)(uint16_t) = nullptr;  // converts an operand's element
};
void FenceProducts();
void Multiply(const Product& product);
void CommitProducts();
// Waits until at most `pending` committed groups have not ended.
void WaitForProducts(int pending);

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_HOPPER_H_
