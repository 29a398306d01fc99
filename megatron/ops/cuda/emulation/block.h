// Runs CUDA kernels on the CPU, for tests where there is no GPU: sources are compiled as C++
// (emulated_cuda.bzl), a launch becomes a loop over blocks, and the threads of a block are fibers
// that change places where they wait for each other.
//
// Between two such places the fibers run one after the other, blocks and threads in orders drawn
// anew for each launch: a kernel that lacks a __syncthreads gives different results from run to
// run. A binary linked with ThreadSanitizer reports it, whatever the results, with the places of
// both accesses: there each thread of a kernel is a thread, and what CUDA orders is all that
// orders them. __syncthreads orders a block's threads and __syncwarp a warp's; shuffles and
// products of matrices order nothing, and no two blocks of a launch are ordered. With
// AddressSanitizer shared memory ends where it ends. What hardware does on its own (the rates, the
// memory model between blocks) is not emulated.
//
// What hardware leaves undefined ends the program: a lane that asks for another's value which does
// not take part, lanes of a warp that wait for each other at different calls, more shared memory
// than the kernel has asked for.
//
// Threads: one launch at a time, by a lock.
#ifndef MEGATRON_OPS_CUDA_EMULATION_BLOCK_H_
#define MEGATRON_OPS_CUDA_EMULATION_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
};

// Of the fiber that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace megatron::emulation {

constexpr int kWarpSize = 32;

void SyncBlock();
void SyncWarp();
int Lane();

// Lets other threads run until `ready` says true; looks at it whenever something has happened.
// `what` is named if it never becomes true.
void WaitUntil(const std::function<bool()>& ready, const char* what);
// Something happened that a thread may wait for.
void NoteProgress();
// Lets others run until none of them can go on, or all that can wait here, too.
void WaitForOthers();

// Runs when the threads of the block that runs have ended.
void AtBlockEnd(std::function<void()> action);

struct Register {
  uint64_t words[2];
};

// What each lane gave to the same call; all lanes that have not returned must make it. Valid until
// the lane's second call after this one.
class WarpRegisters {
 public:
  // With `whole_warp` no lane may have returned, as instructions named .aligned want it.
  template <typename X>
  explicit WarpRegisters(const X& mine, bool whole_warp = false) {
    static_assert(sizeof(X) <= sizeof(Register), "more than a lane gives");
    Register bits = {};
    std::memcpy(&bits, &mine, sizeof(X));
    Give(bits, whole_warp);
  }
  template <typename X>
  X Of(int lane) const {
    const Register bits = Taken(lane);
    X x;
    std::memcpy(&x, &bits, sizeof(X));
    return x;
  }

 private:
  void Give(Register mine, bool whole_warp);
  Register Taken(int lane) const;

  int64_t generation_ = 0;
};

template <typename X>
X FromLane(X x, int lane) {
  return WarpRegisters(x).Of<X>(lane);
}

// The block's dynamic shared memory, aligned to that many bytes and to no more.
void* DynamicShared(size_t alignment = 16);
size_t DynamicSharedBytes();

// The block's memory for a __shared__ variable of a type, which `key` tells from others. What a
// kernel reads before it has written it is NaN in every floating-point dtype.
void* StaticShared(const void* key, size_t bytes, size_t alignment);
template <typename X>
X& Shared(const void* key) {
  return *static_cast<X*>(StaticShared(key, sizeof(X), alignof(X)));
}

// Of compute capability 9.0, for a block: static and dynamic.
constexpr size_t kMostSharedBytes = size_t{227} << 10;

// How much dynamic shared memory a kernel may ask for, beyond what every one may. False if no
// device has as much.
bool AllowShared(const void* kernel, int bytes);
// What a block of the kernel may have, which is launched with that much dynamic memory.
size_t SharedLimit(const void* kernel, size_t dynamic_bytes);
template <typename Kernel>
const void* Address(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread,
             size_t shared_limit = kMostSharedBytes);

// kernel<<<grid, block, shared, stream>>>(args) is rewritten to
// Launch(Address(kernel), [&](auto... x) { kernel(x...); }, grid, block, shared, stream)(args).
template <typename Kernel>
class Launch {
 public:
  Launch(const void* address, Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes,
         const void* /*stream*/)
      : address_(address),
        kernel_(std::move(kernel)),
        grid_(grid),
        block_(block),
        shared_bytes_(shared_bytes) {}

  template <typename... Args>
  void operator()(Args... args) const {
    // A thread has parameters of its own.
    RunGrid(
        grid_, block_, shared_bytes_, [&] { kernel_(args...); },
        SharedLimit(address_, shared_bytes_));
  }

 private:
  const void* address_;
  Kernel kernel_;
  dim3 grid_, block_;
  size_t shared_bytes_;
};

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_BLOCK_H_
