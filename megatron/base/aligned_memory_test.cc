#include "megatron/base/aligned_memory.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

// Returns the flags of the mapping that holds the address, as /proc/self/smaps has them.
std::string FlagsOfMapping(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  const uintptr_t wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      inside = begin <= wanted && wanted < end;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

TEST(AlignedMemoryTest, BlocksBeginAtMultiplesOfTheirAlignment) {
  for (const int64_t bytes : {int64_t{1}, int64_t{100}, int64_t{4096}, 3 * kMebibyte + 5}) {
    for (const int64_t alignment : {64, 128, 4096}) {
      void* const data = AllocateAligned(bytes, alignment);
      ASSERT_NE(data, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % alignment, 0u) << bytes;
      std::memset(data, 1, bytes);
      std::free(data);
    }
  }
}

TEST(AlignedMemoryTest, LargeBlocksAskForLargePages) {
  if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) {
    GTEST_SKIP() << "this system has no large pages";
  }
  void* const large = AllocateAligned(8 * kMebibyte, 64);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % (2 * kMebibyte), 0u);
  const std::string flags = FlagsOfMapping(large);
  EXPECT_NE(flags.find(" hg "), std::string::npos) << flags;
  std::free(large);
}

TEST(AlignedMemoryTest, NoMemoryGivesNull) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends a program that asks for so much";
#endif
  EXPECT_EQ(AllocateAligned(int64_t{1} << 60, 64), nullptr);
}

}  // namespace
}  // namespace megatron
