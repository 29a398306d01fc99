#include "megatron/train/text/context_warning.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;

// The last token of a text has been written and not read.
TEST(ContextWarningTest, ATextIsOutgrownWithTheSecondTokenBehindTheContext) {
  EXPECT_EQ(ContextWarning(2, 8), "");
  EXPECT_EQ(ContextWarning(9, 8), "");
  EXPECT_THAT(ContextWarning(10, 8), HasSubstr("the text has 10 tokens and the context 8 "));
}

TEST(ContextWarningTest, ADecodersFirstTokenIsOneOfItsContext) {
  EXPECT_THAT(CutOffWarning(24),
              HasSubstr("after 23 tokens, and with the first its context of 24"));
}

}  // namespace
}  // namespace megatron
