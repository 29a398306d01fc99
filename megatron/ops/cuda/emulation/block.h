// Runs CUDA kernels on the CPU, for tests without a GPU. Sources are compiled as C++
// (emulated_cuda.bzl); a launch becomes a loop over blocks; the threads of a block are fibers,
// which switch where they wait for each other.
//
// Between two such points the fibers run one after another. The orders of blocks and threads are
// drawn anew for each launch, so a kernel that lacks a __syncthreads gives different results from
// run to run. A binary linked with ThreadSanitizer reports the race, whatever the results, with the
// places of both accesses: there each thread of a kernel is a thread, and only the synchronization
// of CUDA orders them. __syncthreads orders the threads of a block and __syncwarp those of a warp;
// shuffles and products of matrices order nothing, and no two blocks of a launch are ordered.
// AddressSanitizer reports accesses outside of shared memory. Other properties of hardware (its
// rates, the memory model between blocks) are not emulated.
//
// Behaviour that hardware leaves undefined ends the program: a lane that asks for the value of a
// lane that does not take part, lanes of a warp that wait for each other at different calls, more
// shared memory than the kernel has asked for.
//
// Threads: a lock lets one launch run at a time.
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

// The built-in variables of the running fiber.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace megatron::emulation {

constexpr int kWarpSize = 32;

void SyncBlock();
void SyncWarp();
int Lane();

// Lets other threads run until `ready` returns true; it is checked whenever something has happened.
// `what` is named if that never happens.
void WaitUntil(const std::function<bool()>& ready, const char* what);
// Says that something happened that a thread may wait for.
void NoteProgress();
// Lets other threads run until none of them can continue, or until all that can wait here, too.
void WaitForOthers();

// Calls the function when the threads of the running block have ended.
void AtBlockEnd(std::function<void()> action);

struct Register {
  uint64_t words[2];
};

// The values that the lanes gave to the same call. All lanes that have not returned must make the
// call. It is valid until the lane's second call after this one.
class WarpRegisters {
 public:
  // If `whole_warp`, no lane may have returned, as instructions named .aligned require.
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

// Returns the block's dynamic shared memory, aligned to that many bytes and not to twice as many.
void* DynamicShared(size_t alignment = 16);
size_t DynamicSharedBytes();

// Returns the block's memory for a __shared__ variable of a type, which `key` identifies. Before a
// kernel writes it, it is NaN in every floating-point dtype.
void* StaticShared(const void* key, size_t bytes, size_t alignment);
template <typename X>
X& Shared(const void* key) {
  return *static_cast<X*>(StaticShared(key, sizeof(X), alignof(X)));
}

// Shared memory of a block on compute capability 9.0, static and dynamic.
constexpr size_t kMostSharedBytes = size_t{227} << 10;

// Allows a kernel more dynamic shared memory than the default. Returns false if no device has as
// much.
bool AllowShared(const void* kernel, int bytes);
// Bytes that a block of the kernel may use if it is launched with that much dynamic memory.
size_t SharedLimit(const void* kernel, size_t dynamic_bytes);
template <typename Kernel>
const void* Address(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

// Is told of each launch; the default is nobody. Kernels run one at a time, each between the two
// calls.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void Begin() = 0;
  virtual void End() = 0;
};
void ObserveLaunches(LaunchObserver* observer);  // null: nobody

// Runs what stands for a kernel of a library: a launch without threads.
void RunLibraryKernel(const std::function<void()>& kernel);

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
    // Each thread has its own copy of the parameters.
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
