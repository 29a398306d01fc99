#include "megatron/base/json_error.h"

#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(JsonErrorTest, TheByteThatIsWrongIsNamedByLineAndColumn) {
  EXPECT_EQ(FirstJsonError("{\n\n}}"), "line 3, column 2: '}' cannot stand here");
  EXPECT_EQ(FirstJsonError("{\"a\": 1,}"), "line 1, column 9: '}' cannot stand here");
  EXPECT_EQ(FirstJsonError("{\"a\": [1,\n  2 3], \"b\": x}"),
            "line 2, column 5: '3' cannot stand here");
}

TEST(JsonErrorTest, AByteThatCannotBePrintedIsEscaped) {
  EXPECT_EQ(FirstJsonError(std::string("{}\0}", 4)), "line 1, column 3: '\\x00' cannot stand here");
  EXPECT_EQ(FirstJsonError("[\xff]"), "line 1, column 2: '\\xff' cannot stand here");
}

TEST(JsonErrorTest, ATextThatEndsTooEarlyIsWrongBehindItsLastByte) {
  EXPECT_EQ(FirstJsonError(""), "line 1, column 1: the text ends too early");
  EXPECT_EQ(FirstJsonError("{\"a\":\n"), "line 2, column 1: the text ends too early");
}

TEST(JsonErrorTest, NumbersThatJsonDoesNotHaveAreNamed) {
  EXPECT_EQ(FirstJsonError("{\"a\": 1,\n \"b\": NaN}"),
            "line 2, column 7: NaN is no number of JSON");
  EXPECT_EQ(FirstJsonError("[Infinity]"), "line 1, column 2: Infinity is no number of JSON");
  EXPECT_EQ(FirstJsonError("{\"a\":-Infinity}"),
            "line 1, column 7: -Infinity is no number of JSON");
}

}  // namespace
}  // namespace megatron
