#include "megatron/train/preflight/check_memory.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

RunPlan PlanOf(int64_t bytes_of_each_rank) {
  RunPlan plan;
  plan.stages.resize(1);
  plan.stages[0].memory["weights"] = bytes_of_each_rank;
  plan.ranks_per_stage = 2;
  plan.data_bytes = 10;
  plan.program_bytes = 1;
  return plan;
}

RunOptions TwoRanks() {
  RunOptions options;
  options.parallel.data = 2;
  return options;
}

TEST(CheckMemoryTest, ProcessesHaveTheirOwnDataAndProgram) {
  RunOptions options = TwoRanks();
  EXPECT_EQ(HostBytes(options, PlanOf(100), 2), 2 * 100 + 11);
  options.ranks.processes = true;
  EXPECT_EQ(HostBytes(options, PlanOf(100), 2), 2 * (100 + 11));
  EXPECT_EQ(HostBytes(options, PlanOf(100), 1), 100 + 11);
}

TEST(CheckMemoryTest, ARunThatFitsPasses) {
  EXPECT_THAT(CheckMemory(TwoRanks(), PlanOf(1), 2), IsOk());
  EXPECT_THAT(CheckFits(100, 100, /*on_gpus=*/true), IsOk());
  EXPECT_THAT(CheckFits(100, std::nullopt, /*on_gpus=*/false), IsOk());
}

TEST(CheckMemoryTest, SaysHowMuchIsMissing) {
  EXPECT_THAT(CheckFits(2048, 1024, /*on_gpus=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("takes 2.00 KiB of the GPUs' memory and 1.00 KiB are available")));
  EXPECT_THAT(CheckMemory(TwoRanks(), PlanOf(int64_t{1} << 60), 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--dry_run says")));
}

TEST(CheckMemoryTest, SaysHowMuchHostMemoryOffloadLacks) {
  EXPECT_THAT(CheckHostFits(4096, 2048, 4096), IsOk());
  EXPECT_THAT(CheckHostFits(4096, 2048, std::nullopt), IsOk());
  EXPECT_THAT(CheckHostFits(4096, 2048, 1024),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("optimizer_cpu_offload"),
                             HasSubstr("cpu_offloading_num_layers"), HasSubstr("takes 4.00 KiB"),
                             HasSubstr("2.00 KiB of it"), HasSubstr("1.00 KiB are available"))));
}

TEST(CheckMemoryTest, RanksOnGpusTakeHostMemoryForWhatIsOffloaded) {
  RunPlan plan = PlanOf(100);
  plan.stages[0].host_memory["exp_avg"] = 7;
  EXPECT_EQ(plan.host_bytes(2), 14);
  EXPECT_EQ(HostBytesBesideGpus(TwoRanks(), plan, 2), 14 + 11);
  plan.stages[0].host_memory["exp_avg"] = int64_t{1} << 60;
  RunOptions options = TwoRanks();
  options.device = DeviceType::kCuda;
  EXPECT_THAT(CheckMemory(options, plan, 2), StatusIs(absl::StatusCode::kInvalidArgument,
                                                      HasSubstr("optimizer_offload_fraction")));
}

TEST(CheckDiskTest, SaysHowMuchTheFilesOfAllRanksHereLack) {
  MemoryFileSystem disk;
  ASSERT_THAT(disk.CreateDirs("/nvme"), IsOk());
  disk.set_free_bytes(3000);
  RunPlan plan = PlanOf(1);
  RunOptions options = TwoRanks();
  options.trainer.state_directory = "/nvme/not/there/yet";
  EXPECT_THAT(CheckDisk(disk, options, plan, 2), IsOk());
  plan.stages[0].file_bytes = 1500;
  EXPECT_EQ(plan.file_bytes(2), 3000);
  EXPECT_THAT(CheckDisk(disk, options, plan, 2), IsOk());
  plan.stages[0].file_bytes = 2048;
  EXPECT_THAT(CheckDisk(disk, options, plan, 1), IsOk());
  EXPECT_THAT(CheckDisk(disk, options, plan, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("optimizer_offload_path"), HasSubstr("2 ranks"),
                             HasSubstr("take 4.00 KiB in '/nvme/not/there/yet'"),
                             HasSubstr("2.93 KiB are free"))));
}

TEST(CheckDiskTest, FilesOfWeightsNeedRoomBesideThoseOfStates) {
  MemoryFileSystem disk;
  for (const char* folder : {"/states", "/weights"}) ASSERT_THAT(disk.CreateDirs(folder), IsOk());
  disk.set_free_bytes(3000);
  RunPlan plan = PlanOf(1);
  RunOptions options = TwoRanks();
  options.trainer.state_directory = "/states";
  options.trainer.weight_directory = "/weights";
  plan.stages[0].file_bytes = plan.stages[0].weight_file_bytes = 1024;
  EXPECT_EQ(plan.weight_file_bytes(2), 2048);
  EXPECT_THAT(CheckDisk(disk, options, plan, 2), IsOk());
  options.trainer.weight_directory = "/states";
  EXPECT_THAT(CheckDisk(disk, options, plan, 1), IsOk());
  EXPECT_THAT(CheckDisk(disk, options, plan, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parallel.param_offload_path"), HasSubstr("2 ranks"),
                             HasSubstr("take 4.00 KiB in '/states'"))));
  options.trainer.weight_directory = "/weights";
  plan.stages[0].weight_file_bytes = 1600;
  EXPECT_THAT(CheckDisk(disk, options, plan, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in '/weights'")));
}

TEST(CheckDiskTest, ADirectoryThatIsNotThereHasTheSpaceOfTheOneAboveIt) {
  const auto free = FreeDiskBytes(PosixFileSystem(), testing::TempDir() + "/not/there/yet");
  ASSERT_TRUE(free.has_value());
  EXPECT_GT(*free, 0);
  EXPECT_EQ(FreeDiskBytes(PosixFileSystem(), "/proc/version/no/directory"), std::nullopt);
}

class ControlGroupTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ + "/" + name) << text;
  }
  const std::string directory_ = testing::TempDir() + "/control_group";
};

TEST_F(ControlGroupTest, WhatIsLeftOfTheLimitIsAvailable) {
  EXPECT_EQ(ControlGroupBytes(directory_), std::nullopt);
  Write("memory.max", "max\n");
  EXPECT_EQ(ControlGroupBytes(directory_), std::nullopt);
  Write("memory.max", "1000\n");
  Write("memory.current", "400\n");
  EXPECT_EQ(ControlGroupBytes(directory_), 600);
  Write("memory.stat", "anon 300\ninactive_file 50\n");
  EXPECT_EQ(ControlGroupBytes(directory_), 650);
  Write("memory.current", "2000\n");
  EXPECT_EQ(ControlGroupBytes(directory_), 0);
}

TEST_F(ControlGroupTest, TheFirstVersionsFilesAreReadToo) {
  Write("memory.limit_in_bytes", "1000\n");
  Write("memory.usage_in_bytes", "400\n");
  Write("memory.stat", "total_inactive_file 10\n");
  EXPECT_EQ(ControlGroupBytes(directory_), 610);
}

}  // namespace
}  // namespace megatron
