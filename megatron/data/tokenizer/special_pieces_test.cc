#include "megatron/data/tokenizer/special_pieces.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(SpecialPiecesTest, PiecesOfTheVocabularyKeepTheirIdsAndOthersFollow) {
  const std::vector<std::string> vocabulary = {"a", "[SEP]", "<extra_id_1>", "a"};
  SpecialPieces pieces(4, [&](int32_t id) { return vocabulary[static_cast<size_t>(id)]; });
  EXPECT_TRUE(pieces.Contains("[SEP]"));
  EXPECT_FALSE(pieces.Contains("[CLS]"));
  EXPECT_EQ(pieces.Add("[CLS]"), 4);
  EXPECT_EQ(pieces.Add("[SEP]"), 1);
  EXPECT_EQ(pieces.Add("a"), 0);
  EXPECT_THAT(pieces.AddSentinels(3), ElementsAre(5, 2, 6));
  EXPECT_THAT(pieces.added(), ElementsAre("[CLS]", "<extra_id_0>", "<extra_id_2>"));
  ASSERT_THAT(pieces.tokens(), SizeIs(6));
  EXPECT_EQ(pieces.tokens()[1].content, "[SEP]");
  EXPECT_EQ(pieces.tokens()[1].id, 1);
  EXPECT_TRUE(pieces.tokens()[1].special);
}

}  // namespace
}  // namespace megatron
