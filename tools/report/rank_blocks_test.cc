#include "tools/report/rank_blocks.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/report/markdown.h"

namespace megatron::report {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kFile[] = R"({"iteration":40,
 "ranks":[{"host":"a","stage":0,"seconds":{"compute":6,"dp":4}},
          {"host":"b","stage":0,"seconds":{"compute":9,"dp":1}},
          {"host":"c","stage":1,"seconds":{"compute":2,"dp":8}},
          {"host":"d","stage":1,"seconds":{"compute":2,"dp":8}}],
 "intervals":[{"last":20,"work":[0.1,0.1,0.2,0.2]},{"last":40,"work":[0.1,0.2,0.2,0.2]}],
 "communication":[{"group":"dp","operation":"all-reduce","ranks":2,"calls":80,"bytes":8e9,
                   "time":4,"transfer":1,"waiting":3,"algbw":8e9,"busbw":8e9}],
 "what_if":{"measured":0.2,"replayed":0.199,"steps":3,
            "savings":[{"seconds":0.15,"condition":"if rank 1 were quick"}]}})";

std::string TextOf(std::vector<Block> blocks) {
  Document document;
  document.sections.push_back({"ranks", "Ranks", std::move(blocks)});
  return MarkdownOf(document);
}

TEST(RankBlocksTest, TheTablesHaveEachRank) {
  const auto run = ParseRunRanks(kFile);
  ASSERT_THAT(run, IsOk());
  const std::string text = TextOf(RankBlocks(*run, ""));
  EXPECT_THAT(text, HasSubstr("| rank | dp | compute |\n"));
  EXPECT_THAT(text, HasSubstr("| 1 on b, stage 0 | 10.0 | 90.0 |\n"));
  EXPECT_THAT(text, HasSubstr("| rank | to 20 | to 40 |\n"));
  EXPECT_THAT(text, HasSubstr("| 1 on b, stage 0 | 100 | 200 |\n"));
  EXPECT_THAT(text, HasSubstr("| if rank 1 were quick | 0.15 | -25.0 % |\n"));
  EXPECT_THAT(text, HasSubstr("A step took 0.2 s; its times, played again, take 0.199 s."));
}

TEST(RankBlocksTest, ACellIsWarmIfItIsAboveThoseOfItsStage) {
  const auto run = ParseRunRanks(kFile);
  ASSERT_THAT(run, IsOk());
  const std::vector<Block> blocks = RankBlocks(*run, "");
  const Table& map = std::get<Table>(blocks.back());
  EXPECT_EQ(map.rows[1][1].heat, 0);
  EXPECT_EQ(map.rows[1][2].heat, kMostHeat);
  // Stage 1 has more work than stage 0, on both of its ranks.
  EXPECT_EQ(map.rows[2][2].heat, 0);
}

TEST(RankBlocksTest, CallsAreThoseOfTheRun) {
  const auto run = ParseRunRanks(kFile);
  ASSERT_THAT(run, IsOk());
  EXPECT_THAT(
      TextOf(CallBlocks(*run, "")),
      HasSubstr("| dp, all-reduce | 2 | 80 | 7.45 GiB | 4.00 | 1.00 | 3.00 | 8.00 | 8.00 |"));
  EXPECT_THAT(CallBlocks(RunRanks(), ""), IsEmpty());
}

TEST(RankBlocksTest, OfManyRanksTheSlowOnesAreShown) {
  RunRanks run;
  run.intervals = {10};
  for (int rank = 0; rank < 1000; ++rank)
    run.ranks.push_back({"host", 0, {{"compute", 1}}, {rank == 777 ? 2.0 : 1.0}});
  const std::string text = TextOf(RankBlocks(run, ""));
  EXPECT_THAT(text, AllOf(HasSubstr("| 777 on host, stage 0 |"), Not(HasSubstr("| 900 on host"))));
  EXPECT_THAT(text, HasSubstr("Of 1000 ranks, those with the most work"));
}

TEST(RunRanksTest, DamagedFilesAreReadAsFarAsTheyGo) {
  for (const char* text : {"", "[]", "{", "{\"ranks\":3}", "{\"ranks\":[{}]}"})
    EXPECT_FALSE(ParseRunRanks(text).ok()) << text;
  const auto run = ParseRunRanks(
      "{\"ranks\":[{\"seconds\":{\"compute\":-1e300,\"dp\":\"x\"}},7],\"iteration\":{},"
      "\"intervals\":[{\"last\":1,\"work\":[1]},{\"work\":[1,null]}],"
      "\"communication\":[null],\"what_if\":[1]}");
  ASSERT_THAT(run, IsOk());
  EXPECT_THAT(run->ranks, SizeIs(2));
  EXPECT_THAT(run->intervals, SizeIs(1));
  EXPECT_FALSE(TextOf(RankBlocks(*run, "")).empty());
}

}  // namespace
}  // namespace megatron::report
