#include "megatron/train/gemm/gemm_plan_file.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ops::cuda::Gemm;
using ops::cuda::GemmPlan;
using ::testing::HasSubstr;
using ::testing::Not;

GemmPlan PlanOf(const std::string& gpu, int64_t m) {
  GemmPlan plan;
  plan.place = {gpu, 130100};
  plan.gemm.m = m;
  plan.gemm.n = 2048;
  plan.gemm.k = 1024;
  plan.gemm.in = DType::kBFloat16;
  plan.gemm.transpose_a = true;
  plan.gemm.transpose_b = true;
  plan.gemm.lda = 1;
  plan.gemm.ldb = 2;
  plan.gemm.ldc = 3;
  plan.gemm.accumulate = true;
  plan.gemm.alignment = 8;
  plan.gemm.bias_alignment = 4;
  plan.gemm.epilogue = ops::cuda::GemmEpilogue::kBiasGradient;
  plan.kernel = {66, 20, 35, 1, 2, 3, 4, 5, 6};
  plan.microseconds = 51.25;
  plan.first_microseconds = 60.5;
  return plan;
}

void ExpectEqual(const GemmPlan& x, const GemmPlan& y) {
  EXPECT_TRUE(x.place == y.place);
  EXPECT_EQ(x.gemm, y.gemm);
  EXPECT_TRUE(x.kernel == y.kernel);
  EXPECT_EQ(x.microseconds, y.microseconds);
  EXPECT_EQ(x.first_microseconds, y.first_microseconds);
}

TEST(GemmPlanFileTest, AWrittenPlanIsReadBack) {
  MemoryFileSystem fs;
  // GPU names come from the driver and may hold any characters.
  const std::vector<GemmPlan> plans = {PlanOf("NVIDIA \"H200\"\n", 3), PlanOf("NVIDIA H100", 9),
                                       PlanOf("NVIDIA H100", 2)};
  ASSERT_TRUE(WriteGemmPlans(fs, "plans", plans).ok());
  const auto read = ReadGemmPlans(fs, "plans");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 3u);
  ExpectEqual((*read)[0], plans[0]);
  ExpectEqual((*read)[1], plans[2]);
  ExpectEqual((*read)[2], plans[1]);
}

TEST(GemmPlanFileTest, PlansOfFloat8NameTheFormats) {
  GemmPlan plan = PlanOf("NVIDIA H200", 1);
  plan.gemm.in = DType::kUInt8;
  plan.gemm.b_format = Float8Format::kE5M2;
  const std::string text = GemmPlansText({plan});
  EXPECT_THAT(text, HasSubstr("a_format: \"e4m3\""));
  EXPECT_THAT(text, Not(HasSubstr("scaling")));
  const auto read = ParseGemmPlans(text);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectEqual(read->at(0), plan);
  plan.gemm.a_scaling = Float8Scaling::kBlocks;
  plan.gemm.b_scaling = Float8Scaling::kVectors;
  const auto parts = ParseGemmPlans(GemmPlansText({plan}));
  ASSERT_TRUE(parts.ok()) << parts.status();
  ExpectEqual(parts->at(0), plan);
  plan.gemm.a_format = Float8Format::kE5M2;
  EXPECT_FALSE(read->at(0).gemm == plan.gemm);
}

TEST(GemmPlanFileTest, TheOrderOfPlansDoesNotChangeTheText) {
  const GemmPlan a = PlanOf("A", 1), b = PlanOf("B", 1), c = PlanOf("A", 2);
  EXPECT_EQ(GemmPlansText({a, b, c}), GemmPlansText({c, b, a}));
}

TEST(GemmPlanFileTest, AMissingFileIsNotFound) {
  MemoryFileSystem fs;
  EXPECT_EQ(ReadGemmPlans(fs, "plans").status().code(), absl::StatusCode::kNotFound);
}

TEST(GemmPlanFileTest, TextThatIsNoPlanIsRefusedWithItsPlace) {
  for (const std::string& text :
       {std::string("place {"), std::string("layers: 24"), std::string("place { gpu: 7 }"),
        std::string("\xff\xfe\0\1", 4), std::string(100000, '{'),
        std::string("place { plan { product { m: 99999999999999999999 } } }"),
        std::string("place { plan { kernel { id: 1.5 } } }"),
        std::string("place { plan { product { epilogue: SIN } } }")}) {
    const auto plans = ParseGemmPlans(text);
    ASSERT_EQ(plans.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 60);
    EXPECT_THAT(std::string(plans.status().message()), HasSubstr("line 1"));
  }
  const auto no_dtype = ParseGemmPlans("place { plan { product { in: \"fp7\" out: \"bf16\" } } }");
  EXPECT_THAT(std::string(no_dtype.status().message()), HasSubstr("plan 1"));
  EXPECT_THAT(std::string(no_dtype.status().message()), HasSubstr("fp7"));
}

TEST(GemmPlanFileTest, AFileThatIsSomethingElseIsNamed) {
  MemoryFileSystem fs;
  ASSERT_TRUE(WriteFileAtomically(fs, "notes", "buy milk").ok());
  EXPECT_THAT(std::string(ReadGemmPlans(fs, "notes").status().message()), HasSubstr("notes"));
}

}  // namespace
}  // namespace megatron
