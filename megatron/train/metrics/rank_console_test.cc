#include "megatron/train/metrics/rank_console.h"

#include <cstdint>
#include <functional>
#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

std::string StdoutOf(const std::function<void()>& body) {
  ::testing::internal::CaptureStdout();
  body();
  return ::testing::internal::GetCapturedStdout();
}

TEST(RankConsoleTest, OneRankPrintsWhatIsTheSameOnAll) {
  RankProgress progress;
  RankConsole printing(/*prints=*/true, &progress), silent(/*prints=*/false, &progress);
  EXPECT_EQ(StdoutOf([&] {
              printing.Print("a");
              printing.PrintLine("b");
              printing.Warn("c");
            }),
            "ab\nWARNING: c\n");
  EXPECT_EQ(StdoutOf([&] {
              silent.Print("a");
              silent.PrintLine("b");
              silent.Warn("c");
            }),
            "");
}

TEST(RankConsoleTest, EachRankPrintsWhatIsItsOwn) {
  RankProgress progress;
  RankConsole silent(/*prints=*/false, &progress);
  EXPECT_EQ(StdoutOf([&] {
              silent.PrintOwn("rank 3: a\n");
              silent.WarnOwn("rank 3: b");
            }),
            "rank 3: a\nWARNING: rank 3: b\n");
}

TEST(RankConsoleTest, PrintingIsAnExternalWait) {
  RankProgress progress;
  RankConsole printing(/*prints=*/true, &progress), silent(/*prints=*/false, &progress);
  const uint64_t before = progress.moves();
  StdoutOf([&] {
    silent.Print("a");
    silent.ShowProgress({});
  });
  EXPECT_EQ(progress.moves(), before);
  // A wait moves at its beginning and at its end.
  StdoutOf([&] { printing.Print("a"); });
  EXPECT_EQ(progress.moves(), before + 2);
  printing.ShowProgress({});
  EXPECT_EQ(progress.moves(), before + 4);
  EXPECT_FALSE(progress.waits_externally());
}

}  // namespace
}  // namespace megatron
