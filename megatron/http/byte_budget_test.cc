#include "megatron/http/byte_budget.h"

#include "gtest/gtest.h"

namespace megatron::http {
namespace {

TEST(ByteBudgetTest, BytesAreHeldAsLongAsTheirShare) {
  ByteBudget budget(10);
  EXPECT_EQ(budget.Take(11), nullptr);
  ByteBudget::Share first = budget.Take(6);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(budget.Take(5), nullptr);
  const ByteBudget::Share second = budget.Take(4);
  ASSERT_NE(second, nullptr);
  ByteBudget::Share copy = first;
  first.reset();
  EXPECT_EQ(budget.Take(1), nullptr);
  copy.reset();
  EXPECT_NE(budget.Take(6), nullptr);
}

TEST(ByteBudgetTest, NoBytesAreAlwaysThere) {
  ByteBudget budget(0);
  EXPECT_NE(budget.Take(0), nullptr);
  EXPECT_EQ(budget.Take(1), nullptr);
}

}  // namespace
}  // namespace megatron::http
