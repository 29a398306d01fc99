#include "megatron/train/attention/attention_plan_file.h"

#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kFlash = config::AttentionBackend::flash;
constexpr auto kFused = config::AttentionBackend::fused;
constexpr auto kLocal = config::AttentionBackend::local;

// tools/gpu:gpu_check_test expects that gpu_check writes this file.
TEST(AttentionPlanFileTest, WhatGpuCheckWritesIsRead) {
  const auto file = ReadAttentionPlans(
      PosixFileSystem(), "megatron/train/attention/testdata/attention_plans.textproto");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(OrderInFile(*file, "NVIDIA H200", 64), ElementsAre(kFused, kFlash, kLocal));
  EXPECT_THAT(OrderInFile(*file, "NVIDIA H200", 128), IsEmpty());
  EXPECT_THAT(OrderInFile(*file, "NVIDIA A100-SXM4-80GB", 64), IsEmpty());
}

TEST(AttentionPlanFileTest, TextThatIsNoPlanIsRefusedWithItsPlace) {
  const std::string heads = "place { gpu: \"G\" heads { kv_channels: 64 ";
  const std::pair<std::string, std::string> wrong[] = {
      {"buy milk", "line 1"},
      {heads + "kernel { backend: unfused } } }", "line 1"},
      {heads + "kernel { backend: auto } } }", "heads of 64 on \"G\": each kernel is one of"},
      {heads + "kernel { microseconds: 3 } } }", "each kernel is one of"},
      {heads + "} }", "there is no kernel"},
      {heads + "kernel { backend: flash } kernel { backend: flash } } }", "flash is there twice"},
      {heads + "kernel { backend: flash } } } " + heads + "kernel { backend: local } } }",
       "are there twice"},
  };
  for (const auto& [text, message] : wrong) {
    EXPECT_THAT(ParseAttentionPlans(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST(AttentionPlanFileTest, AFileThatIsSomethingElseIsNamed) {
  MemoryFileSystem fs;
  ASSERT_THAT(WriteFileAtomically(fs, "notes", "buy milk"), IsOk());
  EXPECT_THAT(ReadAttentionPlans(fs, "notes"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("notes")));
  EXPECT_THAT(ReadAttentionPlans(fs, "none"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace megatron
