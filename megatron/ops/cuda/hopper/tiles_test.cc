// The instructions for Hopper in the emulation, in programs that use them correctly and wrongly.
#include "megatron/ops/cuda/hopper/tiles.cuh"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "gtest/gtest.h"

namespace megatron::ops::cuda::hopper {
namespace {

using T = __nv_bfloat16;

constexpr int kRows = 128, kTokens = 100;

// Values that bf16 holds exactly, as do sums of products of few of them.
float ValueAt(int64_t token, int64_t column) {
  return static_cast<float>((token * 5 + column * 3) % 17 - 8);
}

// Rows of two heads, of which tests look at the second.
template <int kHead>
class Rows {
 public:
  Rows() : memory_(size_t{kTokens} * 2 * kHead) {
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t i = 0; i < 2 * kHead; ++i) {
        const float value = i < kHead ? NAN : ValueAt(token, i - kHead);
        memory_[static_cast<size_t>(token * 2 * kHead + i)] = FromFloat<T>(value);
      }
    }
    operand_ = {memory_.data(), false, 2 * kHead, 2 * kHead, kHead};
  }
  TensorMap map() const {
    return MakeTensorMap({DType::kBFloat16, &operand_, kHead, 2, 1, kTokens, kRows});
  }
  // Rows beyond the last token are zeros.
  static float At(int64_t token, int64_t column) {
    return token < kTokens ? ValueAt(token, column) : 0;
  }

 private:
  std::vector<T> memory_;
  Operand operand_;
};

// Runs `body` as the threads of a warpgroup, after the first copied the tile from `token` on.
template <int kHead>
struct RunOnTile {
  using Body = std::function<void(const Tile<kRows, kHead>&, uint64_t* full)>;

  void operator()(int64_t token, const Body& body) const {
    const Rows<kHead> rows;
    const TensorMap map = rows.map();
    const size_t bytes = Tile<kRows, kHead>::kBytes + kSlack;
    emulation::RunGrid(dim3(2), dim3(kWarpgroup), bytes, [&] {
      static uint64_t full;
      const Tile<kRows, kHead> tile = {
          AlignToAtoms(static_cast<char*>(emulation::DynamicShared()))};
      if (threadIdx.x == 0) {
        InitBarrier(&full, 1);
        FenceAsyncProxy();
        ArriveExpecting(&full, Tile<kRows, kHead>::kBytes);
        tile.Copy(map, 1, 0, token, &full);
      }
      __syncthreads();
      body(tile, &full);
    });
  }
};

template <int kHead>
void ExpectRowsTimesRows() {
  RunOnTile<kHead>()(30, [](const Tile<kRows, kHead>& tile, uint64_t* full) {
    WaitForPhase(full, 0);
    float sums[kRows / 8][4];
    MultiplyRows<T>(tile, 64, tile, sums);
    WaitForProducts<0>();
    for (int n = 0; n < kRows / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        float want = 0;
        for (int d = 0; d < kHead; ++d) {
          want += Rows<kHead>::At(30 + 64 + RowOf(0) + i / 2 * 8, d) *
                  Rows<kHead>::At(30 + ColumnOf(n, i), d);
        }
        EXPECT_EQ(sums[n][i], want) << "row " << RowOf(0) << ", column " << ColumnOf(n, i);
      }
    }
  });
}

TEST(TilesTest, RowsTimesRowsAreTheirScores) {
  ExpectRowsTimesRows<64>();
  ExpectRowsTimesRows<128>();
}

template <int kHead>
void ExpectWeightedRows() {
  const auto weight = [](int row, int column) {
    return static_cast<float>((row * 7 + column) % 5 - 2);
  };
  RunOnTile<kHead>()(-3, [&](const Tile<kRows, kHead>& tile, uint64_t* full) {
    float weights[kRows / 8][4], sums[kHead / 8][4];
    for (int n = 0; n < kRows / 8; ++n) {
      for (int i = 0; i < 4; ++i) weights[n][i] = weight(RowOf(0) + i / 2 * 8, ColumnOf(n, i));
    }
    uint32_t packed[kRows / 16][4];
    Pack<T>(weights, packed);
    for (auto& tile_of_sums : sums) {
      for (float& sum : tile_of_sums) sum = 1000;
    }
    WaitForPhase(full, 0);
    AddWeightedRows<T>(packed, tile, sums);
    WaitForProducts<0>();
    for (int n = 0; n < kHead / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        float want = 1000;
        for (int t = 0; t < kRows; ++t) {
          const float value = t < 3 ? 0 : Rows<kHead>::At(t - 3, ColumnOf(n, i));
          want += weight(RowOf(0) + i / 2 * 8, t) * value;
        }
        EXPECT_EQ(sums[n][i], want) << "row " << RowOf(0) << ", column " << ColumnOf(n, i);
      }
    }
  });
}

TEST(TilesTest, WeightedRowsAreSummedUp) {
  ExpectWeightedRows<64>();
  ExpectWeightedRows<128>();
}

// "Shared memory matrix layout": chunk 1 of row 3 of an atom is at chunk 1 ^ 3.
TEST(TilesTest, RowsLieSwizzled) {
  RunOnTile<64>()(0, [](const Tile<kRows, 64>& tile, uint64_t* full) {
    WaitForPhase(full, 0);
    const auto* const elements = reinterpret_cast<const T*>(tile.memory);
    EXPECT_EQ(ToFloat(elements[3 * 64 + (1 ^ 3) * 8 + 5]), ValueAt(3, 1 * 8 + 5));
    EXPECT_EQ(ToFloat(elements[(8 + 6) * 64 + (7 ^ 6) * 8]), ValueAt(8 + 6, 7 * 8));
  });
}

TEST(TilesTest, ATileThatNobodyWaitedForIsNotThere) {
  RunOnTile<64>()(0, [](const Tile<kRows, 64>& tile, uint64_t* full) {
    EXPECT_TRUE(std::isnan(ToFloat(*reinterpret_cast<const T*>(tile.memory))));
    __syncthreads();
    WaitForPhase(full, 0);
    EXPECT_EQ(ToFloat(*reinterpret_cast<const T*>(tile.memory)), ValueAt(0, 0));
  });
}

TEST(TilesTest, SumsThatNobodyWaitedForAreNotThere) {
  RunOnTile<64>()(0, [](const Tile<kRows, 64>& tile, uint64_t* full) {
    WaitForPhase(full, 0);
    float sums[kRows / 8][4] = {}, later[kRows / 8][4] = {};
    MultiplyRows<T>(tile, 0, tile, sums);
    MultiplyRows<T>(tile, 0, tile, later);
    volatile float* const first = &sums[0][0];
    volatile float* const second = &later[0][0];
    EXPECT_TRUE(std::isnan(*first));
    WaitForProducts<1>();
    EXPECT_FALSE(std::isnan(*first));
    EXPECT_TRUE(std::isnan(*second));
    WaitForProducts<0>();
    EXPECT_EQ(*first, *second);
  });
}

// Both of the operands, whether in shared memory or in registers.
TEST(TilesTest, OperandsAreReadAsLateAsTheWait) {
  RunOnTile<64>()(0, [](const Tile<kRows, 64>& tile, uint64_t* full) {
    WaitForPhase(full, 0);
    uint32_t packed[kRows / 16][4] = {};
    float sums[8][4] = {}, scores[kRows / 8][4];
    AddWeightedRows<T>(packed, tile, sums);
    packed[0][0] = 0x7fc07fc0;  // NaN
    WaitForProducts<0>();
    EXPECT_TRUE(std::isnan(sums[0][0]));
    MultiplyRows<T>(tile, 0, tile, scores);
    __syncthreads();
    if (threadIdx.x == 0) std::fill_n(tile.memory, Tile<kRows, 64>::kBytes, 0);
    __syncthreads();
    WaitForProducts<0>();
    EXPECT_EQ(scores[0][0], 0);
  });
}

TEST(TilesDeathTest, AThreadThatWaitsForAPhaseThatNeverComesIsNamed) {
  EXPECT_DEATH(RunOnTile<64>()(0,
                               [](const Tile<kRows, 64>&, uint64_t* full) {
                                 WaitForPhase(full, 0);
                                 WaitForPhase(full, 1);
                               }),
               "wait at different places; some for a phase of a barrier");
}

TEST(TilesDeathTest, ABlockMayNotEndBeforeItsTiles) {
  EXPECT_DEATH(RunOnTile<64>()(0, [](const Tile<kRows, 64>&, uint64_t*) {}),
               "while a copy into its shared memory was to come");
}

TEST(TilesDeathTest, ABlockMayNotEndBeforeItsProducts) {
  EXPECT_DEATH(RunOnTile<64>()(0,
                               [](const Tile<kRows, 64>& tile, uint64_t* full) {
                                 WaitForPhase(full, 0);
                                 float sums[kRows / 8][4];
                                 MultiplyRows<T>(tile, 0, tile, sums);
                               }),
               "while its products were to come");
}

TEST(TilesDeathTest, ProductsWithoutAFenceAreRefused) {
  EXPECT_DEATH(RunOnTile<64>()(0,
                               [](const Tile<kRows, 64>& tile, uint64_t* full) {
                                 WaitForPhase(full, 0);
                                 float sums[8][4] = {};
                                 Multiply<T, false>(tile.SummedByColumn(0, 0),
                                                    tile.SummedByColumn(0, 0), sums, false);
                               }),
               "since the last fence of products");
}

TEST(TilesDeathTest, WarpsOfAGroupMustAskForOneProduct) {
  EXPECT_DEATH(RunOnTile<64>()(0,
                               [](const Tile<kRows, 64>& tile, uint64_t* full) {
                                 WaitForPhase(full, 0);
                                 float sums[kRows / 8][4];
                                 MultiplyRows<T>(tile, threadIdx.x < 32 ? 0 : 64, tile, sums);
                                 WaitForProducts<0>();
                               }),
               "ask for different products");
}

TEST(TilesDeathTest, ACopyMayNotBeGivenABarrierThatItCannotSee) {
  EXPECT_DEATH(emulation::RunGrid(dim3(1), dim3(32), Tile<kRows, 64>::kBytes + kSlack,
                                  [] {
                                    static uint64_t full;
                                    const Rows<64> rows;
                                    const Tile<kRows, 64> tile = {AlignToAtoms(
                                        static_cast<char*>(emulation::DynamicShared()))};
                                    if (threadIdx.x > 0) return;
                                    InitBarrier(&full, 1);
                                    tile.Copy(rows.map(), 1, 0, 0, &full);
                                  }),
               "a barrier that it may not see yet");
}

TEST(TilesDeathTest, NoMoreRegistersThanOthersGaveBack) {
  EXPECT_DEATH(emulation::RunGrid(dim3(1), dim3(384), 16,
                                  [] {
                                    if (threadIdx.x < kWarpgroup) return GiveRegisters<40>();
                                    TakeRegisters<240>();
                                  }),
               "some for registers");
}

// If a warp releases a tile too early, the next tile overwrites it.
TEST(TilesTest, ATileGivenBackBeforeTheWaitIsOverwritten) {
  for (bool too_early : {true, false}) {
    RunOnTile<64>()(0, [&](const Tile<kRows, 64>& tile, uint64_t* full) {
      static uint64_t empty;
      if (threadIdx.x == 0) InitBarrier(&empty, kWarpgroup);
      WaitForPhase(full, 0);
      __syncthreads();
      float sums[kRows / 8][4];
      MultiplyRows<T>(tile, 0, tile, sums);
      if (too_early) Arrive(&empty);
      if (too_early && threadIdx.x == 127) {
        WaitForPhase(&empty, 0);
        std::fill_n(tile.memory, Tile<kRows, 64>::kBytes, 0);
      }
      WaitForProducts<0>();
      EXPECT_EQ(std::fabs(sums[0][0]) + std::fabs(sums[1][0]) == 0, too_early);
    });
  }
}

// The lengths are arbitrary, with empty sequences. Each row is in one block, and each block in one
// sequence.
TEST(TilesTest, BlocksOfSequencesHoldEachRowOnce) {
  for (const std::vector<int32_t>& cu : {std::vector<int32_t>{0, 1, 71, 71, 111},
                                         {0, 128, 256},
                                         {0, 127, 129, 400},
                                         {0, 0, 0, 5},
                                         {0, 64, 65, 66, 67, 68, 300, 300}}) {
    for (int rows : {64, 128, 192}) {
      const auto sequences = static_cast<int64_t>(cu.size()) - 1;
      std::vector<int> count(static_cast<size_t>(cu.back()));
      for (int64_t b = 0; b < BlocksOfSequences(cu.back(), sequences, rows); ++b) {
        const RowsOfBlock block = FindRows(cu.data(), sequences, b, rows);
        if (block.begin >= block.end) continue;
        EXPECT_LE(block.end - block.begin, rows);
        EXPECT_GE(block.begin, cu[static_cast<size_t>(block.sequence)]);
        EXPECT_LE(block.end, cu[static_cast<size_t>(block.sequence) + 1]);
        for (int64_t i = block.begin; i < block.end; ++i) ++count[static_cast<size_t>(i)];
      }
      EXPECT_EQ(count, std::vector<int>(count.size(), 1)) << rows;
    }
  }
}

}  // namespace
}  // namespace megatron::ops::cuda::hopper
