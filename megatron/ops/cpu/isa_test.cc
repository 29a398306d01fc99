#include "megatron/ops/cpu/isa.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::ops {
namespace {

using ::testing::HasSubstr;

TEST(IsaTest, NamesTheInstructionSetInUse) {
  ASSERT_TRUE(CheckCpu().ok()) << CheckCpu();
  EXPECT_STREQ(IsaName(), ActiveIsa() == CpuIsa::kAvx512 ? "avx512" : "avx2");
  const char* wanted = std::getenv("MEGATRON_CPU_ISA");
  if (wanted != nullptr) {
    EXPECT_STREQ(IsaName(), wanted);
  }
}

// The choice is made once per process, so each of these tests runs in a child process.
TEST(IsaDeathTest, ExplainsAnUnknownOverride) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        setenv("MEGATRON_CPU_ISA", "sse9", 1);
        ActiveIsa();
      },
      "MEGATRON_CPU_ISA is 'sse9'; it may be 'avx2' or 'avx512'");
}

TEST(IsaDeathTest, ObeysTheOverride) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("MEGATRON_CPU_ISA", "avx2", 1);
        std::exit(ActiveIsa() == CpuIsa::kAvx2 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace megatron::ops
