#include "megatron/data/gpt/mock_sequences.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

TEST(MockSequencesTest, LengthsAreMegatrons) {
  const MockSequences sequences(100, 99);
  ASSERT_EQ(sequences.num_sequences(), 100000);
  std::vector<int32_t> first;
  for (int i = 0; i < 8; ++i) first.push_back(sequences.SequenceLength(i));
  EXPECT_THAT(first, ElementsAre(3484, 2609, 2094, 1105, 1261, 168, 309, 68));
  int64_t tokens = 0;
  for (int64_t i = 0; i < sequences.num_sequences(); ++i) tokens += sequences.SequenceLength(i);
  EXPECT_EQ(tokens, 204637097);
}

TEST(MockSequencesTest, DocumentsCountModuloTheVocabularyAndEndInEod) {
  const MockSequences sequences(10, 7);
  std::vector<int32_t> tokens(68);
  ASSERT_TRUE(sequences.ReadTokens(7, 0, absl::MakeSpan(tokens)).ok());
  for (int i = 0; i < 67; ++i) EXPECT_EQ(tokens[i], (i + 1) % 10);
  EXPECT_EQ(tokens[67], 7);
  std::vector<int32_t> end(3);
  ASSERT_TRUE(sequences.ReadTokens(7, 65, absl::MakeSpan(end)).ok());
  EXPECT_THAT(end, ElementsAre(6, 7, 7));
}

}  // namespace
}  // namespace megatron
