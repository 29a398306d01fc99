#include "megatron/data/gpt/in_memory_sequences.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

TEST(InMemorySequencesTest, AppendedSequencesAreReadBack) {
  InMemorySequences sequences;
  EXPECT_EQ(sequences.num_sequences(), 0);
  sequences.Append({5, 6, 7});
  sequences.Append({});
  sequences.Append({8});
  EXPECT_EQ(sequences.num_sequences(), 3);
  EXPECT_EQ(sequences.num_tokens(), 4);
  EXPECT_EQ(sequences.SequenceLength(0), 3);
  EXPECT_EQ(sequences.SequenceLength(1), 0);
  std::vector<int32_t> piece(2);
  ASSERT_TRUE(sequences.ReadTokens(0, 1, absl::MakeSpan(piece)).ok());
  EXPECT_THAT(piece, ElementsAre(6, 7));
  ASSERT_TRUE(sequences.ReadTokens(2, 0, absl::MakeSpan(piece).first(1)).ok());
  EXPECT_EQ(piece[0], 8);
}

}  // namespace
}  // namespace megatron
