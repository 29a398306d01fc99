#include "megatron/train/trainer/consensus.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

TEST(ConsensusTest, AMessageOfOneRankReachesAllRanks) {
  for (int size : {1, 2, 5}) {
    const absl::Status status = RunRanks(size, [&](int rank, const ProcessGroup& world) {
      Consensus consensus(world);
      EXPECT_FALSE(consensus.Any(false));
      EXPECT_TRUE(consensus.Any(rank == size - 1));
      EXPECT_THAT(consensus.FirstError(absl::OkStatus()), IsOk());
      const absl::Status mine =
          rank >= size / 2 ? absl::DataLossError("rank " + std::to_string(rank)) : absl::OkStatus();
      EXPECT_THAT(consensus.FirstError(mine),
                  StatusIs(absl::StatusCode::kDataLoss, "rank " + std::to_string(size / 2)));
      EXPECT_FALSE(consensus.Any(false));
      return absl::OkStatus();
    });
    EXPECT_THAT(status, IsOk());
  }
}

TEST(ConsensusTest, AllTextsReachAllRanksInTheirOrder) {
  for (int size : {1, 2, 5}) {
    const absl::Status status = RunRanks(size, [&](int rank, const ProcessGroup& world) {
      Consensus consensus(world);
      EXPECT_EQ(consensus.OfAll(""), "");
      const std::string mine(rank % 2 == 0 ? static_cast<size_t>(2000 * (rank + 1)) : 0,
                             static_cast<char>('a' + rank));
      std::string all;
      for (int i = 0; i < size; i += 2)
        all.append(static_cast<size_t>(2000 * (i + 1)), static_cast<char>('a' + i));
      EXPECT_EQ(consensus.OfAll(mine), all);
      return absl::OkStatus();
    });
    EXPECT_THAT(status, IsOk());
  }
}

TEST(ConsensusTest, ALongTextIsCut) {
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) {
                         Consensus consensus(world);
                         const absl::Status mine = rank == 0
                                                       ? absl::InternalError(std::string(5000, 'x'))
                                                       : absl::OkStatus();
                         const absl::Status heard = consensus.FirstError(mine);
                         EXPECT_EQ(heard.message().size(), rank == 0 ? 5000u : 1024u);
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(ConsensusTest, AGroupThatHasFailedSaysSo) {
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) {
                         if (rank == 1) return absl::AbortedError("gone");
                         Consensus consensus(world);
                         EXPECT_THAT(consensus.FirstError(absl::OkStatus()),
                                     StatusIs(absl::StatusCode::kAborted));
                         EXPECT_TRUE(consensus.Any(true));
                         EXPECT_FALSE(consensus.Any(false));
                         EXPECT_EQ(consensus.OfAll("mine"), "mine");
                         return absl::OkStatus();
                       }),
              StatusIs(absl::StatusCode::kAborted));
}

TEST(ConsensusTest, TheFirstFailureSaysWhoseItIs) {
  const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& world) {
    Consensus consensus(world);
    EXPECT_THAT(consensus.FirstFailure(absl::OkStatus()), IsOk());
    absl::Status mine;
    if (rank > 0)
      mine = WithExitCode(absl::NotFoundError("no file"), rank == 1 ? kExitData : kExitIo);
    const absl::Status first = consensus.FirstFailure(mine);
    EXPECT_THAT(first, StatusIs(absl::StatusCode::kNotFound, "rank 1: no file"));
    EXPECT_EQ(ExitCodeOf(first), kExitData);
    const absl::Status of_all = consensus.FirstFailure(absl::ResourceExhaustedError("full"));
    EXPECT_EQ(of_all.message(), "full");
    EXPECT_EQ(ExitCodeOf(of_all), kExitIo);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(ConsensusTest, TextsAreTheSameOnAllRanksOrNot) {
  const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& world) {
    Consensus consensus(world);
    EXPECT_TRUE(consensus.Same("text"));
    EXPECT_TRUE(consensus.Same(""));
    for (int odd : {0, 1, 2}) EXPECT_FALSE(consensus.Same(rank == odd ? "other" : "text"));
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace megatron
