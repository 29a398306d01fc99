#include "megatron/base/quoted.h"

#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(QuotedTest, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(Quoted("wte.weight"), "'wte.weight'");
  EXPECT_EQ(Quoted("a\x1b[2J\n"), "'a\\x1b[2J\\n'");
}

TEST(QuotedTest, CutsLongTexts) { EXPECT_EQ(Quoted(std::string(1000, 'a')).size(), 130u); }

}  // namespace
}  // namespace megatron
