#include "megatron/train/rerun/step_validator.h"

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RecordedCall Call(uint32_t given, uint32_t got, int64_t began) {
  RecordedCall call;
  call.group = "tp-0";
  call.call = "all-reduce(sum) of fp32[4]";
  call.given = given;
  call.got = got;
  call.began = began;
  call.ended = began + 1;
  return call;
}

ExecutedStep Step(std::vector<RecordedCall> calls, uint32_t local, uint32_t reduced) {
  ExecutedStep step;
  step.calls = std::move(calls);
  step.local = local;
  step.local_at = 100;
  step.reduced = reduced;
  return step;
}

TEST(CompareStepsTest, TellsWhoHasMadeADifference) {
  const ExecutedStep step = Step({Call(1, 2, 10), Call(3, 4, 20)}, 5, 6);
  EXPECT_FALSE(CompareSteps(step, step).any);
  // It gave something else before it had got anything else.
  StepDifference found = CompareSteps(step, Step({Call(9, 8, 10), Call(7, 7, 20)}, 7, 7));
  EXPECT_TRUE(found.any);
  EXPECT_TRUE(found.is_own);
  EXPECT_EQ(found.where, "all-reduce(sum) of fp32[4] of tp-0");
  // What it gave and computed later came of what it had got.
  found = CompareSteps(step, Step({Call(1, 8, 10), Call(7, 7, 20)}, 7, 7));
  EXPECT_TRUE(found.any);
  EXPECT_FALSE(found.is_own);
  // Its own gradients, and what it updates with.
  EXPECT_TRUE(CompareSteps(step, Step({Call(1, 2, 10), Call(3, 4, 20)}, 7, 6)).is_own);
  EXPECT_TRUE(CompareSteps(step, Step({Call(1, 2, 10), Call(3, 4, 20)}, 5, 7)).is_own);
  EXPECT_FALSE(CompareSteps(step, Step({Call(1, 2, 10), Call(3, 8, 20)}, 5, 7)).is_own);
}

// What a rank computes: the checksum of the gradients of a copy's samples, in the n-th execution.
using Compute = std::function<uint32_t(int rank, int samples_of, int execution)>;

uint32_t Right(int samples_of) { return 100u + static_cast<uint32_t>(samples_of); }

// Returns what `ranks` data-parallel ranks find.
std::map<int, StepFinding> Find(int ranks, const RerunOptions& options, bool finite,
                                const Compute& compute) {
  std::vector<StepFinding> found(static_cast<size_t>(ranks));
  EXPECT_THAT(RunRanks(ranks,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         StepValidator validator(options, world, world);
                         int executions = 0;
                         const auto execute =
                             [&](StepValidator::Samples samples) -> absl::StatusOr<ExecutedStep> {
                           const bool own = samples == StepValidator::kOwn;
                           const int of = own ? rank : (rank + 1) % ranks;
                           const uint32_t crc = compute(rank, of, executions++);
                           ExecutedStep step = Step({}, crc, own ? crc : crc + 1);
                           step.finite = finite;
                           return step;
                         };
                         const auto first = execute(StepValidator::kOwn);
                         const absl::StatusOr<bool> due = validator.IsDue(4, *first);
                         EXPECT_THAT(due, absl_testing::IsOk());
                         if (!*due) return absl::OkStatus();
                         const auto finding = validator.Validate(*first, execute);
                         EXPECT_THAT(finding, absl_testing::IsOk());
                         found[static_cast<size_t>(rank)] = *finding;
                         return absl::OkStatus();
                       }),
              absl_testing::IsOk());
  std::map<int, StepFinding> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all[rank] = found[static_cast<size_t>(rank)];
    EXPECT_EQ(all[rank].kind, all[0].kind);
    EXPECT_EQ(all[rank].message, all[0].message);
  }
  return all;
}

RerunOptions Validate(int64_t interval) {
  RerunOptions options;
  options.mode = RerunMode::kValidateResults;
  options.interval = interval;
  return options;
}

TEST(StepValidatorTest, StepsAreDueWhereTheyAreToBe) {
  int executions = 0;
  const Compute count = [&](int, int of, int) {
    ++executions;
    return Right(of);
  };
  EXPECT_EQ(Find(1, Validate(3), true, count)[0].kind, StepFinding::kNothing);
  EXPECT_EQ(executions, 1);  // step 4 is no multiple of 3
  EXPECT_EQ(Find(1, Validate(2), true, count)[0].kind, StepFinding::kNothing);
  EXPECT_EQ(executions, 3);
  EXPECT_EQ(Find(1, Validate(0), false, count)[0].kind, StepFinding::kOwn);
  EXPECT_EQ(executions, 5);
}

TEST(StepValidatorTest, TransientErrorsNameTheirRank) {
  for (const int culprit : {0, 1, 2}) {
    const StepFinding found = Find(3, Validate(2), true, [&](int rank, int of, int execution) {
      return rank == culprit && execution == 0 ? 1 : Right(of);
    })[0];
    EXPECT_EQ(found.kind, StepFinding::kTransient);
    EXPECT_FALSE(found.ends_the_run());
    EXPECT_THAT(found.message, HasSubstr(absl::StrCat("rank ", culprit, " on ")));
    EXPECT_THAT(found.message, Not(HasSubstr(absl::StrCat("rank ", (culprit + 1) % 3, " on "))));
  }
}

TEST(StepValidatorTest, PersistentErrorsNameTheirRank) {
  const auto find = [&](int ranks, int culprit, bool finite) {
    return Find(ranks, Validate(finite ? 2 : 0), finite, [&](int rank, int of, int) {
      return rank == culprit ? 1u + static_cast<uint32_t>(of) : Right(of);
    })[0];
  };
  for (const bool finite : {true, false}) {
    for (const int culprit : {0, 1, 2, 3}) {
      const StepFinding found = find(4, culprit, finite);
      EXPECT_EQ(found.kind, StepFinding::kPersistent);
      EXPECT_TRUE(found.ends_the_run());
      EXPECT_THAT(found.message, HasSubstr(absl::StrCat("rank ", culprit, " on ")));
      EXPECT_THAT(found.message, Not(HasSubstr(absl::StrCat("rank ", (culprit + 1) % 4, " on "))));
    }
  }
  // Two disagree, and nobody knows which one is right.
  EXPECT_THAT(find(2, 1, true).message, AllOf(HasSubstr("rank 0 on "), HasSubstr("rank 1 on ")));
}

TEST(StepValidatorTest, WhatIsTheSameEverywhereIsTheRunsOwn) {
  const Compute right = [](int, int of, int) { return Right(of); };
  const StepFinding found = Find(3, Validate(0), /*finite=*/false, right)[0];
  EXPECT_EQ(found.kind, StepFinding::kOwn);
  EXPECT_THAT(found.message, HasSubstr("also by other ranks"));
  EXPECT_THAT(Find(1, Validate(0), /*finite=*/false, right)[0].message,
              HasSubstr("no other rank can tell"));
}

TEST(StepValidatorTest, ARankThatErrsEachTimeAnewEndsTheRun) {
  const StepFinding found = Find(3, Validate(2), true, [](int rank, int of, int execution) {
    return rank == 2 ? static_cast<uint32_t>(execution) : Right(of);
  })[0];
  EXPECT_EQ(found.kind, StepFinding::kUnreliable);
  EXPECT_TRUE(found.ends_the_run());
  EXPECT_THAT(found.message, HasSubstr("rank 2 on "));
}

TEST(StepValidatorTest, StatisticsTakeOneMoreExecution) {
  RerunOptions options;
  options.mode = RerunMode::kReportStats;
  int executions = 0;
  const StepFinding found = Find(1, options, true, [&](int, int, int execution) {
    ++executions;
    return static_cast<uint32_t>(execution);
  })[0];
  EXPECT_EQ(found.kind, StepFinding::kTransient);
  EXPECT_EQ(executions, 2);
}

TEST(StepValidatorTest, SpikesAreUnexpectedOnceThereAreEnoughSteps) {
  RerunOptions options = Validate(0);
  options.spiky_loss_after = 3;
  StepValidator validator(options, ProcessGroup(), ProcessGroup());
  ExecutedStep step;
  const auto due = [&](double loss) {
    step.loss = loss;
    return *validator.IsDue(1, step);
  };
  for (const double loss : {1.0, 50.0, 2.0}) EXPECT_FALSE(due(loss));  // these are looked at
  EXPECT_FALSE(due(500));
  EXPECT_TRUE(due(5001));
  EXPECT_TRUE(due(5001)) << "a spike raised the bound";
  options.spiky_loss_after = 0;
  StepValidator other(options, ProcessGroup(), ProcessGroup());
  step.loss = 1;
  EXPECT_FALSE(*other.IsDue(1, step));
  step.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(*other.IsDue(2, step));  // ExecutedStep::finite says that
}

}  // namespace
}  // namespace megatron
