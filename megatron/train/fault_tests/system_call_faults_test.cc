#include "megatron/train/fault_tests/system_call_faults.h"

#include <signal.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

class SystemCallFaultsTest : public ::testing::Test {
 protected:
  SystemCallFaultsTest() {
    EXPECT_TRUE(PosixFileSystem().RemoveTree(tree_).ok());
    EXPECT_TRUE(PosixFileSystem().CreateDirs(tree_).ok());
    for (const char* name : {"a", "b"}) std::ofstream(absl::StrCat(tree_, "/", name)) << name;
  }

  // Removes by names that start from an open directory, and the directory itself.
  FaultedRun Remove(const SystemCallFault& fault) const {
    return RunWithFault({"/bin/rm", "-r", tree_}, ::testing::TempDir() + "/log", tree_, fault);
  }
  bool IsThere(const std::string& name) const {
    return PosixFileSystem().Stat(absl::StrCat(tree_, "/", name)).ok();
  }

  const std::string tree_ = ::testing::TempDir() + "/tree";
};

TEST_F(SystemCallFaultsTest, EveryRemovalBelowTheDirectoryCounts) {
  const FaultedRun run = Remove({});
  EXPECT_EQ(run.outcome.exit_code, 0) << run.outcome.output;
  EXPECT_EQ(run.calls, 3);
  EXPECT_EQ(run.what, "");
}

TEST_F(SystemCallFaultsTest, AKillComesRightBehindTheCall) {
  const FaultedRun run = Remove({1});
  EXPECT_EQ(run.outcome.exit_code, -SIGKILL);
  EXPECT_EQ(run.calls, 2);
  EXPECT_TRUE(absl::StartsWith(run.what, "unlinkat /")) << run.what;
  EXPECT_TRUE(absl::StrContains(run.what, "/tree/")) << run.what;
  EXPECT_FALSE(IsThere("a") || IsThere("b"));
  EXPECT_TRUE(IsThere(""));
}

TEST_F(SystemCallFaultsTest, ACallThatFailsDoesNothing) {
  const FaultedRun run = Remove({0, EIO, false});
  EXPECT_EQ(run.outcome.exit_code, 1);
  EXPECT_NE(IsThere("a"), IsThere("b"));
}

}  // namespace
}  // namespace megatron
