#include "megatron/comm/launch/restarts.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/launch/launcher.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

LaunchResult Ended(int code, int signal = 0) {
  LaunchResult result;
  result.exit_code = code;
  result.signal = signal;
  result.child = 0;
  result.name = "rank 0";
  return result;
}

RestartOptions Quick(int restarts) {
  RestartOptions options;
  options.restarts = restarts;
  options.first_wait = absl::Milliseconds(1);
  options.longest_wait = absl::Milliseconds(4);
  return options;
}

class RestartsTest : public ::testing::Test {
 protected:
  // Starts jobs that end as the list says, the last end for all that follow.
  absl::StatusOr<LaunchResult> Launch(const RestartOptions& options,
                                      const std::vector<absl::StatusOr<LaunchResult>>& ends) {
    return LaunchWithRestarts(
        options,
        [&](const StartOfJob& start) {
          starts_.push_back(start);
          return ends[std::min(starts_.size(), ends.size()) - 1];
        },
        [&](absl::string_view line) { lines_.emplace_back(line); });
  }

  std::vector<StartOfJob> starts_;
  std::vector<std::string> lines_;
};

TEST_F(RestartsTest, OnlySomeEndsAreTriedAgain) {
  for (const int code : {0, 1, 2, 10, 11, 20, 21, 22, 23, 40, 127, 130, 143, 129}) {
    EXPECT_FALSE(MayStartAgain(Ended(code), Quick(1))) << code;
  }
  for (const int code : {30, 31, 134, 137, 139, 255}) {
    EXPECT_TRUE(MayStartAgain(Ended(code), Quick(1))) << code;
  }
  LaunchResult asked = Ended(30);
  asked.asked = SIGTERM;
  EXPECT_FALSE(MayStartAgain(asked, Quick(1)));
}

TEST_F(RestartsTest, RanksLearnHowOftenAndWhy) {
  const auto result = Launch(Quick(3), {Ended(137, SIGKILL), Ended(30), Ended(0)});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 0);
  ASSERT_THAT(starts_, SizeIs(3));
  EXPECT_THAT(starts_[0].Environment(), IsEmpty());
  EXPECT_EQ(starts_[1].restarts, 1);
  EXPECT_EQ(starts_[1].reason, "rank 0 was ended by signal 9 (Killed)");
  EXPECT_THAT(starts_[2].Environment(),
              ElementsAre(std::pair<std::string, std::string>("MEGATRON_RESTART_COUNT", "2"),
                          std::pair<std::string, std::string>("MEGATRON_RESTART_REASON",
                                                              "rank 0 ended with code 30")));
  EXPECT_THAT(lines_, ElementsAre("rank 0 was ended by signal 9 (Killed); starting again in 1ms "
                                  "(1 of 3)",
                                  "rank 0 ended with code 30; starting again in 2ms (2 of 3)"));
}

TEST_F(RestartsTest, TheLastFailureIsTheResult) {
  const auto result = Launch(Quick(2), {Ended(31)});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 31);
  EXPECT_THAT(starts_, SizeIs(3));
  EXPECT_EQ(lines_.back(), "not started again: it was 2 times");
}

TEST_F(RestartsTest, WithoutRestartsNothingIsSaid) {
  ASSERT_THAT(Launch(Quick(0), {Ended(30)}), IsOk());
  EXPECT_THAT(starts_, SizeIs(1));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RestartsTest, ACodeThatWouldComeAgainEndsTheJob) {
  const auto result = Launch(Quick(5), {Ended(30), Ended(22)});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 22);
  EXPECT_THAT(starts_, SizeIs(2));
}

TEST_F(RestartsTest, AnErrorOfTheFirstStartIsReturnedAndOfLaterOnesTold) {
  EXPECT_THAT(Launch(Quick(5), {absl::InternalError("fork")}),
              StatusIs(absl::StatusCode::kInternal));
  starts_.clear();
  const auto result = Launch(Quick(2), {Ended(30), absl::InternalError("fork")});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 30);
  EXPECT_THAT(lines_, ElementsAre("rank 0 ended with code 30; starting again in 1ms (1 of 2)",
                                  "cannot start again: fork; trying again in 2ms (2 of 2)",
                                  "cannot start again: fork"));
}

TEST_F(RestartsTest, AStartThatFailsForNowIsTriedAgain) {
  const auto result = Launch(Quick(3), {Ended(30), absl::UnavailableError("port"), Ended(0)});
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 0);
  ASSERT_THAT(starts_, SizeIs(3));
  EXPECT_EQ(starts_[2].restarts, 2);
  EXPECT_EQ(starts_[2].reason, "rank 0 ended with code 30");
}

TEST_F(RestartsTest, WaitsDoubleUntilAStartIsSteady) {
  RestartOptions options = Quick(6);
  options.steady = absl::Milliseconds(50);
  int started = 0;
  const auto result = LaunchWithRestarts(
      options,
      [&](const StartOfJob&) -> absl::StatusOr<LaunchResult> {
        if (++started == 5) absl::SleepFor(absl::Milliseconds(60));
        return Ended(started == 6 ? 0 : 30);
      },
      [&](absl::string_view line) { lines_.emplace_back(line); });
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr(" 1ms "), HasSubstr(" 2ms "), HasSubstr(" 4ms "),
                                  HasSubstr(" 4ms "), HasSubstr(" 1ms ")));
}

TEST_F(RestartsTest, ASignalEndsTheWait) {
  RestartOptions options = Quick(3);
  options.first_wait = options.longest_wait = absl::Minutes(10);
  // The signals go to this thread, as to the only one of a launcher. SIGUSR1 is for ranks.
  const pthread_t launcher = pthread_self();
  std::thread sender;
  sigset_t mask, old_mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask);
  const auto result = LaunchWithRestarts(
      options, [&](const StartOfJob&) -> absl::StatusOr<LaunchResult> { return Ended(30); },
      [&](absl::string_view) {
        pthread_kill(launcher, SIGUSR1);
        sender = std::thread([launcher] { pthread_kill(launcher, SIGTERM); });
      });
  sender.join();
  pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 128 + SIGTERM);
  EXPECT_EQ(result->asked, SIGTERM);
  EXPECT_EQ(result->Describe(), "asked to end by signal 15 (Terminated)");
}

// The signal is blocked before it is waited for, so that it would be seen.
TEST_F(RestartsTest, AHangupThatIsIgnoredDoesNotEndTheWait) {
  RestartOptions options = Quick(3);
  options.first_wait = options.longest_wait = absl::Minutes(10);
  const pthread_t launcher = pthread_self();
  sigset_t mask, old_mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGHUP);
  sigaddset(&mask, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask);
  const auto before = signal(SIGHUP, SIG_IGN);
  const auto result = LaunchWithRestarts(
      options, [&](const StartOfJob&) -> absl::StatusOr<LaunchResult> { return Ended(30); },
      [&](absl::string_view) {
        pthread_kill(launcher, SIGHUP);
        pthread_kill(launcher, SIGTERM);
      });
  pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  signal(SIGHUP, before);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->asked, SIGTERM);
}

TEST_F(RestartsTest, ProcessesAreStartedAgain) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c",
                     "test -n \"$MEGATRON_RESTART_REASON\" && exit 0; "
                     "test $MEGATRON_RANK = 1 && kill -9 $$; sleep 60"};
  options.children.grace = absl::Milliseconds(100);
  options.children.output = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const auto result = LaunchWithRestarts(
      Quick(1),
      [&](const StartOfJob& start) {
        LaunchOptions again = options;
        again.environment = start.Environment();
        return LaunchRanks(again);
      },
      [&](absl::string_view line) { lines_.emplace_back(line); });
  close(options.children.output);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 0);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("rank 1 was ended by signal 9 (Killed); after that "
                                            "rank 0 did not end and was killed; starting again")));
}

}  // namespace
}  // namespace megatron
