// Runs CUDA kernels on the CPU, for tests where there is no GPU: sources are compiled as C++ (
// emulated_cuda_sources.bzl), a launch becomes a loop over blocks, and the threads of a block are
// fibers that change places where they wait for each other.
//
// Between two such places the fibers run one after the other, in an order drawn anew for each
// launch: a kernel that lacks a __syncthreads gives different results from run to run, and one that
// reaches beyond its memory is seen by AddressSanitizer. What hardware does on its own (the rates,
// the memory model between blocks) is not emulated.
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

// A place of 16 bytes for each lane of the warp that runs.
void* Place(int lane);

// What another lane gave to the same call; all lanes that have not returned call it.
template <typename X>
X FromLane(X x, int lane) {
  static_assert(sizeof(X) <= 16, "more than a register holds");
  std::memcpy(Place(Lane()), &x, sizeof(X));
  SyncWarp();
  std::memcpy(&x, Place(lane), sizeof(X));
  SyncWarp();
  return x;
}

// The block's dynamic shared memory.
void* DynamicShared();
size_t DynamicSharedBytes();

void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

// kernel<<<grid, block, shared, stream>>>(args) is rewritten to
// Launch([&](auto... x) { kernel(x...); }, grid, block, shared, stream)(args).
template <typename Kernel>
class Launch {
 public:
  Launch(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes, const void* /*stream*/)
      : kernel_(std::move(kernel)), grid_(grid), block_(block), shared_bytes_(shared_bytes) {}

  template <typename... Args>
  void operator()(Args... args) const {
    RunGrid(grid_, block_, shared_bytes_, [&] { kernel_(args...); });
  }

 private:
  Kernel kernel_;
  dim3 grid_, block_;
  size_t shared_bytes_;
};

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_BLOCK_H_
