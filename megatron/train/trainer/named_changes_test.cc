#include "megatron/train/trainer/named_changes.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(NamedChangesTest, NamesWhatDiffers) {
  const std::string four = JoinNamed({{"form", "topk"}, {"ranks", "4"}, {"stages", "2"}});
  EXPECT_EQ(four, "form = topk; ranks = 4; stages = 2");
  EXPECT_EQ(NameChanges(four, JoinNamed({{"form", "topk"}, {"ranks", "2"}, {"stages", "1"}})),
            "ranks was 4 and is 2, stages was 2 and is 1");
  EXPECT_EQ(NameChanges(four, four), "");
}

TEST(NamedChangesTest, PassesOverWhatIsInOneListOnly) {
  EXPECT_EQ(NameChanges("ranks = 4", "form = topk; ranks = 2"), "ranks was 4 and is 2");
  EXPECT_EQ(NameChanges("topk, data 4 in 1 instances", "form = topk; ranks = 2"), "");
  EXPECT_EQ(NameChanges("", "ranks = 2"), "");
}

}  // namespace
}  // namespace megatron
