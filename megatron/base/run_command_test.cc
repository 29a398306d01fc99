#include "megatron/base/run_command.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

std::string PathOf(const std::string& name) { return JoinPath(::testing::TempDir(), name); }

std::string Contents(const std::string& path) {
  const auto text = ReadFileToString(PosixFileSystem(), path);
  return text.ok() ? *text : text.status().ToString();
}

TEST(RunCommandTest, TheCommandReadsTheInput) {
  const std::string path = PathOf("copied");
  const std::string input(1 << 20, 'x');
  EXPECT_THAT(RunCommand(absl::StrCat("cat > ", path), input, kLong), IsOk());
  EXPECT_EQ(Contents(path), input);
}

TEST(RunCommandTest, AShellReadsTheCommand) {
  const std::string path = PathOf("words");
  EXPECT_THAT(
      RunCommand(absl::StrCat("WORD='a b'; echo \"$WORD\" | tr a-z A-Z > ", path), "", kLong),
      IsOk());
  EXPECT_EQ(Contents(path), "A B\n");
}

TEST(RunCommandTest, NobodyNeedsToReadTheInput) {
  EXPECT_THAT(RunCommand("true", std::string(1 << 20, 'x'), kLong), IsOk());
}

TEST(RunCommandTest, AFailureQuotesTheFirstLineThatWasPrinted) {
  EXPECT_THAT(RunCommand("echo no such room >&2; echo more; exit 3", "", kLong),
              StatusIs(absl::StatusCode::kAborted, "it ended with code 3: no such room"));
  EXPECT_THAT(RunCommand("/no/such/program", "", kLong),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("code 127: ")));
  EXPECT_THAT(RunCommand("kill -TERM $$", "", kLong),
              StatusIs(absl::StatusCode::kAborted, "signal 15 ended it"));
}

TEST(RunCommandTest, MuchOutputStopsNobody) {
  EXPECT_THAT(RunCommand("head -c 10000000 /dev/zero; exit 1", "", kLong),
              StatusIs(absl::StatusCode::kAborted));
}

TEST(RunCommandTest, ACommandThatDoesNotEndIsKilledWithItsChildren) {
  const std::string path = PathOf("pids");
  const absl::Time start = SteadyNow();
  EXPECT_THAT(RunCommand(absl::StrCat("sleep 1000 & echo $! > ", path, "; wait"), "",
                         absl::Milliseconds(500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "it was killed after 500ms"));
  EXPECT_LT(SteadyNow() - start, absl::Seconds(30));
  std::string pid = Contents(path);
  pid.pop_back();
  // The child of a shell that is gone is collected by another process.
  for (int i = 0; i < 1000 && PosixFileSystem().Stat("/proc/" + pid).ok(); ++i) {
    const std::string stat = Contents(absl::StrCat("/proc/", pid, "/stat"));
    if (stat.find(") Z") != stat.npos) return;
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_FALSE(PosixFileSystem().Stat("/proc/" + pid).ok());
}

TEST(RunCommandTest, AChildThatKeepsTheOutputHoldsNobodyUp) {
  const absl::Time start = SteadyNow();
  EXPECT_THAT(RunCommand("sleep 20 & exit 0", "", kLong), IsOk());
  EXPECT_LT(SteadyNow() - start, absl::Seconds(15));
}

// Several writers, so that the pipe is hardly ever found empty.
TEST(RunCommandTest, ACommandThatPrintsWithoutEndIsKilled) {
  EXPECT_THAT(RunCommand("yes & yes & yes & wait", "", absl::Milliseconds(500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "it was killed after 500ms"));
}

// A closed pipe ends the children.
TEST(RunCommandTest, ChildrenThatPrintWithoutEndHoldNobodyUp) {
  EXPECT_THAT(RunCommand("yes & yes & yes & exit 0", "", kLong), IsOk());
}

}  // namespace
}  // namespace megatron
