#include "megatron/train/preflight/check_same_kernels.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFlash[] = "attention: flash, local\nproducts: the fastest\n";
constexpr char kLocal[] = "attention: local\nproducts: the fastest\n";

class CheckSameKernelsTest : public ::testing::Test {
 protected:
  // A run that continues a checkpoint whose manifest has these strings.
  StartingPoint From(const std::map<std::string, std::string>& strings) {
    CheckpointState state;
    state.run_id = "0123456789abcdef";
    state.strings = strings;
    SaveOptions save;
    save.directory = "run";
    EXPECT_THAT(SaveCheckpoint(fs_, save, state), IsOk());
    const auto found = FindLatestCheckpoint(fs_, "run");
    EXPECT_THAT(found, IsOk());
    auto reader = CheckpointReader::Open(fs_, found->directory);
    EXPECT_THAT(reader, IsOk());
    StartingPoint start;
    start.checkpoint = std::make_unique<CheckpointReader>(*std::move(reader));
    return start;
  }
  absl::Status Check(const StartingPoint& start, const std::string& kernels, bool deterministic) {
    return CheckSameKernels(start, kernels, deterministic,
                            [&](const std::string& warning) { warnings_.push_back(warning); });
  }

  MemoryFileSystem fs_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckSameKernelsTest, TheSameKernelsContinueInSilence) {
  for (bool deterministic : {false, true})
    EXPECT_THAT(Check(From({{"kernels", kFlash}}), kFlash, deterministic), IsOk());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckSameKernelsTest, OtherKernelsAreNamed) {
  EXPECT_THAT(Check(From({{"kernels", kFlash}}), kLocal, false), IsOk());
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("run/"),
                                HasSubstr("attention saved by flash, local, now local"))));
}

TEST_F(CheckSameKernelsTest, OtherKernelsAreRefusedInDeterministicMode) {
  const absl::Status status = Check(From({{"kernels", kFlash}}), kLocal, true);
  EXPECT_EQ(ExitCodeOf(status), kExitConfig);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("attention saved by flash, local, now local"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckSameKernelsTest, OtherWorkOfProductsIsNamedAndTheFieldsThatDecideIt) {
  constexpr char kFused[] =
      "attention: local\nproducts: the fastest, with gradients of biases, with GELU: backward\n";
  EXPECT_THAT(Check(From({{"kernels", kLocal}}), kFused, false), IsOk());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr(
                             "products saved by the fastest, now the fastest, with gradients "
                             "of biases, with GELU: backward")));
  const absl::Status status = Check(From({{"kernels", kLocal}}), kFused, true);
  EXPECT_EQ(ExitCodeOf(status), kExitConfig);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("system.fuse_gelu and system.fuse_bias_gradients"));
}

TEST_F(CheckSameKernelsTest, WhatIsNotKnownOrNotContinuedIsNotCompared) {
  EXPECT_THAT(Check(From({}), kLocal, true), IsOk());
  EXPECT_THAT(Check(From({{"kernels", kFlash}}), "", true), IsOk());
  EXPECT_THAT(Check(StartingPoint(), kLocal, true), IsOk());
  StartingPoint weights = From({{"kernels", kFlash}});
  weights.restore = Restore::kWeights;
  EXPECT_THAT(Check(weights, kLocal, true), IsOk());
  EXPECT_THAT(warnings_, IsEmpty());
}

}  // namespace
}  // namespace megatron
