// This file is compiled without ThreadSanitizer's instrumentation: the emulation's own accesses
// belong to no thread. So it copies and fills in ways that do not become calls of memcpy and
// memset, which ThreadSanitizer intercepts.
#include "megatron/ops/cuda/emulation/block.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/cuda/emulation/sanitizers.h"
#include "megatron/ops/cuda/emulation/shared_memory.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

// Saves the registers that a call preserves on the stack, and continues on another stack where this
// function was left before. (Library functions that switch stacks ask the kernel for signal masks
// each time, which takes longer than the threads run between two switches.)
extern "C" void MegatronSwitchStack(void** left, void* entered);
asm(R"(
.text
.globl MegatronSwitchStack
.type MegatronSwitchStack, @function
MegatronSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size MegatronSwitchStack, .-MegatronSwitchStack
)");

namespace megatron::emulation {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr unsigned kMostThreads = 1024;
// Dynamic shared memory of a kernel that has not asked for more.
constexpr size_t kSharedBytesUnasked = size_t{48} << 10;
// Number of blocks that ThreadSanitizer watches, drawn anew for each launch: watching takes many
// times longer than the rest.
constexpr size_t kWatchedBlocks = 4;

enum class Call { kSyncBlock, kSyncWarp, kShuffle, kWholeWarp };

// Fibers that wait for each other: all that have not returned must arrive, with the same call.
struct Barrier {
  int expected = 0, arrived = 0;
  int64_t generation = 0;
  Call call = Call::kSyncBlock;
  // The addresses by which a sanitizer sees the order of generations, used in turn: a thread that
  // is two generations ahead has waited for all others to reach the next one.
  char order[2] = {};
};

// The value that a lane gave, and its generation.
struct Given {
  Register value = {};
  int64_t generation = -1;
};

struct Warp {
  Barrier barrier;
  std::array<Given, kWarpSize> given[2];  // used in turn
};

struct Fiber {
  void* stack_pointer = nullptr;
  std::unique_ptr<char[]> stack;
  void* thread = nullptr;  // ThreadSanitizer's; null: the one that launched
  unsigned index = 0;
  bool done = false;
  const char* waits_for = nullptr;  // other than barriers of threads
  bool lets_others_run = false;
};

// Runs blocks one after another. Blocks of one multiprocessor are ordered, so that shared memory,
// stacks and ThreadSanitizer's threads can be reused; blocks of different ones are not.
struct Multiprocessor {
  bool is_watched = true;  // its threads are ThreadSanitizer's threads
  std::vector<Fiber> fibers;
  Barrier all;
  std::vector<Warp> warps;
  SharedMemory shared;
  int64_t blocks = 0;      // so far
  char order[2] = {};      // one for each of its blocks, in turn
  int running_fibers = 0;  // fibers that have not ended
};

// The kernel that is running, and the state of the emulated device.
struct Machine {
  std::mutex mutex;
  Multiprocessor watched[2], unwatched;
  Multiprocessor* on = nullptr;  // the one that runs
  Fiber* running = nullptr;
  void* scheduler = nullptr;  // its stack pointer while a fiber runs
  void* scheduler_thread = nullptr;
  int64_t progress = 0;  // fibers that ended, barriers that opened, and what NoteProgress told
  std::vector<std::function<void()>> at_end;  // called at the end of the block
  size_t shared_bytes = 0;
  const std::function<void()>* thread = nullptr;
  std::map<const void*, size_t> allowed_shared;  // keyed by kernel
  LaunchObserver* observer = nullptr;
};

Machine& TheMachine() {
  static Machine& machine = *[] {
    auto* const made = new Machine;
    made->unwatched.is_watched = false;
    made->at_end.reserve(8);  // reserved here and not by a fiber, since another fiber frees it
    return made;
  }();
  return machine;
}

Warp& RunningWarp() {
  const Machine& machine = TheMachine();
  return machine.on->warps[machine.running->index / kWarpSize];
}

bool IsWatched() { return TheMachine().running->thread != nullptr; }

void Yield() {
  Machine& machine = TheMachine();
  if (IsWatched()) SwitchToThread(machine.scheduler_thread);
  MegatronSwitchStack(&machine.running->stack_pointer, machine.scheduler);
}

// Releases the waiting fibers if no other is expected.
void OpenIfComplete(Barrier* barrier) {
  if (barrier->arrived < barrier->expected || barrier->expected == 0) return;
  barrier->arrived = 0;
  ++barrier->generation;
  ++TheMachine().progress;
}

void Wait(Barrier* barrier, Call call) {
  if (barrier->arrived == 0) barrier->call = call;
  CHECK(barrier->call == call) << "threads wait for each other at different calls";
  const int64_t generation = barrier->generation;
  const bool orders = IsWatched() && (call == Call::kSyncBlock || call == Call::kSyncWarp);
  if (orders) Release(&barrier->order[generation % 2]);
  ++barrier->arrived;
  OpenIfComplete(barrier);
  while (barrier->generation == generation) Yield();
  if (orders) Acquire(&barrier->order[generation % 2]);
}

void RunFiber() {
  Machine& machine = TheMachine();
  const int64_t number = machine.on->blocks;
  if (IsWatched()) Acquire(&machine.on->order[(number - 1) % 2]);
  (*machine.thread)();
  if (IsWatched()) Release(&machine.on->order[number % 2]);
  machine.running->done = true;
  --machine.on->running_fibers;
  ++machine.progress;
  for (Barrier* barrier : {&RunningWarp().barrier, &machine.on->all}) {
    --barrier->expected;
    OpenIfComplete(barrier);
  }
  Yield();
  LOG(FATAL) << "a fiber that had ended ran on";
}

// Returns a stack that looks as if RunFiber had been about to begin when it was left.
void* FreshStack(char* memory) {
  constexpr int kSavedRegisters = 6;
  auto top = reinterpret_cast<uintptr_t>(memory + kStackBytes) & ~uintptr_t{15};
  auto* const slots = reinterpret_cast<uintptr_t*>(top) - 2 - kSavedRegisters;
  std::fill_n(slots, kSavedRegisters, 0);
  slots[kSavedRegisters] = reinterpret_cast<uintptr_t>(&RunFiber);
  slots[kSavedRegisters + 1] = 0;  // the return address; it keeps the stack aligned as a call does
  return slots;
}

void StartFibers(Multiprocessor* on, unsigned threads) {
  on->warps.resize((threads + kWarpSize - 1) / kWarpSize);
  for (Warp& warp : on->warps) warp = Warp();
  ++on->blocks;
  on->all = Barrier();
  on->all.expected = on->running_fibers = static_cast<int>(threads);
  while (on->fibers.size() < threads) {
    Fiber fiber;
    fiber.stack = std::unique_ptr<char[]>(new char[kStackBytes]);
    if (on->is_watched) fiber.thread = MakeThread();
    fiber.index = static_cast<unsigned>(on->fibers.size());
    on->fibers.push_back(std::move(fiber));
  }
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = on->fibers[t];
    fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.lets_others_run = false;
    char* const stack = fiber.stack.get();
    // Permits the part of the stack from which RunFiber never returned.
    if (fiber.stack_pointer != nullptr)
      Permit(fiber.stack_pointer, stack + kStackBytes - static_cast<char*>(fiber.stack_pointer));
    fiber.stack_pointer = FreshStack(stack);
    ++on->warps[t / kWarpSize].barrier.expected;
  }
}

// The threads of each warp, in the order in which they run.
using Order = std::vector<std::vector<unsigned>>;

Order DrawOrder(unsigned threads, std::mt19937* random) {
  Order order((threads + kWarpSize - 1) / kWarpSize);
  for (unsigned t = 0; t < threads; ++t) order[t / kWarpSize].push_back(t);
  for (std::vector<unsigned>& warp : order) std::shuffle(warp.begin(), warp.end(), *random);
  std::shuffle(order.begin(), order.end(), *random);
  return order;
}

// Runs the threads of a warp until all of them wait for other warps or have ended.
void RunWarp(const std::vector<unsigned>& warp) {
  Machine& machine = TheMachine();
  for (int64_t before = -1; machine.progress > before;) {
    before = machine.progress;
    for (unsigned t : warp) {
      Fiber& fiber = machine.on->fibers[t];
      if (fiber.done) continue;
      machine.running = &fiber;
      threadIdx = dim3(t, 0, 0);
      if (IsWatched()) SwitchToThread(fiber.thread);
      MegatronSwitchStack(&machine.scheduler, fiber.stack_pointer);
    }
  }
}

// Describes what the fibers wait for, for a person.
std::string Waits(const Multiprocessor& on) {
  std::set<std::string> waits;
  for (const Fiber& fiber : on.fibers) {
    if (fiber.index < blockDim.x && !fiber.done && fiber.waits_for != nullptr)
      waits.insert(fiber.waits_for);
  }
  std::string all;
  for (const std::string& wait : waits) all += "; some for " + wait;
  return all;
}

// Runs one of the fibers that let others run; returns false if there is none.
bool WakeOne(const Order& order) {
  Machine& machine = TheMachine();
  for (const std::vector<unsigned>& warp : order) {
    for (unsigned t : warp) {
      Fiber& fiber = machine.on->fibers[t];
      if (fiber.done || !fiber.lets_others_run) continue;
      fiber.lets_others_run = false;
      ++machine.progress;
      return true;
    }
  }
  return false;
}

// Runs warp by warp, each as far as possible: a warp that lacks a wait runs ahead of the others.
void RunBlock(const Order& order) {
  Machine& machine = TheMachine();
  StartFibers(machine.on, blockDim.x);
  machine.on->shared.Refill();
  while (machine.on->running_fibers > 0) {
    const int64_t before = machine.progress;
    for (const std::vector<unsigned>& warp : order) RunWarp(warp);
    if (machine.progress == before && WakeOne(order)) continue;
    CHECK(machine.progress > before)
        << "threads of block " << blockIdx.x << "," << blockIdx.y << "," << blockIdx.z
        << " wait at different places" << Waits(*machine.on);
  }
  for (const auto& action : machine.at_end) action();
  machine.at_end.clear();
}

void CheckLaunch(dim3 grid, dim3 block) {
  CHECK_EQ(block.y * block.z, 1u) << "blocks have one dim here";
  // These sizes are refused by hardware, too.
  CHECK(block.x > 0 && block.x <= kMostThreads) << block.x;
  CHECK(grid.x > 0 && grid.x <= 0x7fffffff && grid.y > 0 && grid.y <= 65535 && grid.z > 0 &&
        grid.z <= 65535)
      << grid.x << "," << grid.y << "," << grid.z;
}

}  // namespace

int Lane() { return static_cast<int>(TheMachine().running->index % kWarpSize); }

void WarpRegisters::Give(Register mine, bool whole_warp) {
  Warp& warp = RunningWarp();
  CHECK(!whole_warp || warp.barrier.expected == kWarpSize)
      << "an instruction of whole warps, in one of " << warp.barrier.expected << " lanes";
  generation_ = warp.barrier.generation;
  Given& given = warp.given[generation_ % 2][Lane()];
  given.value = mine;
  given.generation = generation_;
  Wait(&warp.barrier, whole_warp ? Call::kWholeWarp : Call::kShuffle);
}

Register WarpRegisters::Taken(int lane) const {
  CHECK(lane >= 0 && lane < kWarpSize) << lane;
  const Given& given = RunningWarp().given[generation_ % 2][lane];
  CHECK_EQ(given.generation, generation_) << "lane " << lane << " takes no part";
  return given.value;
}

void SyncBlock() { Wait(&TheMachine().on->all, Call::kSyncBlock); }
void SyncWarp() { Wait(&RunningWarp().barrier, Call::kSyncWarp); }

void* StaticShared(const void* key, size_t bytes, size_t alignment) {
  return TheMachine().on->shared.Of(key, bytes, alignment);
}
void* DynamicShared(size_t alignment) {
  return StaticShared(&TheMachine(), TheMachine().shared_bytes, alignment);
}

size_t DynamicSharedBytes() { return TheMachine().shared_bytes; }

void WaitUntil(const std::function<bool()>& ready, const char* what) {
  if (ready()) return;
  Fiber& fiber = *TheMachine().running;
  fiber.waits_for = what;
  do {
    Yield();
  } while (!ready());
  fiber.waits_for = nullptr;
  NoteProgress();
}
void NoteProgress() { ++TheMachine().progress; }
void WaitForOthers() {
  Fiber& fiber = *TheMachine().running;
  fiber.lets_others_run = true;
  while (fiber.lets_others_run) Yield();
}
void AtBlockEnd(std::function<void()> action) { TheMachine().at_end.push_back(std::move(action)); }

bool AllowShared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kMostSharedBytes) return false;
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  TheMachine().allowed_shared[kernel] = static_cast<size_t>(bytes);
  return true;
}

size_t SharedLimit(const void* kernel, size_t dynamic_bytes) {
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  const auto& allowed = TheMachine().allowed_shared;
  const auto found = allowed.find(kernel);
  const size_t most = found == allowed.end() ? 0 : found->second;
  CHECK_LE(dynamic_bytes, std::max(most, kSharedBytesUnasked))
      << "bytes of shared memory, without cudaFuncSetAttribute";
  return most > 0 ? kMostSharedBytes : kSharedBytesUnasked;
}

void ObserveLaunches(LaunchObserver* observer) {
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  TheMachine().observer = observer;
}

void RunLibraryKernel(const std::function<void()>& kernel) {
  Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mutex);
  if (machine.observer != nullptr) machine.observer->Begin();
  kernel();
  if (machine.observer != nullptr) machine.observer->End();
}

void RunGrid(dim3 grid, dim3 block_size, size_t shared_bytes, const std::function<void()>& thread,
             size_t shared_limit) {
  Machine& machine = TheMachine();
  std::lock_guard<std::mutex> lock(machine.mutex);
  static std::mt19937& random = *new std::mt19937(1);
  CheckLaunch(grid, block_size);
  machine.thread = &thread;
  machine.shared_bytes = shared_bytes;
  machine.scheduler_thread = RunningThread();
  gridDim = grid;
  blockDim = block_size;
  const Order order = DrawOrder(block_size.x, &random);
  std::vector<uint64_t> blocks(uint64_t{grid.x} * grid.y * grid.z);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), random);
  if (machine.observer != nullptr) machine.observer->Begin();
  for (Multiprocessor* on : {&machine.watched[0], &machine.watched[1], &machine.unwatched}) {
    on->shared.Clear(shared_limit);
    Release(&on->order[on->blocks % 2]);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    machine.on = i < kWatchedBlocks ? &machine.watched[i % 2] : &machine.unwatched;
    blockIdx = dim3(static_cast<unsigned>(blocks[i] % grid.x),
                    static_cast<unsigned>(blocks[i] / grid.x % grid.y),
                    static_cast<unsigned>(blocks[i] / grid.x / grid.y));
    RunBlock(order);
  }
  for (const Multiprocessor& on : machine.watched) {
    for (const char& turn : on.order) Acquire(&turn);
  }
  if (machine.observer != nullptr) machine.observer->End();
}

}  // namespace megatron::emulation
