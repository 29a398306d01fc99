#include "megatron/data/indexed/token_type.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

TEST(TokenTypeTest, CodesOfIntegerTypesAreAccepted) {
  for (const TokenType type : {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kI32,
                               TokenType::kI64, TokenType::kU16}) {
    EXPECT_THAT(TokenTypeFromCode(static_cast<uint8_t>(type)), IsOkAndHolds(type));
    EXPECT_EQ(TokenSize(type) * 8, std::stoi(std::string(TokenTypeName(type).substr(1))));
  }
}

TEST(TokenTypeTest, OtherCodesAreErrors) {
  EXPECT_THAT(TokenTypeFromCode(6),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("floating point")));
  EXPECT_THAT(TokenTypeFromCode(0), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(TokenTypeFromCode(9), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(TokenTypeTest, VocabulariesBelow65500NeedSixteenBitsAsInMegatron) {
  EXPECT_EQ(SmallestTokenType(257), TokenType::kU16);
  EXPECT_EQ(SmallestTokenType(65499), TokenType::kU16);
  EXPECT_EQ(SmallestTokenType(65500), TokenType::kI32);
}

}  // namespace
}  // namespace megatron
