#include "tools/watch/screen.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"

namespace megatron::watch {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

size_t WidthOf(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

class ScreenTest : public ::testing::Test {
 protected:
  // Writes the metrics of a run of so many steps.
  void Write(const std::string& run, int steps, const std::string& tail = "") {
    std::string text;
    for (int i = 1; i <= steps; ++i) {
      absl::StrAppend(&text, "{\"iteration\":", i, ",\"consumed_samples\":", 4 * i,
                      ",\"lm loss\":", 5.0 - 0.01 * i,
                      ",\"elapsed_ms\":500,\"skipped\":", i == 7 ? "true" : "false",
                      ",\"tokens_per_second\":", 1000 + i, "}\n");
    }
    absl::StrAppend(&text, tail);
    ASSERT_TRUE(disk_.CreateDirs(run).ok());
    ASSERT_TRUE(WriteFileAtomically(disk_, run + "/metrics.jsonl", text).ok());
  }
  WatchedRun Read(const std::string& run) { return {run, report::ReadRun(disk_, run)}; }
  static std::vector<std::string> Draw(const std::vector<WatchedRun>& runs, int columns, int rows) {
    return ScreenOf(runs, {columns, rows}, absl::FromUnixSeconds(0));
  }

  MemoryFileSystem disk_;
};

TEST_F(ScreenTest, FitsEachSize) {
  Write("a", 200, "{\"iteration\":200,\"lm loss validation\":3.25}\n");
  for (const int columns : {1, 20, 40, 80, 200}) {
    for (const int rows : {1, 4, 10, 24, 60}) {
      const std::vector<std::string> lines = Draw({Read("a")}, columns, rows);
      EXPECT_LE(lines.size(), std::max(rows, 4)) << columns << "x" << rows;
      for (const std::string& line : lines) EXPECT_LE(WidthOf(line), std::max(columns, 20)) << line;
    }
  }
}

TEST_F(ScreenTest, ShowsNumbersCurvesAndEvents) {
  Write(
      "a", 200,
      "{\"iteration\":200,\"lm loss validation\":3.25}\n"
      "{\"iteration\":201,\"consumed_samples\":804,\"lm loss\":2.5,\"elapsed_ms\":500,"
      "\"share/compute\":0.75,\"share/dp\":0.25,\"slowest-rank\":3,\"slowest-rank-excess\":0.1}\n");
  const std::string text = absl::StrJoin(Draw({Read("a")}, 80, 24), "\n");
  for (const char* piece :
       {"a  iteration 201", "lm loss 2.5000", "validation 3.25", "tokens/s", "compute  75 % █",
        "dp  25 % █", "slowest rank 3 (+10.0 %", "· iteration 200: lm loss validation 3.2500",
        "· iteration 7 was skipped", "Ctrl-C ends"}) {
    EXPECT_THAT(text, HasSubstr(piece));
  }
  EXPECT_THAT(Draw({Read("a")}, 80, 24), SizeIs(24));
}

TEST_F(ScreenTest, ARunThatIsNotThereIsWaitedFor) {
  const std::vector<std::string> lines = Draw({Read("none")}, 100, 24);
  EXPECT_EQ(lines[0], "none");
  EXPECT_THAT(lines[1], StartsWith("waiting: 'none' does not exist"));
  EXPECT_THAT(LineOf(Read("none")), StartsWith("none: waiting: "));
}

TEST_F(ScreenTest, ATornLastLineIsPassedOver) {
  Write("a", 20, "{\"iteration\":21,\"consum");
  EXPECT_THAT(LineOf(Read("a")), AllOf(HasSubstr("iteration 20 "), HasSubstr("lm loss 4.8000")));
}

TEST_F(ScreenTest, ALossThatIsNotFiniteIsNaN) {
  Write("a", 20, "{\"iteration\":21,\"consumed_samples\":84,\"lm loss\":null}\n");
  EXPECT_THAT(LineOf(Read("a")), AllOf(HasSubstr("iteration 21 "), HasSubstr("lm loss NaN")));
}

TEST_F(ScreenTest, SeveralRunsHaveACurveEach) {
  Write("a", 50);
  Write("b", 100);
  const std::vector<std::string> lines = Draw({Read("a"), Read("none"), Read("b")}, 80, 24);
  const std::string text = absl::StrJoin(lines, "\n");
  EXPECT_THAT(text, AllOf(HasSubstr("a  iteration 50"), HasSubstr("waiting"),
                          HasSubstr("b  iteration 100")));
  EXPECT_LE(lines.size(), 24u);
}

TEST_F(ScreenTest, NamesCannotCommandTheTerminal) {
  Write("a\x1b[2J", 3);
  EXPECT_THAT(Draw({Read("a\x1b[2J"), Read("no\nsuch")}, 80, 24),
              Each(AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\n")))));
}

}  // namespace
}  // namespace megatron::watch
