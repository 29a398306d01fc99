// A CUDA device for tests on machines without one, which the CPU plays.
//
// A test that links //megatron/ops/cuda:emulated sees one CUDA device. Its operations are the CPU's
// and have happened when they return, but its memory is out of the host's reach: code that reads or
// writes it other than by an operation or a copy dies of SIGSEGV, there and then. So what passes
// with it keeps host and device apart; of kernels it says nothing. Copies that are enqueued reach
// the host when it has waited for them (emulated_transfers.h), and what operations of several
// streams do with the same memory must be in an order (emulated_order.h).
#ifndef MEGATRON_TENSOR_EMULATED_CUDA_H_
#define MEGATRON_TENSOR_EMULATED_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// CudaFacts().name of the emulated device on which the CPU's ops run; tests may ask more of it than
// of a real one.
inline constexpr char kEmulatedDeviceName[] = "emulated";
// The name of the emulated device that runs the kernels' own code.
inline constexpr char kEmulatedKernelsName[] = "emulated kernels";

// Returns whether the kernels' own code runs, emulated (//megatron/ops/cuda:emulated_kernels),
// rather than the CPU's ops. It addresses the device's memory itself, so that this is within the
// host's reach then.
bool KernelsAreEmulated();
// Makes it so. Must be called before main; the result only serves to initialize a variable.
bool EmulateKernels();

// Streams are never behind the host here. While events are late they look as if they were: no event
// that was recorded is reached.
void MakeEmulatedEventsLate(bool late);

// Page-locked memory of more bytes at once is refused from now on.
void LimitPageLockedMemory(int64_t bytes);
// The device has so many bytes from now on; a program that takes more ends.
void LimitEmulatedMemory(int64_t bytes);

// The number of times that memory was taken, of the device or page-locked, and that the host waited
// for a stream, or for an event that was not behind it already, since the program began.
struct EmulatedCudaCounts {
  int64_t allocations = 0, host_waits = 0;
};
EmulatedCudaCounts CountsOfEmulatedCuda();

// A piece of the device's memory, and the name under which it was taken.
struct EmulatedMemory {
  const char* begin = nullptr;
  size_t bytes = 0;
  std::string name;
};
// What is taken now, in ascending order of addresses.
std::vector<EmulatedMemory> MemoryOfEmulatedCuda();

// The same memory as a CPU tensor, for what plays the device. Empty stays empty.
Tensor EmulatedView(const Tensor& tensor);
// The CPU stream that carries out a CUDA stream's operations, which is not being captured
// (emulated_graph.h).
Stream EmulatingStream(const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_TENSOR_EMULATED_CUDA_H_
