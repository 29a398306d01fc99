#include "megatron/ops/cuda/emulation/block.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

// Leaves the registers that a call preserves on the stack, and goes on with another stack where
// this function was left before. (Libraries' switches ask the kernel for signal masks each time,
// which takes longer than the threads between two of them.)
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

// Fibers that wait for each other: all that have not returned must arrive.
struct Barrier {
  int expected = 0, arrived = 0;
  int64_t generation = 0;
};

struct Fiber {
  void* stack_pointer = nullptr;
  std::unique_ptr<char[]> stack;
  unsigned index = 0;
  bool done = false;
  const char* waits_for = nullptr;  // beyond barriers of threads
  bool lets_others_run = false;
};

// The block that runs.
struct Block {
  std::vector<Fiber> fibers;
  Barrier all;
  std::vector<Barrier> warps;
  std::vector<char> places;  // 16 bytes a thread
  std::vector<char> shared;
  void* scheduler = nullptr;  // its stack pointer while a fiber runs
  Fiber* running = nullptr;
  const std::function<void()>* thread = nullptr;
  int64_t progress = 0;  // fibers that ended, barriers that opened, and what NoteProgress told
  std::vector<std::function<void()>> at_end;
};

Block& Current() {
  static Block& block = *new Block;
  return block;
}

void Yield() {
  Block& block = Current();
  MegatronSwitchStack(&block.running->stack_pointer, block.scheduler);
}

// Lets those go that wait, if nobody else is to come.
void OpenIfComplete(Barrier* barrier) {
  if (barrier->arrived < barrier->expected || barrier->expected == 0) return;
  barrier->arrived = 0;
  ++barrier->generation;
  ++Current().progress;
}

void Wait(Barrier* barrier) {
  const int64_t generation = barrier->generation;
  ++barrier->arrived;
  OpenIfComplete(barrier);
  while (barrier->generation == generation) Yield();
}

void RunFiber() {
  Block& block = Current();
  (*block.thread)();
  Fiber& fiber = *block.running;
  fiber.done = true;
  ++block.progress;
  Barrier& warp = block.warps[fiber.index / kWarpSize];
  --warp.expected;
  --block.all.expected;
  OpenIfComplete(&warp);
  OpenIfComplete(&block.all);
  Yield();
  LOG(FATAL) << "a fiber that had ended ran on";
}

// As if RunFiber had been about to begin when the stack was left.
void* FreshStack(char* memory) {
  constexpr int kSavedRegisters = 6;
  auto top = reinterpret_cast<uintptr_t>(memory + kStackBytes) & ~uintptr_t{15};
  auto* const slots = reinterpret_cast<uintptr_t*>(top) - 2 - kSavedRegisters;
  std::fill_n(slots, kSavedRegisters, 0);
  slots[kSavedRegisters] = reinterpret_cast<uintptr_t>(&RunFiber);
  slots[kSavedRegisters + 1] =
      0;  // where it would return to; keeps the stack aligned as a call does
  return slots;
}

void StartFibers(Block* block, unsigned threads) {
  if (block->fibers.size() < threads) block->fibers.resize(threads);
  const unsigned warps = (threads + kWarpSize - 1) / kWarpSize;
  block->warps.assign(warps, Barrier());
  block->all = Barrier();
  block->places.assign(size_t{16} * warps * kWarpSize, 0);
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = block->fibers[t];
    if (fiber.stack == nullptr) fiber.stack = std::unique_ptr<char[]>(new char[kStackBytes]);
    fiber.index = t;
    fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.lets_others_run = false;
    fiber.stack_pointer = FreshStack(fiber.stack.get());
    ++block->warps[t / kWarpSize].expected;
    ++block->all.expected;
  }
}

// Lets the threads of a warp go on until all of them wait for other warps or have ended.
void RunWarp(Block* block, const std::vector<unsigned>& order, unsigned warp) {
  for (int64_t before = -1; block->progress > before;) {
    before = block->progress;
    for (unsigned t : order) {
      Fiber& fiber = block->fibers[t];
      if (t / kWarpSize != warp || fiber.done) continue;
      block->running = &fiber;
      threadIdx = dim3(t, 0, 0);
      MegatronSwitchStack(&block->scheduler, fiber.stack_pointer);
    }
  }
}

// What fibers wait for, for a person to read.
std::string Waits(const Block& block, size_t threads) {
  std::set<std::string> waits;
  for (size_t t = 0; t < threads; ++t) {
    const Fiber& fiber = block.fibers[t];
    if (!fiber.done && fiber.waits_for != nullptr) waits.insert(fiber.waits_for);
  }
  std::string all;
  for (const std::string& wait : waits) all += "; some for " + wait;
  return all;
}

// One of those that let others run goes on; false: there is none.
bool WakeOne(Block* block, const std::vector<unsigned>& order) {
  for (unsigned t : order) {
    Fiber& fiber = block->fibers[t];
    if (fiber.done || !fiber.lets_others_run) continue;
    fiber.lets_others_run = false;
    ++block->progress;
    return true;
  }
  return false;
}

// Warp by warp, each as far as it gets: one that does not wait for others where it should runs
// ahead of them.
void RunBlock(Block* block, const std::vector<unsigned>& order) {
  StartFibers(block, static_cast<unsigned>(order.size()));
  const auto all_done = [&] {
    return std::all_of(order.begin(), order.end(),
                       [&](unsigned t) { return block->fibers[t].done; });
  };
  while (!all_done()) {
    const int64_t before = block->progress;
    std::vector<bool> ran(block->warps.size());
    for (unsigned t : order) {
      if (ran[t / kWarpSize]) continue;
      ran[t / kWarpSize] = true;
      RunWarp(block, order, t / kWarpSize);
    }
    if (block->progress == before && WakeOne(block, order)) continue;
    CHECK(block->progress > before)
        << "threads of block " << blockIdx.x << "," << blockIdx.y << "," << blockIdx.z
        << " wait at different places" << Waits(*block, order.size());
  }
  for (const auto& action : std::exchange(block->at_end, {})) action();
}

}  // namespace

int Lane() { return static_cast<int>(Current().running->index % kWarpSize); }

void* Place(int lane) {
  Block& block = Current();
  const size_t warp = block.running->index / kWarpSize;
  return &block.places[16 * (warp * kWarpSize + static_cast<size_t>(lane))];
}

void SyncBlock() { Wait(&Current().all); }
void SyncWarp() { Wait(&Current().warps[Current().running->index / kWarpSize]); }
void* DynamicShared() { return Current().shared.data(); }
size_t DynamicSharedBytes() { return Current().shared.size(); }

void WaitUntil(const std::function<bool()>& ready, const char* what) {
  if (ready()) return;
  Fiber& fiber = *Current().running;
  fiber.waits_for = what;
  do {
    Yield();
  } while (!ready());
  fiber.waits_for = nullptr;
  NoteProgress();
}
void NoteProgress() { ++Current().progress; }
void WaitForOthers() {
  Fiber& fiber = *Current().running;
  fiber.lets_others_run = true;
  while (fiber.lets_others_run) Yield();
}
void AtBlockEnd(std::function<void()> action) { Current().at_end.push_back(std::move(action)); }

void RunGrid(dim3 grid, dim3 block_size, size_t shared_bytes, const std::function<void()>& thread) {
  static std::mutex& mutex = *new std::mutex;
  std::lock_guard<std::mutex> lock(mutex);
  static std::mt19937& random = *new std::mt19937(1);
  CHECK_EQ(block_size.y * block_size.z, 1u) << "blocks have one dim here";
  // A grid that hardware refuses.
  CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y <= 65535 && grid.z <= 65535)
      << grid.x << "," << grid.y << "," << grid.z;
  Block& block = Current();
  block.thread = &thread;
  gridDim = grid;
  blockDim = block_size;
  std::vector<unsigned> order(block_size.x);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        // What a kernel reads before it has written it is NaN in every dtype.
        block.shared.assign(shared_bytes, static_cast<char>(0xff));
        RunBlock(&block, order);
      }
    }
  }
}

}  // namespace megatron::emulation
