// CUDA devices: their memory, their streams, and copies to and from them. In a build without
// --config=cuda there are no devices, and everything but counting them ends the program with a
// message that says so.
//
// A failed CUDA call is a CHECK with the expression (out of memory on the device, a kernel that
// crashed before), except where a function says what it returns then.
#ifndef MEGATRON_TENSOR_CUDA_DEVICE_H_
#define MEGATRON_TENSOR_CUDA_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

class Tensor;

// Returns 0 if the driver is missing too.
int CudaDeviceCount();

struct CudaDeviceFacts {
  std::string name;            // "NVIDIA H200"
  std::string uuid;            // 16 bytes that no other device has, here or elsewhere
  int compute_capability = 0;  // 90 for 9.0
};
// Asking takes none of the device's memory.
CudaDeviceFacts CudaFacts(int device);

struct CudaMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
// Zeros where this process cannot use the device: others have filled it, or one has it for itself.
// Asking makes a context of CUDA on the device, which takes some hundred MB for as long as the
// process runs: so ask only a device that this process uses.
CudaMemory CudaMemoryOf(int device);
// Makes the device the thread's current one, if it can be used. A thread that asks for events of a
// device, or asks CUDA for something without naming one, does this first: the current device of a
// thread that has chosen none is the first one of the machine, and the call makes a context there.
void UseCudaDevice(int device);
// The device's place on the PCI bus, such as "0000:3B:00.0"; empty where it has none.
std::string CudaPciBusId(int device);

// Zeroed memory. `name` is for the message when there is not enough.
void* CudaAllocate(int device, int64_t bytes, const std::string& name);
void CudaFree(int device, void* memory);
// Returns zeroed memory of the host that is page-locked, so that a device copies from and to it
// while the host goes on. Returns null, and writes CUDA's reason to *error, where the system locks
// no more.
void* CudaAllocateHost(int64_t bytes, std::string* error);
void CudaFreeHost(void* memory);

// A stream with what kernels of its operations share. Operations of one stream run one after the
// other, so one workspace serves them all.
//
// Threads: one at a time, the one that made it: kernels are launched on a thread's current device.
class CudaStream {
 public:
  // Makes the device the thread's current one.
  explicit CudaStream(int device);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  int device() const { return device_; }
  void* handle() const { return handle_; }  // a cudaStream_t
  void* blas() const { return blas_; }      // a cublasLtHandle_t

  // Memory that belongs to the operation being enqueued and to none after it. Contents are
  // undefined. Grows to the most ever asked for, and waits for the stream when it does.
  void* Workspace(int64_t bytes);

  // Keeps outgrown workspaces until the end from now on, because graphs hold their addresses.
  void KeepWorkspaces();

  // Waits until all that was enqueued has happened.
  void Synchronize();

 private:
  void FreeWorkspaces();

  int device_;
  void* handle_ = nullptr;
  void* blas_ = nullptr;
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  bool keeps_workspaces_ = false;
  std::vector<void*> outgrown_;  // workspaces that were kept
};

// A point of a stream, which the host can ask for and other streams can wait for. It may be
// recorded again; until it first is, it counts as reached.
//
// Threads: any, one at a time.
class CudaEvent {
 public:
  // A timed one knows when it was reached, and costs a little more.
  explicit CudaEvent(int device, bool timed = false);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void* handle() const { return handle_; }  // a cudaEvent_t

  // Moves it behind all that was enqueued so far.
  void Record(const CudaStream& stream);
  bool Reached() const;
  void Wait() const;  // the host does, until it is reached
  // Work that is enqueued on `stream` from now on happens after the event.
  void HoldBack(const CudaStream& stream) const;
  // Returns the time between two timed events of a device, both reached.
  static int64_t Nanoseconds(const CudaEvent& from, const CudaEvent& to);

 private:
  void* handle_ = nullptr;
};

// Marks for NVIDIA's profilers, which show ranges of the host's work by name and can be told what
// part of a run to record; without one these cost next to nothing. Ranges of a thread nest.
void PushCudaRange(const std::string& name);
void PopCudaRange();
// Tells the emulated device's clock that the processor has updated so many elements behind the
// event, beside what the host did meanwhile; the host has waited for that. Costs nothing elsewhere.
void RecordUpdateBeside(double elements, const CudaEvent& begin);
void StartCudaProfiler();
void StopCudaProfiler();

// Copies between tensors of equal dtype and shape, both contiguous, of which at least one is on the
// stream's device and the other there or on the CPU. With one on the CPU this returns when it has
// happened.
void CopyOnCuda(CudaStream* stream, const Tensor& in, const Tensor& out);
// The same without waiting. What is on the CPU is memory from CudaAllocateHost, which nobody
// touches until the copy has happened: until an event that is recorded behind it is reached.
void EnqueueCopyOnCuda(CudaStream* stream, const Tensor& in, const Tensor& out);

}  // namespace megatron

#endif  // MEGATRON_TENSOR_CUDA_DEVICE_H_
