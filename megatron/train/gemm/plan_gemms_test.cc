#include "megatron/train/gemm/plan_gemms.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/gemm/gemm_plan_file.h"

namespace megatron {
namespace {

using ops::cuda::Gemm;
using ops::cuda::GemmCandidates;
using ops::cuda::GemmKernel;
using ops::cuda::GemmPlace;
using ops::cuda::GemmPlanner;
using ::testing::HasSubstr;

const GemmPlace kHere = {"NVIDIA H200", 130100};

// Offers kernels 7 and 8, one of which is twice as fast.
class TwoKernels : public GemmCandidates {
 public:
  explicit TwoKernels(int fast) : fast_(fast), kernels_(2) {
    kernels_[0].id = 7;
    kernels_[1].id = 8;
  }
  absl::Span<const GemmKernel> kernels() const override { return kernels_; }
  double Seconds(int candidate) override { return candidate == fast_ ? 1 : 2; }

 private:
  const int fast_;
  std::vector<GemmKernel> kernels_;
};

int Choose(GemmPlanner* planner, int fast) {
  TwoKernels kernels(fast);
  Gemm gemm;
  gemm.m = gemm.n = gemm.k = 8;
  return planner->Choose(kHere, gemm, /*may_time=*/true, &kernels);
}

TEST(PlanGemmsTest, ANextRunUsesTheKernelsTimedByTheFirst) {
  MemoryFileSystem fs;
  GemmPlanner timing, pinned;
  ASSERT_TRUE(PlanGemms(fs, {"plans", true}, &timing).ok());
  EXPECT_EQ(Choose(&timing, 1), 1);
  const auto text = PlanGemms(fs, {"plans", false}, &pinned);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("id: 8"));
  EXPECT_EQ(Choose(&pinned, 0), 1) << "chosen by time, not by the file";
}

TEST(PlanGemmsTest, ThePlannerIsToldWhatProductsComputeBeside) {
  MemoryFileSystem fs;
  GemmPlanner planner;
  ASSERT_TRUE(PlanGemms(fs, {"", false, true, config::FuseGelu::backward}, &planner).ok());
  EXPECT_TRUE(planner.fuses_bias_gradients());
  EXPECT_EQ(planner.fuse_gelu(), ops::cuda::FuseGelu::kBackward);
  ASSERT_TRUE(PlanGemms(fs, {"", false, false, config::FuseGelu::both}, &planner).ok());
  EXPECT_FALSE(planner.fuses_bias_gradients());
  EXPECT_EQ(planner.fuse_gelu(), ops::cuda::FuseGelu::kBoth);
  ASSERT_TRUE(PlanGemms(fs, GemmOptions(), &planner).ok());  // nothing is decided
  EXPECT_FALSE(planner.fuses_bias_gradients());
  EXPECT_EQ(planner.fuse_gelu(), ops::cuda::FuseGelu::kNone);
}

TEST(PlanGemmsTest, WithoutTimingNothingIsWrittenAndTheFirstKernelTaken) {
  MemoryFileSystem fs;
  GemmPlanner planner;
  ASSERT_TRUE(PlanGemms(fs, {"", false}, &planner).ok());
  EXPECT_EQ(Choose(&planner, 1), 0);
}

TEST(PlanGemmsTest, TimingWithoutAFileServesThisRunAlone) {
  MemoryFileSystem fs;
  GemmPlanner planner;
  ASSERT_TRUE(PlanGemms(fs, {"", true}, &planner).ok());
  EXPECT_EQ(Choose(&planner, 1), 1);
}

TEST(PlanGemmsTest, AMissingFileIsRefusedUnlessItIsToBeWritten) {
  MemoryFileSystem fs;
  GemmPlanner planner;
  const absl::Status missing = PlanGemms(fs, {"plans", false}, &planner).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("time_gemm_kernels"));
}

// The path may name another file by mistake.
TEST(PlanGemmsTest, AFileThatIsSomethingElseIsRefusedAndKept) {
  for (bool time : {false, true}) {
    MemoryFileSystem fs;
    ASSERT_TRUE(WriteFileAtomically(fs, "notes", "buy milk").ok());
    GemmPlanner planner;
    EXPECT_EQ(PlanGemms(fs, {"notes", time}, &planner).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(*ReadFileToString(fs, "notes"), "buy milk");
  }
}

TEST(PlanGemmsTest, AFileThatCannotBeWrittenIsFoundAtTheStart) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.CreateDirs("plans").ok());
  GemmPlanner planner;
  EXPECT_FALSE(PlanGemms(fs, {"plans", true}, &planner).ok());
}

}  // namespace
}  // namespace megatron
