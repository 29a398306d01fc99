#include "megatron/checkpoint/names.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(NamesTest, DirectoryNamesAreMegatronsAndComeBack) {
  EXPECT_EQ(DirectoryName(1000), "iter_0001000");
  EXPECT_EQ(DirectoryName(123456789), "iter_123456789");
  for (DirectoryKind kind :
       {DirectoryKind::kFinal, DirectoryKind::kTemporary, DirectoryKind::kReplaced}) {
    for (int64_t iteration : {int64_t{0}, int64_t{42}, int64_t{99999999}}) {
      IterationDirectory parsed;
      ASSERT_TRUE(ParseDirectoryName(DirectoryName(iteration, kind), &parsed));
      EXPECT_EQ(parsed.iteration, iteration);
      EXPECT_EQ(parsed.kind, kind);
    }
  }
}

TEST(NamesTest, OtherDirectoryNamesAreRefused) {
  IterationDirectory parsed;
  for (const char* name : {"", "iter_", "iter_1", "iter_00001000", "iter_-000001",
                           "iter_0001000.bak", "iter_0001000.tmp.tmp", "release", "iter_ 001000",
                           "iter_+001000", "iter_99999999999999999999"}) {
    EXPECT_FALSE(ParseDirectoryName(name, &parsed)) << name;
  }
}

TEST(NamesTest, ShardNamesComeBack) {
  EXPECT_EQ(ShardFileName(3, 8), "shard_00003_of_00008.bin");
  EXPECT_EQ(PartFileName(3, 8), "part_00003_of_00008.json");
  int index = 0;
  EXPECT_TRUE(ParseShardFileName("shard_00003_of_00008.bin", &index));
  EXPECT_EQ(index, 3);
  EXPECT_TRUE(ParseShardFileName(ShardFileName(123456, 200000), &index));
  EXPECT_TRUE(IsShardOrPartFileName("part_00003_of_00008.json"));
  for (const char* name :
       {"shard_00008_of_00008.bin", "shard_3_of_00008.bin", "shard_-0001_of_00008.bin",
        "shard_00003_of_00008.bin2", "shard_00003.bin", "../shard_00003_of_00008.bin", ""}) {
    EXPECT_FALSE(ParseShardFileName(name, &index)) << name;
    EXPECT_FALSE(IsShardOrPartFileName(name)) << name;
  }
}

TEST(NamesTest, AnIterationIsDigitsBetweenSpaces) {
  int64_t iteration = 0;
  EXPECT_TRUE(ParseIteration("1000", &iteration));
  EXPECT_TRUE(ParseIteration(" 1000\n", &iteration));
  EXPECT_EQ(iteration, 1000);
  for (const char* text : {"", "\n", "release", "-1", "+1", "1e3", "1 2", "9999999999999999"}) {
    EXPECT_FALSE(ParseIteration(text, &iteration)) << text;
  }
}

}  // namespace
}  // namespace megatron
