// Ranks that run on cores of their own: the affinity of real threads and processes.
#include <signal.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "megatron/base/core_binding.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

constexpr int kRanks = 2;

// A thread's name, and the hardware threads that it may run on.
struct TaskCores {
  std::string name, cores;
};

std::vector<TaskCores> TasksOf(pid_t pid) {
  std::vector<TaskCores> tasks;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    const std::string path = entry.path().string();
    std::string name = ReadTextFile(path + "/comm");
    const std::string status = ReadTextFile(path + "/status");
    const std::string key = "Cpus_allowed_list:\t";
    const size_t at = status.find(key);
    if (at == std::string::npos) continue;  // it has ended
    const size_t begin = at + key.size();
    tasks.push_back({std::string(absl::StripSuffix(name, "\n")),
                     status.substr(begin, status.find('\n', begin) - begin)});
  }
  return tasks;
}

class PretrainCoresTest : public PretrainProgramTest {
 protected:
  // A run of two ranks that goes on until it is told to stop.
  pid_t StartRun(const Arguments& more) const {
    const Arguments run = {"--set=parallel.data_parallel_size=2", "--set=train.train_iters=1000000",
                           "--set=system.num_threads=4"};
    const pid_t pid = Start(Joined(run, more), Path("log"));
    WaitFor("first step done", Path("log"));
    return pid;
  }

  std::string Stop(pid_t pid) const {
    kill(pid, SIGTERM);
    return FinishProgram(pid, Path("log")).output;
  }

  static std::vector<CoreShare> Shares() {
    const auto machine = ReadCoreTopology("/sys", AllowedThreads());
    EXPECT_TRUE(machine.ok()) << machine.status();
    std::vector<CoreShare> shares;
    for (int rank = 0; rank < kRanks; ++rank)
      shares.push_back(ShareOfRank(*machine, std::vector<std::optional<int>>(kRanks), rank));
    return shares;
  }
};

TEST_F(PretrainCoresTest, ThreadsOfARankRunOnItsCores) {
  const pid_t pid = StartRun({"--set=system.bind_cores_to_rank=true"});
  const std::vector<TaskCores> tasks = TasksOf(pid);
  const std::string output = Stop(pid);
  const std::vector<CoreShare> shares = Shares();
  std::map<std::string, int> bound;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string cores = NumberList(shares[rank].threads);
    EXPECT_EQ(CountOf(output, absl::StrCat("rank ", rank, " of this machine runs on cores ", cores,
                                           " of node ", shares[rank].node)),
              1)
        << output;
    // The rank's thread, and the one that computes with it, which has its name.
    for (const TaskCores& task : tasks) {
      if (task.name != absl::StrCat("rank ", rank)) continue;
      EXPECT_EQ(task.cores, cores) << task.name;
      ++bound[task.name];
    }
  }
  EXPECT_EQ(bound.size(), 2u);
  for (const auto& [name, count] : bound) EXPECT_GE(count, 2) << name;
}

TEST_F(PretrainCoresTest, ProcessesRunOnTheirCores) {
  const pid_t pid =
      StartRun({"--set=system.bind_cores_to_rank=true", "--set=parallel.ranks_as=processes"});
  std::multiset<std::string> cores;
  for (const pid_t child : ChildrenOf(pid)) {
    for (const TaskCores& task : TasksOf(child)) cores.insert(task.cores);
  }
  Stop(pid);
  for (const CoreShare& share : Shares())
    EXPECT_GE(cores.count(NumberList(share.threads)), 2u) << NumberList(share.threads);
}

TEST_F(PretrainCoresTest, WithoutItEachRankMayRunOnAll) {
  const pid_t pid = StartRun({});
  const std::vector<TaskCores> tasks = TasksOf(pid);
  Stop(pid);
  for (const TaskCores& task : tasks)
    EXPECT_EQ(task.cores, NumberList(AllowedThreads())) << task.name;
}

}  // namespace
}  // namespace megatron
