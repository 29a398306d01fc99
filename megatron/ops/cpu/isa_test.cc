#include "megatron/ops/cpu/isa.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::ops {
namespace {

TEST(IsaTest, NamesTheInstructionSetInUse) {
  ASSERT_TRUE(CheckCpu().ok()) << CheckCpu();
  const char* wanted = std::getenv("MEGATRON_CPU_ISA");
  if (wanted != nullptr) {
    EXPECT_STREQ(IsaName(), wanted);
  } else {
    EXPECT_STREQ(IsaName(), ActiveIsa() == CpuIsa::kAvx512 ? "avx512" : "avx2");
    EXPECT_EQ(ActiveBf16Products(), Bf16Products::kWidened);
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
      "MEGATRON_CPU_ISA is 'sse9'; it may be 'avx2', 'avx512', 'avx512_bf16' or 'amx_bf16'");
}

// Exits with 0 if `name` is obeyed, or refused because the processor lacks it.
void ChooseAndExit(const char* name, CpuIsa isa, Bf16Products products) {
  setenv("MEGATRON_CPU_ISA", name, 1);
  if (absl::IsFailedPrecondition(CheckCpu())) std::exit(0);
  std::exit(ActiveIsa() == isa && ActiveBf16Products() == products ? 0 : 1);
}

TEST(IsaDeathTest, ObeysTheOverride) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ChooseAndExit("avx2", CpuIsa::kAvx2, Bf16Products::kWidened),
              ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ChooseAndExit("avx512", CpuIsa::kAvx512, Bf16Products::kWidened),
              ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ChooseAndExit("avx512_bf16", CpuIsa::kAvx512, Bf16Products::kAvx512Bf16),
              ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ChooseAndExit("amx_bf16", CpuIsa::kAvx512, Bf16Products::kAmx),
              ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace megatron::ops
