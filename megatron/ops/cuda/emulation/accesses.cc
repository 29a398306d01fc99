#include "megatron/ops/cuda/emulation/accesses.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/ops/cuda/emulation/library_accesses.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron::emulation {
namespace {

constexpr char kRead = 1, kWritten = 2;

// A piece of device memory, and what the running launch did to each of its bytes.
struct Piece {
  const char* begin;
  std::string name;
  std::vector<char> done;
};

// In ascending order of addresses; empty while no launch is followed.
std::vector<Piece>& Pieces() {
  static std::vector<Piece>& pieces = *new std::vector<Piece>;
  return pieces;
}

void Note(const void* address, size_t bytes, char kind) {
  std::vector<Piece>& pieces = Pieces();
  if (pieces.empty()) return;
  const char* const at = static_cast<const char*>(address);
  const auto after = std::upper_bound(
      pieces.begin(), pieces.end(), at,
      [](const char* address, const Piece& piece) { return address < piece.begin; });
  if (after == pieces.begin()) return;
  Piece& piece = *(after - 1);
  const size_t first = static_cast<size_t>(at - piece.begin);
  for (size_t i = first; i < std::min(first + bytes, piece.done.size()); ++i) {
    if (kind == kWritten || (piece.done[i] & kWritten) == 0) piece.done[i] |= kind;
  }
}

}  // namespace

AccessCounter::AccessCounter(Callback on_launch) : on_launch_(std::move(on_launch)) {
  ObserveLaunches(this);
  library_access_callback = [](const void* address, size_t bytes, bool writes) {
    Note(address, bytes, writes ? kWritten : kRead);
  };
}

AccessCounter::~AccessCounter() {
  library_access_callback = nullptr;
  ObserveLaunches(nullptr);
}

void AccessCounter::Begin() {
  for (const EmulatedMemory& memory : MemoryOfEmulatedCuda())
    Pieces().push_back({memory.begin, memory.name, std::vector<char>(memory.bytes)});
}

void AccessCounter::End() {
  std::map<std::string, AccessedBytes> by_memory;
  for (const Piece& piece : Pieces()) {
    AccessedBytes bytes;
    for (const char done : piece.done) {
      bytes.read += (done & kRead) != 0;
      bytes.written += (done & kWritten) != 0;
    }
    if (bytes.read + bytes.written == 0) continue;
    by_memory[piece.name].read += bytes.read;
    by_memory[piece.name].written += bytes.written;
  }
  Pieces().clear();
  on_launch_(by_memory);
}

}  // namespace megatron::emulation

// The calls that the instrumentation makes (gcc's sanitizer.def).
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
// The guard of a static variable in a function is loaded by it.
char __tsan_atomic8_load(const volatile char* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_load(const volatile int* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_add(volatile int* at, int more, int) {
  return __atomic_fetch_add(at, more, __ATOMIC_SEQ_CST);
}
bool __tsan_atomic32_compare_exchange_strong(volatile int* at, int* expected, int desired, int,
                                             int) {
  return __atomic_compare_exchange_n(at, expected, desired, /*weak=*/false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
}
// glog's headers call it.
void AnnotateBenignRaceSized(const char*, int, const volatile void*, long, const char*) {}

void __tsan_read_range(void* at, size_t bytes) {
  megatron::emulation::Note(at, bytes, megatron::emulation::kRead);
}
void __tsan_write_range(void* at, size_t bytes) {
  megatron::emulation::Note(at, bytes, megatron::emulation::kWritten);
}

#define MEGATRON_ACCESSES(bytes)                                      \
  void __tsan_read##bytes(void* at) { __tsan_read_range(at, bytes); } \
  void __tsan_write##bytes(void* at) { __tsan_write_range(at, bytes); }
MEGATRON_ACCESSES(1)
MEGATRON_ACCESSES(2)
MEGATRON_ACCESSES(4)
MEGATRON_ACCESSES(8)
MEGATRON_ACCESSES(16)
#undef MEGATRON_ACCESSES
}
