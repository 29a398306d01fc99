#include "megatron/data/tokenizer/tokenizer_factory.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TokenizerFactoryTest, MakesEachTypeByItsName) {
  for (const char* type : {"ByteLevel", "NullTokenizer"}) {
    const auto tokenizer = CreateTokenizer({type, 500});
    ASSERT_THAT(tokenizer, IsOk());
    EXPECT_EQ((*tokenizer)->name(), type);
  }
}

TEST(TokenizerFactoryTest, AnUnknownTypeIsToldTheKnownOnes) {
  EXPECT_THAT(CreateTokenizer({"Bytes", 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("ByteLevel"), HasSubstr("NullTokenizer"))));
}

TEST(TokenizerFactoryTest, ANullTokenizerNeedsAVocabulary) {
  EXPECT_THAT(CreateTokenizer({"NullTokenizer", 0}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CreateTokenizer({"NullTokenizer", int64_t{1} << 31}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
