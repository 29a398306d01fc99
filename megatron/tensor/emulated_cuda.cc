#include "megatron/tensor/emulated_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_graph.h"
#include "megatron/tensor/emulated_order.h"
#include "megatron/tensor/emulated_transfers.h"

namespace megatron {
namespace {

// One block is one piece of anonymous memory mapped twice: without access, at the address that the
// program knows, and with. Where kernels are emulated it is of the heap, at one address, so that
// AddressSanitizer sees where it begins and ends.
struct Block {
  size_t bytes = 0;
  char* accessible = nullptr;
  std::string name;
};

struct Blocks {
  std::mutex mutex;
  std::map<char*, Block> by_address;
  std::map<const char*, size_t> on_host;  // page-locked, and their bytes
};

using Clock = std::chrono::steady_clock;

bool kernels_are_emulated = false;  // set before main
std::atomic<bool> events_are_late{false};
thread_local std::vector<std::string> ranges;  // of the host's work, that have begun
std::atomic<int64_t> allocations{0}, host_waits{0};
std::atomic<int64_t> most_page_locked{std::numeric_limits<int64_t>::max()};
std::atomic<int64_t> most_on_device{int64_t{1} << 40};
constexpr int kComputeCapability = 90;  // the kernels for Hopper run here

EmulatedTransfers& Transfers() {
  static EmulatedTransfers& transfers = *new EmulatedTransfers;
  return transfers;
}

// The object that an event's handle points to.
struct Recorded {
  Clock::time_point time;
  const void* stream;
  int64_t transfers;  // number of operations of the stream before it
  int64_t number;     // number among all recorded events
  EmulatedPoint point;
  // Where a graph has the event: its place in the capture, and at the last launch. The fields above
  // say nothing then.
  CapturedEvent captured = {};
  std::shared_ptr<EmulatedPoint> launched = nullptr;
};

// The recorded points of streams that the host has waited for. A wait for an earlier point of the
// same stream is no wait.
class Waiting {
 public:
  int64_t Next() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ++recorded_;
  }
  // Returns whether the host really waits.
  bool For(const void* stream, int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t& reached = reached_[stream];
    if (number <= reached) return false;
    reached = number;
    return true;
  }

 private:
  std::mutex mutex_;
  int64_t recorded_ = 0;
  std::map<const void*, int64_t> reached_;
};

Waiting& HostWaiting() {
  static Waiting& waiting = *new Waiting;
  return waiting;
}

const Recorded& RecordedIn(const CudaEvent& event) {
  CHECK(event.handle() != nullptr) << "the event was not recorded";
  const Recorded& recorded = *static_cast<const Recorded*>(event.handle());
  CHECK_EQ(recorded.captured.capture, 0) << "the event is of a graph";
  return recorded;
}

Blocks& AllBlocks() {
  static Blocks& blocks = *new Blocks;
  return blocks;
}

char* Map(int file, size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  PCHECK(memory != MAP_FAILED) << bytes << " bytes";
  return static_cast<char*>(memory);
}

// The address that the program knows, and the accessible one.
std::pair<char*, char*> MapTwice(size_t bytes, const std::string& name) {
  const int file = memfd_create("emulated device memory", MFD_CLOEXEC);
  PCHECK(file >= 0) << name;
  PCHECK(ftruncate(file, static_cast<off_t>(bytes)) == 0) << bytes << " bytes for " << name;
  const std::pair<char*, char*> both = {Map(file, bytes, PROT_NONE),
                                        Map(file, bytes, PROT_READ | PROT_WRITE)};
  close(file);
  return both;
}

std::pair<char*, char*> TakeFromHeap(size_t bytes) {
  constexpr size_t kAlignment = 256;  // the alignment that cudaMalloc promises
  void* memory = nullptr;
  CHECK_EQ(posix_memalign(&memory, kAlignment, bytes), 0) << bytes << " bytes";
  std::memset(memory, 0, bytes);
  return {static_cast<char*>(memory), static_cast<char*>(memory)};
}

int64_t BytesOnDevice() {
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  size_t bytes = 0;
  for (const auto& [begin, block] : blocks.by_address) bytes += block.bytes;
  return static_cast<int64_t>(bytes);
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

void CheckCopy(const CudaStream& stream, const Tensor& in, const Tensor& out) {
  CHECK_EQ(in.dtype(), out.dtype());
  CHECK_EQ(in.shape(), out.shape());
  CHECK(in.is_contiguous() && out.is_contiguous()) << in << " to " << out;
  const Device here = {DeviceType::kCuda, stream.device()};
  CHECK(in.device() == here || out.device() == here) << in << " to " << out;
}

// The host's side of a copy is checked where it is enqueued: copies of other streams may touch that
// memory, too. The host's own accesses are those that EmulatedTransfers finds.
void OrderCopy(const CudaStream& stream, const Tensor& in, const Tensor& out, bool enqueued) {
  std::vector<EmulatedAccess> accesses;
  if (enqueued || in.device().type == DeviceType::kCuda) accesses.push_back(ReadOf(in));
  if (enqueued || out.device().type == DeviceType::kCuda) accesses.push_back(WriteOf(out));
  EmulatedCost cost;
  cost.bytes = static_cast<double>(in.bytes());
  if (in.device() == out.device()) {
    cost.bytes *= 2;
  } else {
    cost.engine = out.device().type == DeviceType::kCuda ? EmulatedEngine::kFromHost
                                                         : EmulatedEngine::kToHost;
  }
  OrderOperation(stream, "copy", accesses, cost);
  // The host goes on behind a copy that was not enqueued.
  if (!enqueued && in.device() != out.device()) RecordHostWait(PointOf(stream.handle()));
}

void CheckPageLocked(const Tensor& tensor) {
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  const char* const address = static_cast<const char*>(tensor.raw());
  auto after = blocks.on_host.upper_bound(address);
  CHECK(after != blocks.on_host.begin()) << "not page-locked: " << tensor;
  const auto& [begin, bytes] = *--after;
  CHECK_LE(static_cast<size_t>(address - begin) + tensor.bytes(), bytes)
      << "not page-locked: " << tensor;
}

// The object that a CUDA stream's handle points to.
ThreadPool* PoolOf(const CudaStream& stream) { return static_cast<ThreadPool*>(stream.handle()); }

}  // namespace

bool KernelsAreEmulated() { return kernels_are_emulated; }

bool EmulateKernels() { return kernels_are_emulated = true; }

int CudaDeviceCount() { return 1; }

CudaDeviceFacts CudaFacts(int) {
  return {KernelsAreEmulated() ? kEmulatedKernelsName : kEmulatedDeviceName, "emulated device.",
          kComputeCapability};
}

CudaMemory CudaMemoryOf(int) { return {most_on_device - BytesOnDevice(), most_on_device}; }

void UseCudaDevice(int) {}

std::string CudaPciBusId(int) { return ""; }

void* CudaAllocate(int device, int64_t bytes, const std::string& name) {
  CHECK_EQ(device, 0) << name;
  CheckCapturesNothing("memory is taken");
  CHECK_LE(bytes, most_on_device - BytesOnDevice())
      << "out of memory of the emulated device: " << bytes << " bytes for " << name;
  ++allocations;
  const size_t size = static_cast<size_t>(bytes);
  const auto [address, accessible] =
      KernelsAreEmulated() ? TakeFromHeap(size) : MapTwice(size, name);
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.by_address[address] = {size, accessible, name};
  return address;
}

void CudaFree(int, void* memory) {
  CheckCapturesNothing("memory is freed");
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  const auto found = blocks.by_address.find(static_cast<char*>(memory));
  CHECK(found != blocks.by_address.end()) << memory;
  const auto [address, block] = *found;
  ForgetMemory(address, static_cast<int64_t>(block.bytes));
  blocks.by_address.erase(found);
  if (address == block.accessible) return std::free(address);
  munmap(block.accessible, block.bytes);
  munmap(address, block.bytes);
}

CudaStream::CudaStream(int device) : device_(device), handle_(new ThreadPool(1)) {
  StartOrder(handle_);
}

void* CudaAllocateHost(int64_t bytes, std::string* error) {
  if (bytes > most_page_locked) {
    *error = "more than the emulated device locks";
    return nullptr;
  }
  ++allocations;
  char* const memory = static_cast<char*>(std::calloc(static_cast<size_t>(bytes), 1));
  CHECK(memory != nullptr) << bytes << " bytes";
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.on_host[memory] = static_cast<size_t>(bytes);
  return memory;
}

void CudaFreeHost(void* memory) {
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  const auto found = blocks.on_host.find(static_cast<char*>(memory));
  CHECK(found != blocks.on_host.end()) << memory;
  ForgetMemory(found->first, static_cast<int64_t>(found->second));
  blocks.on_host.erase(found);
  std::free(memory);
}

CudaStream::~CudaStream() {
  Transfers().End(handle_);
  EndOrder(handle_);
  delete PoolOf(*this);
  FreeWorkspaces();
}

// The CPU's ops have workspaces of their own.
void CudaStream::KeepWorkspaces() {
  CHECK(!KernelsAreEmulated()) << "kernels that the CPU runs are not captured";
}

void CudaStream::FreeWorkspaces() {
  if (workspace_ != nullptr) CudaFree(device_, workspace_);
}

void* CudaStream::Workspace(int64_t bytes) {
  CHECK(KernelsAreEmulated());
  // No more than was asked for, and no longer there for who asked before.
  if (workspace_ != nullptr) CudaFree(device_, workspace_);
  workspace_ = CudaAllocate(device_, bytes, "workspace");
  // Whoever counts on what was there before gets NaN.
  std::memset(workspace_, 0xff, static_cast<size_t>(bytes));
  return workspace_;
}

void CudaStream::Synchronize() {
  CheckCapturesNothing("the host waits");
  ++host_waits;
  HostWaiting().For(handle_, HostWaiting().Next());
  const EmulatedPoint point = PointOf(handle_);
  OrderHostAfter(point);
  Transfers().Finish(handle_, Transfers().Last(handle_));
  Transfers().FinishBefore(point);
}

CudaEvent::CudaEvent(int, bool) {}
CudaEvent::~CudaEvent() { delete static_cast<Recorded*>(handle_); }

void CudaEvent::Record(const CudaStream& stream) {
  if (handle_ == nullptr) handle_ = new Recorded;
  if (IsBeingCaptured(stream)) {
    const auto launched = std::make_shared<EmulatedPoint>();
    Recorded& recorded = *static_cast<Recorded*>(handle_) = Recorded();
    recorded.launched = launched;
    recorded.captured = RecordInCapture(
        stream, [launched, handle = stream.handle()] { *launched = PointOf(handle); });
    return;
  }
  *static_cast<Recorded*>(handle_) = {Clock::now(), stream.handle(),
                                      Transfers().Last(stream.handle()), HostWaiting().Next(),
                                      PointOf(stream.handle())};
}

bool CudaEvent::Reached() const {
  CheckCapturesNothing("an event is asked for");
  if (handle_ == nullptr) return true;
  if (events_are_late) return false;
  Transfers().Finish(RecordedIn(*this).stream, RecordedIn(*this).transfers);
  return true;
}

void CudaEvent::Wait() const {
  CheckCapturesNothing("the host waits");
  if (handle_ == nullptr) return;
  const Recorded& recorded = RecordedIn(*this);
  if (HostWaiting().For(recorded.stream, recorded.number)) ++host_waits;
  OrderHostAfter(recorded.point);
  Transfers().Finish(recorded.stream, recorded.transfers);
  Transfers().FinishBefore(recorded.point);
}

void CudaEvent::HoldBack(const CudaStream& stream) const {
  if (handle_ == nullptr) return;
  const Recorded& recorded = *static_cast<const Recorded*>(handle_);
  if (IsOfThisCapture(recorded.captured)) {
    return HoldBackInCapture(recorded.captured, stream,
                             [launched = recorded.launched, handle = stream.handle()] {
                               OrderAfter(*launched, handle);
                             });
  }
  CHECK(!IsBeingCaptured(stream)) << "a stream that is captured waits for an event that is not";
  OrderAfter(RecordedIn(*this).point, stream.handle());
}

int64_t CudaEvent::Nanoseconds(const CudaEvent& from, const CudaEvent& to) {
  return std::chrono::nanoseconds(RecordedIn(to).time - RecordedIn(from).time).count();
}

// The ranges of the host's work that take time are those of optim/host_update.h. What the host
// waits for in a range, as an extent of a file, comes before the work.
void PushCudaRange(const std::string& name) { ranges.push_back(name); }
void PopCudaRange() {
  if (ranges.empty()) return;
  const std::string name = std::move(ranges.back());
  ranges.pop_back();
  EmulatedCost cost;
  cost.engine = EmulatedEngine::kProcessor;
  if (std::sscanf(name.c_str(), "update of %lf elements", &cost.operations) == 1)
    RecordHostWork(name, cost);
}
void RecordUpdateBeside(double elements, const CudaEvent& begin) {
  if (begin.handle() == nullptr) return;
  EmulatedCost cost;
  cost.engine = EmulatedEngine::kProcessor;
  cost.operations = elements;
  RecordHostWait(RecordWorkBeside("update beside the next step", cost, RecordedIn(begin).point));
}
void StartCudaProfiler() {}
void StopCudaProfiler() {}

void MakeEmulatedEventsLate(bool late) { events_are_late = late; }

void LimitPageLockedMemory(int64_t bytes) { most_page_locked = bytes; }

void LimitEmulatedMemory(int64_t bytes) { most_on_device = bytes; }

EmulatedCudaCounts CountsOfEmulatedCuda() { return {allocations, host_waits}; }

std::vector<EmulatedMemory> MemoryOfEmulatedCuda() {
  Blocks& blocks = AllBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  std::vector<EmulatedMemory> memory;
  for (const auto& [begin, block] : blocks.by_address)
    memory.push_back({begin, block.bytes, block.name});
  return memory;
}

void CopyOnCuda(CudaStream* stream, const Tensor& in, const Tensor& out) {
  CheckCopy(*stream, in, out);
  if (in.bytes() == 0) return;
  if (in.device() != out.device()) stream->Synchronize();
  const auto copy = [stream, in, out] {
    OrderCopy(*stream, in, out, /*enqueued=*/false);
    std::memmove(EmulatedView(out).raw(), EmulatedView(in).raw(), static_cast<size_t>(in.bytes()));
  };
  if (!IsBeingCaptured(*stream)) return copy();
  std::ostringstream text;
  text << "copy " << in.bytes() << " from " << in.raw() << " to " << out.raw();
  WriteDown(*stream, {text.str(), copy});
}

void EnqueueCopyOnCuda(CudaStream* stream, const Tensor& in, const Tensor& out) {
  CheckCopy(*stream, in, out);
  if (in.device() == out.device()) return CopyOnCuda(stream, in, out);
  const size_t bytes = static_cast<size_t>(in.bytes());
  if (bytes == 0) return;
  CHECK(!IsBeingCaptured(*stream)) << "a copy to or from the host while the stream is captured";
  const bool receives = out.device().type == DeviceType::kCpu;
  CheckPageLocked(receives ? out : in);
  OrderCopy(*stream, in, out, /*enqueued=*/true);
  const EmulatedPoint point = PointOf(stream->handle());
  if (receives) {
    Transfers().Receive(stream->handle(), point, EmulatedView(in).raw(), out.raw(), bytes);
  } else {
    Transfers().Send(stream->handle(), point, in.raw(), EmulatedView(out).raw(), bytes);
  }
}

Tensor EmulatedView(const Tensor& tensor) {
  if (tensor.device().type != DeviceType::kCuda) return tensor;
  return tensor.Moved(Accessible(tensor.raw()), Device());
}

Stream EmulatingStream(const Stream& stream) {
  CHECK(!IsBeingCaptured(*stream.cuda())) << "an operation that cannot be captured";
  return Stream::Cpu(PoolOf(*stream.cuda()));
}

}  // namespace megatron
