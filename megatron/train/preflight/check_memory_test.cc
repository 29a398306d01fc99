#include "megatron/train/preflight/check_memory.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RunPlan PlanOf(int64_t bytes_of_each_rank) {
  RunPlan plan;
  plan.stages.resize(1);
  plan.stages[0].memory["weights"] = bytes_of_each_rank;
  plan.stages[0].ranks = {0, 1};
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
  EXPECT_THAT(CheckMemory(TwoRanks(), PlanOf(1), 2, {}), IsOk());
  EXPECT_THAT(CheckFits(100, 100), IsOk());
  EXPECT_THAT(CheckFits(100, std::nullopt), IsOk());
}

TEST(CheckMemoryTest, SaysHowMuchIsMissing) {
  EXPECT_THAT(CheckFits(2048, 1024),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("takes 2.00 KiB of memory and 1.00 KiB are available")));
  EXPECT_THAT(CheckMemory(TwoRanks(), PlanOf(int64_t{1} << 60), 2, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--dry_run says")));
}

TEST(CheckMemoryTest, SaysHowMuchHostMemoryOffloadLacks) {
  RunOptions options = TwoRanks();
  options.trainer.host_fraction = 1;
  EXPECT_THAT(CheckHostFits(options, 4096, 2048, 4096), IsOk());
  EXPECT_THAT(CheckHostFits(options, 4096, 2048, std::nullopt), IsOk());
  EXPECT_THAT(CheckHostFits(options, 4096, 2048, 1024),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("takes 4.00 KiB"), HasSubstr("2.00 KiB of it"),
                             HasSubstr("1.00 KiB are available"))));
}

TEST(CheckMemoryTest, NamesTheSettingsThatOffloadAndNoOthers) {
  const auto message = [](const RunOptions& options) {
    return std::string(CheckHostFits(options, 4096, 2048, 1024).message());
  };
  RunOptions options = TwoRanks();
  options.trainer.model.num_offloaded_layers = 28;
  EXPECT_THAT(message(options), AllOf(HasSubstr("keep there (recompute.cpu_offloading_num_layers)"),
                                      HasSubstr("with a smaller recompute.cpu_offloading_num"),
                                      Not(HasSubstr("optimizer.")), Not(HasSubstr("parallel."))));
  options.trainer.model.attention_on_host = true;
  EXPECT_THAT(message(options), HasSubstr("without recompute.attention_chunks_on_host"));
  options = TwoRanks();
  options.trainer.host_fraction = 0.5;
  EXPECT_THAT(message(options), AllOf(HasSubstr("(optimizer.optimizer_cpu_offload)"),
                                      HasSubstr("a smaller optimizer.optimizer_offload_fraction"),
                                      Not(HasSubstr("recompute."))));
  // No smaller fraction is allowed beside these.
  options.trainer.host_fraction = 1;
  options.trainer.gradients_on_host = true;
  EXPECT_THAT(message(options),
              AllOf(HasSubstr("(optimizer.optimizer_cpu_offload, parallel.grad_cpu_offload)"),
                    HasSubstr("without parallel.grad_cpu_offload"),
                    Not(HasSubstr("optimizer_offload_fraction"))));
  options.trainer.gradients_on_host = false;
  options.trainer.weights_on_host = true;
  EXPECT_THAT(message(options), HasSubstr("without parallel.param_cpu_offload"));
  options.trainer.weight_directory = "/weights";
  EXPECT_THAT(message(options), Not(HasSubstr("less is taken")));
}

TEST(CheckMemoryTest, RanksOnGpusTakeHostMemoryForWhatIsOffloaded) {
  RunPlan plan = PlanOf(100);
  plan.stages[0].host_memory["exp_avg"] = 7;
  EXPECT_EQ(plan.host_bytes(2), 14);
  EXPECT_EQ(HostBytesBesideGpus(TwoRanks(), plan, 2), 14 + 11);
  plan.stages[0].host_memory["exp_avg"] = int64_t{1} << 60;
  RunOptions options = TwoRanks();
  options.device = DeviceType::kCuda;
  options.trainer.host_fraction = 1;
  EXPECT_THAT(CheckMemory(options, plan, 2, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                          HasSubstr("optimizer_offload_fraction")));
}

// Two pipeline stages of two ranks each, of which those of the first take twice as much.
RunPlan UnevenStages() {
  RunPlan plan = PlanOf(2048);
  plan.stages.push_back(plan.stages[0]);
  plan.stages[1].memory["weights"] = 1024;
  plan.stages[1].ranks = {2, 3};
  return plan;
}

TEST(CheckGpusTest, EachGpuNeedsRoomForItsOwnRanks) {
  const RunPlan plan = UnevenStages();
  EXPECT_THAT(CheckGpus(plan, ShareGpus(0, 4, {2048, 2048, 1024, 1024})), IsOk());
  // There are as many bytes in all.
  EXPECT_THAT(CheckGpus(plan, ShareGpus(0, 4, {2048, 1536, 1024, 1536})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 1 takes 2.00 KiB of the memory of GPU 1 and 1.50 KiB "
                                       "are available"),
                             HasSubstr("--dry_run says"))));
  // The second machine of two with two GPUs each.
  EXPECT_THAT(CheckGpus(plan, ShareGpus(2, 2, {1024, 1024})), IsOk());
  EXPECT_THAT(CheckGpus(plan, ShareGpus(0, 2, {1024, 1024})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 takes 2.00 KiB")));
  EXPECT_THAT(CheckGpus(plan, {}), IsOk());
}

TEST(CheckGpusTest, RanksThatShareAGpuNeedRoomTogether) {
  const RunPlan plan = UnevenStages();
  const std::vector<GpuShare> shares = ShareGpus(0, 4, {3072, 3072});
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[1].gpu, 1);
  EXPECT_EQ(shares[1].ranks, std::vector<int>({1, 3}));
  EXPECT_THAT(CheckGpus(plan, shares), IsOk());
  EXPECT_THAT(CheckGpus(plan, ShareGpus(0, 4, {3072, 3000})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ranks 1, 3 take 3.00 KiB of the memory of GPU 1")));
  EXPECT_EQ(ShareGpus(0, 1, {10, 10}).size(), 1u);
  EXPECT_EQ(ShareGpus(0, 2, {}).size(), 0u);
}

// A GPU that another program has filled cannot even be asked.
TEST(CheckGpusTest, OnlyGpusThatRanksWouldHaveAreAsked) {
  std::vector<int> asked;
  const auto ask = [&](int gpu) {
    asked.push_back(gpu);
    return int64_t{3072} - 1024 * gpu;
  };
  EXPECT_THAT(FreeGpuBytes(2, 8, ask), ElementsAre(3072, 2048));
  EXPECT_THAT(asked, ElementsAre(0, 1));
  EXPECT_THAT(FreeGpuBytes(4, 2, ask), ElementsAre(3072, 2048));
  EXPECT_THAT(FreeGpuBytes(4, 0, ask), IsEmpty());
  // Ranks are shared out as among all GPUs.
  const std::vector<GpuShare> shares = ShareGpus(0, 2, FreeGpuBytes(2, 8, ask));
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[1].ranks, std::vector<int>({1}));
}

TEST(CheckGpusTest, ARunIsRefusedByThem) {
  RunOptions options = TwoRanks();
  options.device = DeviceType::kCuda;
  EXPECT_THAT(CheckMemory(options, PlanOf(2048), 2, ShareGpus(0, 2, {2048, 2048})), IsOk());
  EXPECT_THAT(CheckMemory(options, PlanOf(2048), 2, ShareGpus(0, 2, {2048, 2047})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("GPU 1")));
}

// A machine on which each directory of the root is a device of its own, and "not" is not there.
absl::StatusOr<uint64_t> DeviceOfFirstName(const std::string& path) {
  if (absl::StrContains(path, "/not")) return absl::NotFoundError(path);
  return std::hash<std::string>()(path.substr(0, path.find('/', 1)));
}

TEST(CheckDiskTest, SaysHowMuchTheFilesOfAllRanksHereLack) {
  MemoryFileSystem disk;
  ASSERT_THAT(disk.CreateDirs("/nvme"), IsOk());
  disk.set_free_bytes(3000);
  RunPlan plan = PlanOf(1);
  RunOptions options = TwoRanks();
  options.trainer.state_directory = "/nvme/not/there/yet";
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName), IsOk());
  plan.stages[0].file_bytes = 1500;
  EXPECT_EQ(plan.file_bytes(2), 3000);
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName), IsOk());
  plan.stages[0].file_bytes = 2048;
  EXPECT_THAT(CheckDisk(disk, options, plan, 1, DeviceOfFirstName), IsOk());
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName),
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
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName), IsOk());
  options.trainer.weight_directory = "/states";
  EXPECT_THAT(CheckDisk(disk, options, plan, 1, DeviceOfFirstName), IsOk());
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parallel.param_offload_path"), HasSubstr("2 ranks"),
                             HasSubstr("take 4.00 KiB in '/states'"))));
  options.trainer.weight_directory = "/weights";
  plan.stages[0].weight_file_bytes = 1600;
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in '/weights'")));
}

TEST(CheckDiskTest, FoldersOfOneDeviceShareItsRoom) {
  MemoryFileSystem disk;
  for (const char* folder : {"/nvme", "/other"}) ASSERT_THAT(disk.CreateDirs(folder), IsOk());
  disk.set_free_bytes(3000);
  RunPlan plan = PlanOf(1);
  plan.stages[0].file_bytes = plan.stages[0].weight_file_bytes = 1024;
  RunOptions options = TwoRanks();
  options.trainer.state_directory = "/nvme/states/not/there";
  options.trainer.weight_directory = "/nvme/weights";
  EXPECT_THAT(CheckDisk(disk, options, plan, 1, DeviceOfFirstName), IsOk());
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parallel.param_offload_path"),
                             HasSubstr("take 4.00 KiB in '/nvme/states/not/there' and "
                                       "'/nvme/weights', which share a disk, and 2.93 KiB"))));
  options.trainer.weight_directory = "/other/weights";
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName), IsOk());
  // Folders without files need no room.
  options.trainer.weight_directory = "/nvme/weights";
  plan.stages[0].file_bytes = 0;
  EXPECT_THAT(CheckDisk(disk, options, plan, 2, DeviceOfFirstName), IsOk());
}

TEST(CheckDiskTest, ACheckpointNeedsRoomBesideFilesOnItsDevice) {
  MemoryFileSystem disk;
  for (const char* folder : {"/saved", "/nvme"}) ASSERT_THAT(disk.CreateDirs(folder), IsOk());
  disk.set_free_bytes(3000);
  RunPlan plan = UnevenStages();
  plan.stages[0].saved_bytes = 1536;
  plan.stages[1].saved_bytes = 924;
  plan.stages[1].saved_beside_bytes = 100;
  EXPECT_EQ(plan.checkpoint_bytes(), 2460);
  EXPECT_EQ(plan.checkpoint_room(), 2560);
  RunOptions options = TwoRanks();
  EXPECT_THAT(CheckRoomForCheckpoint(disk, options, plan, 2, "", DeviceOfFirstName), IsOk());
  options.checkpoint.save = "/saved/not/there";
  EXPECT_THAT(CheckRoomForCheckpoint(disk, options, plan, 2, "", DeviceOfFirstName), IsOk());
  plan.stages[0].file_bytes = plan.stages[1].file_bytes = 512;
  options.trainer.state_directory = "/nvme";
  EXPECT_THAT(CheckRoomForCheckpoint(disk, options, plan, 2, "", DeviceOfFirstName), IsOk());
  options.trainer.state_directory = "/saved/states";
  EXPECT_THAT(
      CheckRoomForCheckpoint(disk, options, plan, 2, "", DeviceOfFirstName),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("checkpoint.save"),
                     HasSubstr("takes up to 2.50 KiB in '/saved/not/there'"),
                     HasSubstr("beside 1.00 KiB of files of states in '/saved/states', and "),
                     HasSubstr("2.93 KiB are free"))));
  disk.set_free_bytes(2000);
  options.trainer.state_directory = "/nvme";
  EXPECT_THAT(
      CheckRoomForCheckpoint(disk, options, plan, 2, "", DeviceOfFirstName),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("'/saved/not/there' and 1.95 KiB are free; a save may fail until")));
}

TEST(CheckDiskTest, LocalCheckpointsOnTheDeviceOfOthersNeedRoomBesideThem) {
  MemoryFileSystem disk;
  for (const char* folder : {"/saved", "/fast"}) ASSERT_THAT(disk.CreateDirs(folder), IsOk());
  RunPlan plan = PlanOf(1);
  plan.stages[0].saved_bytes = 1024;
  plan.stages[0].local_bytes = 500;
  plan.stages[0].saved_beside_bytes = 24;
  RunOptions options = TwoRanks();
  options.checkpoint.save = "/saved/run";
  const auto check = [&](const std::string& local_directory) {
    return CheckRoomForCheckpoint(disk, options, plan, 2, local_directory, DeviceOfFirstName);
  };
  // There are two of 1024 bytes each, and one of 1048.
  disk.set_free_bytes(2048);
  EXPECT_THAT(check("/fast/run"), IsOk());
  EXPECT_THAT(check(""), IsOk());
  disk.set_free_bytes(2048 + 1048);
  EXPECT_THAT(check("/saved/not/there"), IsOk());
  disk.set_free_bytes(2048 + 1047);
  EXPECT_THAT(check("/saved/not/there"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("checkpoint.save: a checkpoint takes up to 1.02 KiB"),
                             HasSubstr("beside 2.00 KiB of local checkpoints in "
                                       "'/saved/not/there', and 3.02 KiB are free"))));
  // Those with the copies that a machine keeps for another.
  options.checkpoint.peer_copies = 1;
  EXPECT_THAT(check("/fast/run"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("checkpoint.local_save: local checkpoints take up to 4.00 KiB in "
                                 "'/fast/run' and 3.02 KiB are free")));
  options.checkpoint.peer_copies = 0;
  plan.stages[0].file_bytes = 1024;
  options.trainer.state_directory = "/fast/states";
  EXPECT_THAT(check("/fast/run"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("in '/fast/run', beside 2.00 KiB of files of states in "
                                 "'/fast/states', and 3.02 KiB are free")));
}

TEST(CheckDiskTest, ADirectoryThatIsNotThereHasTheSpaceOfTheOneAboveIt) {
  const auto free = FreeDiskBytes(PosixFileSystem(), testing::TempDir() + "/not/there/yet");
  ASSERT_TRUE(free.has_value());
  EXPECT_GT(*free, 0);
  EXPECT_EQ(FreeDiskBytes(PosixFileSystem(), "/proc/version/no/directory"), std::nullopt);
}

TEST(CheckDiskTest, ALinkIsOnTheDeviceOfWhatItRefersTo) {
  const std::string folder = testing::TempDir() + "/device_on_disk", link = folder + "/link";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(link);
  std::filesystem::create_symlink("/proc", link);
  const auto here = DeviceOnDisk(folder), proc = DeviceOnDisk("/proc");
  ASSERT_THAT(here, IsOk());
  ASSERT_THAT(proc, IsOk());
  EXPECT_NE(*here, *proc);
  EXPECT_THAT(DeviceOnDisk(link), IsOkAndHolds(*proc));
  EXPECT_THAT(DeviceOnDisk(folder + "/absent"), StatusIs(absl::StatusCode::kNotFound));
  std::filesystem::remove_all(folder);
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

TEST_F(ControlGroupTest, NumbersThatCanNotBeAreHarmless) {
  Write("memory.max", "-5\n");
  EXPECT_EQ(ControlGroupBytes(directory_), std::nullopt);
  Write("memory.max", "99999999999999999999999\n");
  EXPECT_EQ(ControlGroupBytes(directory_), std::nullopt);
  Write("memory.max", "9223372036854775807\n");
  Write("memory.current", "-9223372036854775808\n");
  Write("memory.stat", "inactive_file 9223372036854775807\n");
  EXPECT_EQ(ControlGroupBytes(directory_), INT64_MAX);
  Write("memory.max", "1000\n");
  Write("memory.current", "400\n");
  EXPECT_EQ(ControlGroupBytes(directory_), 1000);
  Write("memory.stat", "inactive_file -9223372036854775808\n");
  EXPECT_EQ(ControlGroupBytes(directory_), 600);
}

// A made-up /proc and /sys.
class AvailableHostBytesTest : public testing::Test {
 protected:
  void SetUp() override {
    Write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\nHugePages_Total: 0\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  // Gives the group of version 2 a limit, of which `used` bytes are in use.
  void Limit(const std::string& group, int64_t most, int64_t used) const {
    Write("sys/fs/cgroup" + group + "/memory.max", std::to_string(most));
    Write("sys/fs/cgroup" + group + "/memory.current", std::to_string(used));
  }
  const std::string root_ = testing::TempDir() + "/available_host_bytes";
};

TEST_F(AvailableHostBytesTest, WithoutControlGroupsIsWhatTheSystemHas) {
  EXPECT_EQ(AvailableHostBytes(root_), 8000 * 1024);
  EXPECT_EQ(AvailableHostBytes(root_ + "/nothing"), std::nullopt);
}

TEST_F(AvailableHostBytesTest, TheLeastOfTheOwnGroupAndThoseAboveItCounts) {
  Write("proc/self/cgroup", "0::/jobs/7/step\n");
  Write("sys/fs/cgroup/jobs/7/step/memory.max", "max\n");
  EXPECT_EQ(AvailableHostBytes(root_), 8000 * 1024);
  Limit("/jobs/7", 5000, 1000);
  EXPECT_EQ(AvailableHostBytes(root_), 4000);
  Limit("/jobs/7/step", 3000, 500);
  EXPECT_EQ(AvailableHostBytes(root_), 2500);
  Limit("/jobs", 9000, 7000);
  EXPECT_EQ(AvailableHostBytes(root_), 2000);
  Limit("", 1000, 0);
  EXPECT_EQ(AvailableHostBytes(root_), 1000);
  // Other groups' limits are not this process's.
  Limit("/jobs/8", 10, 0);
  EXPECT_EQ(AvailableHostBytes(root_), 1000);
}

TEST_F(AvailableHostBytesTest, TheFirstVersionsGroupIsReadToo) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/jobs/6\n4:hugetlb,memory:/jobs/7\n0::/jobs/9\n");
  Write("sys/fs/cgroup/memory/jobs/6/memory.limit_in_bytes", "10");
  EXPECT_EQ(AvailableHostBytes(root_), 8000 * 1024);
  Write("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "5000");
  Write("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "2000");
  EXPECT_EQ(AvailableHostBytes(root_), 3000);
  Write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "100");
  EXPECT_EQ(AvailableHostBytes(root_), 100);
}

TEST_F(AvailableHostBytesTest, APathThatIsNotMountedHereIsSkipped) {
  Write("proc/self/cgroup", "0::/docker/abc\n");
  Limit("", 5000, 1000);
  EXPECT_EQ(AvailableHostBytes(root_), 4000);
}

TEST_F(AvailableHostBytesTest, HostileTextsAreHarmless) {
  Limit("", 5000, 1000);
  Write("sys/fs/outside/memory.max", "1");
  for (const std::string& text :
       {std::string("0::/../outside\n"), std::string("0::/a/../../outside"), std::string("0::"),
        std::string("::\n:\n\n0:\n"), std::string(100, '\0'), "0::/" + std::string(100000, 'x'),
        "0::" + std::string(100000, '/'), std::string("memory:/outside\n99999999999:memory:\n")}) {
    Write("proc/self/cgroup", text);
    EXPECT_EQ(AvailableHostBytes(root_), 4000) << text.substr(0, 40);
  }
  Write("proc/meminfo", "MemAvailable: 9223372036854775807 kB\n");
  EXPECT_EQ(AvailableHostBytes(root_), 4000);
}

}  // namespace
}  // namespace megatron
