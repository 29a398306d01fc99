#include "megatron/tensor/emulated_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

// One block is one piece of anonymous memory mapped twice: without access, at the address that the
// program knows, and with.
struct Block {
  size_t bytes = 0;
  char* accessible = nullptr;
};

struct Blocks {
  std::mutex mutex;
  std::map<char*, Block> by_address;
};

using Clock = std::chrono::steady_clock;

std::atomic<bool> events_are_late{false};

Blocks& AllBlocks() {
  static Blocks& blocks = *new Blocks;
  return blocks;
}

char* Map(int file, size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  PCHECK(memory != MAP_FAILED) << bytes << " bytes";
  return static_cast<char*>(memory);
}

void* Accessible(void* address) {
  if (address == nullptr) return nullptr;
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  auto after = blocks.by_address.upper_bound(static_cast<char*>(address));
  CHECK(after != blocks.by_address.begin()) << "not of the device: " << address;
  const auto& [begin, block] = *--after;
  const size_t offset = static_cast<size_t>(static_cast<char*>(address) - begin);
  CHECK_LE(offset, block.bytes) << "not of the device: " << address;
  return block.accessible + offset;
}

// What a CUDA stream's handle points to.
ThreadPool* PoolOf(const CudaStream& stream) { return static_cast<ThreadPool*>(stream.handle()); }

}  // namespace

__attribute__((weak)) bool KernelsAreEmulated() { return false; }

int CudaDeviceCount() { return 1; }

CudaDeviceFacts CudaFacts(int) {
  return {kEmulatedDeviceName, int64_t{1} << 40, int64_t{1} << 40, "emulated device."};
}

void* CudaAllocate(int device, int64_t bytes, const std::string& name) {
  CHECK_EQ(device, 0) << name;
  const size_t size = static_cast<size_t>(bytes);
  const int file = memfd_create("emulated device memory", MFD_CLOEXEC);
  PCHECK(file >= 0) << name;
  PCHECK(ftruncate(file, bytes) == 0) << bytes << " bytes for " << name;
  const int reach = KernelsAreEmulated() ? PROT_READ | PROT_WRITE : PROT_NONE;
  char* const address = Map(file, size, reach);
  const Block block = {size, Map(file, size, PROT_READ | PROT_WRITE)};
  close(file);
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.by_address[address] = block;
  return address;
}

void CudaFree(int, void* memory) {
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  const auto found = blocks.by_address.find(static_cast<char*>(memory));
  CHECK(found != blocks.by_address.end()) << memory;
  munmap(found->second.accessible, found->second.bytes);
  munmap(found->first, found->second.bytes);
  blocks.by_address.erase(found);
}

CudaStream::CudaStream(int device) : device_(device), handle_(new ThreadPool(1)) {}

CudaStream::~CudaStream() {
  delete PoolOf(*this);
  if (workspace_ != nullptr) CudaFree(device_, workspace_);
}

void* CudaStream::Workspace(int64_t bytes) {
  CHECK(KernelsAreEmulated());
  if (workspace_bytes_ < bytes) {
    if (workspace_ != nullptr) CudaFree(device_, workspace_);
    workspace_ = CudaAllocate(device_, bytes, "workspace");
    workspace_bytes_ = bytes;
  }
  // Whoever counts on what was there before gets NaN.
  std::memset(workspace_, 0xff, static_cast<size_t>(workspace_bytes_));
  return workspace_;
}

void CudaStream::Synchronize() {}

// The handle is when it was recorded, if it was.
CudaEvent::CudaEvent(int, bool) {}
CudaEvent::~CudaEvent() { delete static_cast<Clock::time_point*>(handle_); }
void CudaEvent::Record(const CudaStream&) {
  if (handle_ == nullptr) handle_ = new Clock::time_point;
  *static_cast<Clock::time_point*>(handle_) = Clock::now();
}
bool CudaEvent::Reached() const { return handle_ == nullptr || !events_are_late; }
void CudaEvent::HoldBack(const CudaStream&) const {}

int64_t CudaEvent::Nanoseconds(const CudaEvent& from, const CudaEvent& to) {
  CHECK(from.handle_ != nullptr && to.handle_ != nullptr) << "an event was not recorded";
  return std::chrono::nanoseconds(*static_cast<Clock::time_point*>(to.handle_) -
                                  *static_cast<Clock::time_point*>(from.handle_))
      .count();
}

void PushCudaRange(const std::string&) {}
void PopCudaRange() {}
void StartCudaProfiler() {}
void StopCudaProfiler() {}

void MakeEmulatedEventsLate(bool late) { events_are_late = late; }

void CopyOnCuda(CudaStream* stream, const Tensor& in, const Tensor& out) {
  CHECK_EQ(in.dtype(), out.dtype());
  CHECK_EQ(in.shape(), out.shape());
  CHECK(in.is_contiguous() && out.is_contiguous()) << in << " to " << out;
  const Device here = {DeviceType::kCuda, stream->device()};
  CHECK(in.device() == here || out.device() == here) << in << " to " << out;
  if (in.bytes() == 0) return;
  std::memmove(EmulatedView(out).raw(), EmulatedView(in).raw(), static_cast<size_t>(in.bytes()));
}

Tensor EmulatedView(const Tensor& tensor) {
  if (tensor.device().type != DeviceType::kCuda) return tensor;
  return tensor.Moved(Accessible(tensor.raw()), Device());
}

Stream EmulatingStream(const Stream& stream) { return Stream::Cpu(PoolOf(*stream.cuda())); }

}  // namespace megatron
