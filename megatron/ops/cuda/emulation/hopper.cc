#include "megatron/ops/cuda/emulation/hopper.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/cuda/emulation/block.h"

namespace megatron::emulation {
namespace {

constexpr int kWarpsOfGroup = 4;
constexpr int kWarpRows = 16;  // a warp's share of the 64 rows of a product
constexpr int kDepth = 16;     // depth of a product: half the bytes of a row of the operands
constexpr int kElementBytes = 2;
constexpr int kSwizzledRow = 128;
// Number of 32-bit registers of a block.
constexpr int kRegisters = 65536;
// The address of dynamic shared memory, with the least alignment that hardware may give it.
constexpr uint32_t kSharedBase = 1040;
constexpr char kPoison = static_cast<char>(0xff);  // NaN in every dtype

struct Copy {
  TensorMap map;
  std::array<int, 4> at;
  uint32_t to = 0;
};

struct Barrier {
  int expected = 0, pending = 0;  // arrivals of a phase
  int64_t bytes = 0;              // bytes that have not arrived
  int parity = 0;                 // parity of the incomplete phase
  unsigned made_by = 0;
  bool fenced = false;  // seen by copies
  std::vector<Copy> copies;
};

using Sums = std::array<std::vector<float>, kWarpSize>;  // one vector per lane

struct PendingProduct {
  std::array<Product, kWarpSize> lanes;
  std::shared_ptr<Sums> sums;
};

struct Warp {
  std::array<Product, kWarpSize> asked;
  std::vector<PendingProduct> open;
  std::deque<std::vector<PendingProduct>> committed;
  std::map<const float*, std::weak_ptr<Sums>> in_flight;  // keyed by the first lane's sums
  bool fenced = false;
  size_t products = 0;
  int registers = 0;  // registers per thread
};

struct State {
  std::map<const uint64_t*, Barrier> barriers;
  std::vector<Warp> warps;
  // The products of each warpgroup, in order.
  std::map<size_t, std::vector<Product>> products_of_group;
  int free_registers = 0;
};

void CheckAtEnd(const State& state) {
  for (const auto& [place, barrier] : state.barriers) {
    CHECK(barrier.copies.empty())
        << "a block ended while a copy into its shared memory was to come";
  }
  for (const Warp& warp : state.warps) {
    CHECK(warp.open.empty() && warp.committed.empty())
        << "a block ended while its products were to come";
  }
}

State& Current() {
  static State* state = nullptr;
  if (state != nullptr) return *state;
  state = new State;
  const unsigned threads = blockDim.x;
  const int registers = std::min(255, kRegisters / static_cast<int>(threads)) / 8 * 8;
  state->warps.resize((threads + kWarpSize - 1) / kWarpSize);
  for (Warp& warp : state->warps) warp.registers = registers;
  AtBlockEnd([] {
    CheckAtEnd(*state);
    delete state;
    state = nullptr;
  });
  return *state;
}

size_t WarpIndex() { return threadIdx.x / kWarpSize; }
Warp& CurrentWarp() { return Current().warps[WarpIndex()]; }

char* AtShared(uint32_t address, size_t bytes) {
  CHECK(address >= kSharedBase && address - kSharedBase + bytes <= DynamicSharedBytes())
      << "address " << address << " is beyond the block's shared memory of " << DynamicSharedBytes()
      << " bytes";
  return static_cast<char*>(DynamicShared()) + (address - kSharedBase);
}

// "Shared memory matrix layout", 128-byte swizzle: bits 4 to 6 of an address are XORed with bits 7
// to 9, the number of the 128-byte row.
uint32_t Swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

Barrier& At(const uint64_t* barrier) {
  const auto at = Current().barriers.find(barrier);
  CHECK(at != Current().barriers.end()) << "a barrier is used before it was initialized";
  return at->second;
}

void CompleteIfDone(Barrier* barrier) {
  if (barrier->pending > 0 || barrier->bytes != 0) return;
  barrier->pending = barrier->expected;
  barrier->parity ^= 1;
  NoteProgress();
}

// Reads one element of the tensor; zeros outside of it.
void ReadElement(const Copy& copy, const std::array<int, 4>& in_box, char* to) {
  const char* from = copy.map.data;
  for (size_t d = 0; d < 4; ++d) {
    const int64_t i = int64_t{copy.at[d]} + in_box[d];
    if (i < 0 || i >= copy.map.dims[d]) {
      std::memset(to, 0, kElementBytes);
      return;
    }
    from += i * copy.map.strides[d];
  }
  std::memcpy(to, from, kElementBytes);
}

int Rows(const TensorMap& map) { return map.box[1] * map.box[2] * map.box[3]; }
int64_t BoxBytes(const TensorMap& map) { return int64_t{kSwizzledRow} * Rows(map); }

void Deliver(const Copy& copy) {
  const auto& box = copy.map.box;
  for (int row = 0; row < Rows(copy.map); ++row) {
    for (int i = 0; i < box[0]; ++i) {
      const std::array<int, 4> in_box = {i, row % box[1], row / box[1] % box[2],
                                         row / box[1] / box[2]};
      const auto offset = static_cast<uint32_t>(row * kSwizzledRow + i * kElementBytes);
      ReadElement(copy, in_box, AtShared(Swizzled(copy.to + offset), kElementBytes));
    }
  }
}

// Delivers the requested bytes if nothing else is missing.
void DeliverAll(Barrier* barrier) {
  if (barrier->pending > 0 || barrier->copies.empty()) return;
  for (const Copy& copy : barrier->copies) {
    Deliver(copy);
    barrier->bytes -= BoxBytes(copy.map);
  }
  barrier->copies.clear();
  CHECK_GE(barrier->bytes, 0) << "copies brought more bytes than their barrier was told";
  CompleteIfDone(barrier);
}

// "Matrix descriptor format".
struct Descriptor {
  uint32_t start, leading, stride;

  explicit Descriptor(uint64_t bits)
      : start(Field(bits, 0)), leading(Field(bits, 16)), stride(Field(bits, 32)) {
    CHECK_EQ(bits >> 62, 1u) << "only the 128-byte swizzle is emulated";
    CHECK_EQ(bits >> 49 & 7, 0u) << "base offset of a descriptor";
    CHECK_EQ(bits & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62), 0u)
        << "bits of a descriptor that mean nothing";
  }
  static uint32_t Field(uint64_t bits, int first) {
    return static_cast<uint32_t>(bits >> first & 0x3fff) << 4;
  }

  // Reads element (i, k) of an operand; i is the row of a left operand or the column of a right
  // one.
  uint16_t At(uint32_t i, uint32_t k, bool transposed) const {
    // K-major: groups of 8 rows of 128 bytes, `stride` apart. MN-major: columns of 64 elements,
    // `leading` apart, of groups of 8 rows of 128 bytes, `stride` apart.
    const uint32_t offset =
        transposed ? i / 64 * leading + i % 64 * kElementBytes + k / 8 * stride + k % 8 * 128
                   : i / 8 * stride + i % 8 * 128 + k * kElementBytes;
    uint16_t element;
    std::memcpy(&element, AtShared(Swizzled(start + offset), sizeof(element)), sizeof(element));
    return element;
  }
};

// "Register fragments" of wgmma: element (row, k) of the left operand's 16 rows of a warp.
uint16_t OfRegisters(const PendingProduct& product, int row, int k) {
  const uint32_t* const registers =
      product.lanes[static_cast<size_t>(row % 8 * 4 + k % 8 / 2)].registers;
  return static_cast<uint16_t>(registers[k / 8 * 2 + row / 8] >> (k % 2 * 16));
}

void Compute(PendingProduct* product, size_t warp) {
  const Product& p = product->lanes[0];
  float left[kWarpRows][kDepth];
  for (int row = 0; row < kWarpRows; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      const auto row_of_group =
          static_cast<uint32_t>(warp % kWarpsOfGroup) * kWarpRows + static_cast<uint32_t>(row);
      left[row][k] =
          p.to_float(p.registers != nullptr
                         ? OfRegisters(*product, row, k)
                         : Descriptor(p.left).At(row_of_group, static_cast<uint32_t>(k), false));
    }
  }
  const Descriptor right(p.right);
  for (int column = 0; column < p.columns; ++column) {
    float of_right[kDepth];
    for (int k = 0; k < kDepth; ++k) {
      of_right[k] = p.to_float(
          right.At(static_cast<uint32_t>(column), static_cast<uint32_t>(k), p.transposed));
    }
    for (int row = 0; row < kWarpRows; ++row) {
      // "Register fragments" of wgmma, of the sums.
      const int lane = row % 8 * 4 + column % 8 / 2;
      const int i = column / 8 * 4 + row / 8 * 2 + column % 2;
      float& sum = (*product->sums)[static_cast<size_t>(lane)][static_cast<size_t>(i)];
      if (!p.accumulate) sum = 0;
      for (int k = 0; k < kDepth; ++k) sum += left[row][k] * of_right[k];
    }
  }
}

// The sums of the lanes, inaccessible to them until the products have ended.
std::shared_ptr<Sums> TakeSums(Warp* warp) {
  std::weak_ptr<Sums>& in_flight = warp->in_flight[warp->asked[0].sums];
  if (std::shared_ptr<Sums> sums = in_flight.lock()) return sums;
  CHECK(warp->fenced) << "registers may have changed since the last fence of products";
  auto sums = std::make_shared<Sums>();
  for (size_t lane = 0; lane < kWarpSize; ++lane) {
    const Product& product = warp->asked[lane];
    float* const end = product.sums + product.columns / 2;
    (*sums)[lane].assign(product.sums, end);
    std::fill(product.sums, end, std::numeric_limits<float>::quiet_NaN());
  }
  in_flight = sums;
  return sums;
}

// The warps of a group compute one product together.
void CheckAgainstGroup(Warp* warp) {
  std::vector<Product>& all = Current().products_of_group[WarpIndex() / kWarpsOfGroup];
  const Product& mine = warp->asked[0];
  if (warp->products == all.size()) all.push_back(mine);
  const Product& first = all[warp->products++];
  CHECK(first.columns == mine.columns && first.left == mine.left && first.right == mine.right &&
        first.transposed == mine.transposed && first.accumulate == mine.accumulate &&
        (first.registers == nullptr) == (mine.registers == nullptr))
      << "the warps of a group ask for different products";
}

void EndGroup(Warp* warp) {
  for (PendingProduct& product : warp->committed.front()) {
    Compute(&product, WarpIndex());
    const std::shared_ptr<Sums> sums = std::move(product.sums);
    if (sums.use_count() > 1) continue;  // more products add to them
    for (size_t lane = 0; lane < kWarpSize; ++lane) {
      std::copy((*sums)[lane].begin(), (*sums)[lane].end(), product.lanes[lane].sums);
    }
  }
  warp->committed.pop_front();
}

}  // namespace

uint32_t SharedAddress(const void* at) {
  const auto offset = static_cast<const char*>(at) - static_cast<const char*>(DynamicShared());
  CHECK(offset >= 0 && static_cast<size_t>(offset) <= DynamicSharedBytes());
  return kSharedBase + static_cast<uint32_t>(offset);
}

void InitBarrier(const uint64_t* barrier, int arrivals) {
  CHECK_GT(arrivals, 0);
  Barrier& made = Current().barriers[barrier];
  CHECK_EQ(made.expected, 0) << "a barrier is initialized twice";
  made.expected = made.pending = arrivals;
  made.made_by = threadIdx.x;
}

void FenceAsyncProxy() {
  for (auto& [place, barrier] : Current().barriers) {
    if (barrier.made_by == threadIdx.x) barrier.fenced = true;
  }
}

void Arrive(const uint64_t* barrier, int bytes) {
  Barrier& at = At(barrier);
  CHECK_GT(at.pending, 0) << "more arrivals than the barrier counts in a phase";
  at.bytes += bytes;
  --at.pending;
  CompleteIfDone(&at);
}

void WaitForPhase(const uint64_t* barrier, int parity) {
  WaitUntil(
      [=] {
        Barrier& at = At(barrier);
        if (at.parity == parity) DeliverAll(&at);
        return at.parity != parity;
      },
      "a phase of a barrier in shared memory");
}

void CopyBox(const TensorMap& map, const int (&at)[4], void* shared, const uint64_t* barrier) {
  Barrier& of = At(barrier);
  CHECK(of.fenced) << "a copy is given a barrier that it may not see yet";
  CHECK_EQ(map.box[0] * kElementBytes, kSwizzledRow) << "the box's rows";
  const uint32_t to = SharedAddress(shared);
  CHECK_EQ(to % 128, 0u) << "where a box goes to";
  std::memset(AtShared(to, static_cast<size_t>(BoxBytes(map))), kPoison,
              static_cast<size_t>(BoxBytes(map)));
  of.copies.push_back({map, {at[0], at[1], at[2], at[3]}, to});
}

void SetRegisters(int count) {
  CHECK(count % 8 == 0 && count >= 24 && count <= 256) << count << " registers";
  SyncWarp();
  Warp& warp = CurrentWarp();
  if (Lane() == 0) {
    State& state = Current();
    const int more = (count - warp.registers) * kWarpSize;
    WaitUntil([&] { return state.free_registers >= more; }, "registers");
    state.free_registers -= more;
    warp.registers = count;
    NoteProgress();
  }
  SyncWarp();
}

void FenceProducts() {
  SyncWarp();
  CurrentWarp().fenced = true;
}

void Multiply(const Product& product) {
  Warp& warp = CurrentWarp();
  warp.asked[static_cast<size_t>(Lane())] = product;
  SyncWarp();
  if (Lane() == 0) {
    CHECK(product.columns % 8 == 0 && product.columns >= 8 && product.columns <= 256);
    if (product.registers != nullptr) {
      CHECK(warp.fenced) << "registers may have changed since the last fence of products";
    }
    CheckAgainstGroup(&warp);
    const std::shared_ptr<Sums> sums = TakeSums(&warp);
    warp.open.push_back({warp.asked, sums});
  }
  SyncWarp();
}

void CommitProducts() {
  SyncWarp();
  if (Lane() == 0) {
    CurrentWarp().committed.push_back(std::move(CurrentWarp().open));
    CurrentWarp().open.clear();
  }
  SyncWarp();
}

void WaitForProducts(int pending) {
  SyncWarp();
  if (Lane() == 0) {
    Warp& warp = CurrentWarp();
    // Threads that can continue because of this warp's previous work run before its products.
    if (warp.committed.size() > static_cast<size_t>(pending)) WaitForOthers();
    while (warp.committed.size() > static_cast<size_t>(pending)) EndGroup(&warp);
    warp.fenced = false;
  }
  SyncWarp();
}

}  // namespace megatron::emulation
