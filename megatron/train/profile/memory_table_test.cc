#include "megatron/train/profile/memory_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MemoryTableTest, ListsHeldAndPlannedBytesSortedByHeld) {
  EXPECT_EQ(
      FormatMemoryTable({{"gradients", 2048}, {"loss", 8}, {"weights", 4096}, {"none", 0}},
                        {{"gradients", 2048}, {"weights", 1024}, {"whole", 512}, {"none", 0}}),
      "    memory                        at the peak      planned\n"
      "    weights                          4.00 KiB     1.00 KiB\n"
      "    gradients                        2.00 KiB     2.00 KiB\n"
      "    loss                                  8 B          0 B\n"
      "    whole                                 0 B        512 B\n"
      "    all of these                     6.01 KiB     3.50 KiB\n");
}

TEST(MemoryTableTest, TheProcessKnowsItsOwnMemory) {
  EXPECT_THAT(FormatProcessMemory(Device()), HasSubstr("the process, resident"));
  EXPECT_THAT(FormatProcessMemory(Device()), Not(HasSubstr("cuda")));
}

}  // namespace
}  // namespace megatron
