#include "megatron/optim/compression/sparse_row_sum.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using Floats = std::vector<float>;

constexpr int kRanks = 4;
constexpr int64_t kRows = 60, kColumns = 6;

// Row `row` of a rank's table with so many rows that are not zero, each on another place than the
// same one of the rank before.
int64_t RowOf(int rank, int64_t i) { return (7 * i + 3 * rank) % kRows; }

Floats TableOf(int rank, int64_t rows) {
  Floats table(kRows * kColumns, 0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < kColumns; ++c)
      table[RowOf(rank, i) * kColumns + c] = 0.3f * static_cast<float>(c - 2) + 0.7f * rank + i;
  }
  return table;
}

struct Outcome {
  Floats table;
  std::optional<int64_t> sent;
  int64_t bytes = 0;  // sent by all-gathers
};

std::vector<Outcome> SumOverRanks(const SparseRowSum& sum, std::vector<Floats> tables) {
  std::vector<Outcome> outcomes(kRanks);
  EXPECT_THAT(
      RunRanks(kRanks,
               [&](int rank, const ProcessGroup& world) {
                 ThreadPool pool(2);
                 const Stream stream = Stream::Cpu(&pool);
                 BytesSent bytes;
                 const ProcessGroup group(Counted(world.communicator(), &bytes));
                 const Buffer scratch(Device(), sum.scratch_bytes(), "scratch", nullptr);
                 const Tensor table(tables[rank].data(), DType::kFloat32, {kRows, kColumns});
                 outcomes[rank].sent = sum.Sum(table, scratch, group, stream);
                 outcomes[rank].table = tables[rank];
                 outcomes[rank].bytes = bytes.Of("", Collective::kAllGather);
                 return group.status();
               }),
      IsOk());
  return outcomes;
}

TEST(SparseRowSumTest, TheSumIsThatOfAPlainProgram) {
  const SparseRowSum sum(kRows, kColumns, kRows, kRanks, /*everywhere=*/true);
  for (const int64_t rows : {0, 1, 5, 20}) {
    std::vector<Floats> tables;
    Floats want(kRows * kColumns, 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      tables.push_back(TableOf(rank, rank == 1 ? 0 : rows));  // one rank has no rows at all
      for (size_t i = 0; i < want.size(); ++i) want[i] += tables[rank][i];
    }
    const std::vector<Outcome> outcomes = SumOverRanks(sum, tables);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(outcomes[rank].table, want) << rows << " on rank " << rank;
      EXPECT_EQ(outcomes[rank].sent, rank == 1 ? 0 : rows);
      // A number of rows, and as many numbers and rows as the rank with most of them has.
      EXPECT_EQ(outcomes[rank].bytes, (kRanks - 1) * (4 + rows * (4 + 4 * kColumns)));
    }
  }
}

// docs/data_parallel.md has the formula.
TEST(SparseRowSumTest, WholeTablesAreSummedWhereRowsAreMoreBytes) {
  const int64_t table = 4 * kRows * kColumns, row = 4 + 4 * kColumns;
  for (const bool everywhere : {false, true}) {
    const SparseRowSum sum(kRows, kColumns, kRows, kRanks, everywhere);
    const int64_t limit = sum.limit();
    const int64_t plain = (everywhere ? 2 : 1) * (kRanks - 1) * table / kRanks;
    EXPECT_LT((kRanks - 1) * limit * row, plain);
    EXPECT_GE((kRanks - 1) * (limit + 1) * row, plain);
    for (const int64_t rows : {limit, limit + 1}) {
      std::vector<Floats> tables;
      for (int rank = 0; rank < kRanks; ++rank)
        tables.push_back(TableOf(rank, rank < 3 ? 2 : rows));
      const std::vector<Outcome> outcomes = SumOverRanks(sum, tables);
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(outcomes[rank].sent.has_value(), rows == limit);
        if (rows > limit) {
          EXPECT_EQ(outcomes[rank].table, tables[rank]);
        }
      }
    }
  }
  EXPECT_EQ(SparseRowSum(kRows, kColumns, 3, kRanks, true).limit(), 3);
  EXPECT_EQ(SparseRowSum(kRows, kColumns, 3, kRanks, true).scratch_bytes(), kRanks * (4 + 3 * row));
}

TEST(SparseRowSumTest, WhatIsNotFiniteArrivesEverywhere) {
  const SparseRowSum sum(kRows, kColumns, kRows, kRanks, /*everywhere=*/true);
  std::vector<Floats> tables(kRanks, Floats(kRows * kColumns, 0));
  tables[2][5 * kColumns + 1] = std::numeric_limits<float>::quiet_NaN();
  tables[3][8 * kColumns] = std::numeric_limits<float>::infinity();
  for (const Outcome& outcome : SumOverRanks(sum, tables)) {
    EXPECT_TRUE(outcome.table[5 * kColumns + 1] != outcome.table[5 * kColumns + 1]);
    EXPECT_EQ(outcome.table[8 * kColumns], std::numeric_limits<float>::infinity());
  }
}

// Without the others' rows there is nothing to add.
TEST(SparseRowSumTest, ARankThatIsLostEndsTheSumOfTheOthers) {
  const SparseRowSum sum(kRows, kColumns, kRows, kRanks, /*everywhere=*/true);
  EXPECT_EQ(RunRanks(kRanks,
                     [&](int rank, const ProcessGroup& world) -> absl::Status {
                       if (rank == 2) return absl::DataLossError("lost");
                       ThreadPool pool(1);
                       const Stream stream = Stream::Cpu(&pool);
                       const Buffer scratch(Device(), sum.scratch_bytes(), "scratch", nullptr);
                       Floats values = TableOf(rank, 4);
                       const Tensor table(values.data(), DType::kFloat32, {kRows, kColumns});
                       sum.Sum(table, scratch, world, stream);
                       return world.status();
                     })
                .code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace megatron
