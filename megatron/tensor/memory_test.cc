#include "megatron/tensor/memory.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(MemoryLedgerTest, KnowsWhoHeldWhatAtThePeak) {
  MemoryLedger ledger;
  ledger.Add("weights", 100);
  ledger.Add("activations", 50);
  ledger.Remove("activations", 50);
  ledger.Add("staging", 20);
  EXPECT_EQ(ledger.current_bytes(), 120);
  EXPECT_EQ(ledger.peak_bytes(), 150);
  EXPECT_THAT(ledger.AtPeak(), ElementsAre(Pair("activations", 50), Pair("weights", 100)));
  EXPECT_DEATH(ledger.Remove("staging", 21), "staging");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Sanitizers have messages of their own.
TEST(BufferTest, SaysForWhatThereIsNoMemory) {
  EXPECT_DEATH(Buffer({}, int64_t{1} << 60, "master weights", nullptr),
               "error: out of memory: .* for master weights; this process has ");
}
#endif

TEST(BufferTest, IsZeroedAlignedAndEnteredWhileItLives) {
  MemoryLedger ledger;
  {
    Buffer first({}, 1000, "first", &ledger);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % Buffer::kAlignment, 0u);
    const Tensor t = first.At(0, DType::kFloat32, {250});
    for (int i = 0; i < 250; ++i) ASSERT_EQ(t.data<float>()[i], 0);
    Buffer second = std::move(first);
    EXPECT_EQ(ledger.current_bytes(), 1000);
    EXPECT_DEATH(second.At(4, DType::kFloat32, {250}), "first");
  }
  EXPECT_EQ(ledger.current_bytes(), 0);
}

TEST(ArenaTest, AMeasuringArenaTellsWhatARealOneNeeds) {
  MemoryLedger ledger;
  auto use = [](Arena* arena) {
    arena->Allocate(DType::kFloat32, {100}, "kept");
    {
      Arena::Scope scope(arena);
      arena->Allocate(DType::kBFloat16, {3}, "small");
      arena->Allocate(DType::kFloat32, {1000}, "large");
    }
    arena->Allocate(DType::kFloat32, {10}, "after");
  };
  Arena measuring({DeviceType::kMeta}, 0, "activations", &ledger);
  use(&measuring);
  EXPECT_EQ(ledger.current_bytes(), 0);
  EXPECT_EQ(measuring.high_water(), 512 + 128 + 4096);
  EXPECT_THAT(measuring.NamesAtHighWater(),
              ElementsAre(Pair("kept", 512), Pair("large", 4096), Pair("small", 128)));

  Arena real({}, measuring.high_water(), "activations", &ledger);
  EXPECT_EQ(ledger.current_bytes(), measuring.high_water());
  use(&real);
  real.Reset();
  use(&real);
  EXPECT_EQ(real.high_water(), measuring.high_water());
  EXPECT_DEATH(real.Allocate(DType::kFloat32, {2000}, "more"), "planned too small for more");
}

}  // namespace
}  // namespace megatron
