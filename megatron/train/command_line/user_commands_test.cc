#include "megatron/train/command_line/user_commands.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using ::testing::Eq;
using ::testing::Optional;

class UserCommandsTest : public ::testing::Test {
 protected:
  UserCommandsTest() {
    fs::remove_all(root_);
    fs::create_directories(root_ / "somewhere");
  }

  void MakeProgram(const std::string& path) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << "#!/bin/sh\n";
    fs::permissions(root_ / path, fs::perms::owner_all);
  }

  void MakeWorkspace() {
    MakeProgram("bazelw");
    fs::create_directories(root_ / "tools");
    std::ofstream(root_ / "tools/BUILD") << "cc_binary(\n    name = \"plot_loss\",\n)\n";
  }

  // The user stands in `directory` of the root.
  UserCommands::Surroundings In(const std::string& directory, const std::string& typed) const {
    UserCommands::Surroundings here;
    here.typed_program = typed;
    here.program_file = "/opt/bin/pretrain_gpt";
    here.working_directory = (root_ / directory).lexically_normal().string();
    return here;
  }

  const fs::path root_ = fs::path(::testing::TempDir()) / "user_commands_test";
};

constexpr char kBuilt[] = "/cache/execroot/x/bazel-out/k8-opt/bin/megatron/train/pretrain_gpt";

TEST_F(UserCommandsTest, BazelRunStartsWhatBazelRunHasStarted) {
  MakeWorkspace();
  UserCommands::Surroundings here = In("somewhere", kBuilt);
  here.program_file = kBuilt;
  here.run_workspace = root_.string();
  EXPECT_EQ(UserCommands(here).Self({"--set=a=b c"}),
            "../bazelw run //megatron/train:pretrain_gpt -- '--set=a=b c'");
  EXPECT_THAT(UserCommands(here).Tool("plot_loss", {"x"}),
              Optional(Eq("../bazelw run //tools:plot_loss -- x")));
  EXPECT_EQ(UserCommands(here).Tool("draw_loss", {"x"}), std::nullopt);
  here.working_directory = root_.string();
  EXPECT_THAT(UserCommands(here).Tool("plot_loss", {"x"}),
              Optional(Eq("./bazelw run //tools:plot_loss -- x")));
  fs::remove(root_ / "bazelw");
  EXPECT_THAT(UserCommands(here).Tool("plot_loss", {"x"}),
              Optional(Eq("bazel run //tools:plot_loss -- x")));
}

TEST_F(UserCommandsTest, AProgramByItsPathHasToolsBesideIt) {
  MakeProgram("bin/pretrain_gpt");
  MakeProgram("bin/plot_loss");
  const UserCommands commands(In("somewhere", "../bin/pretrain_gpt"));
  EXPECT_EQ(commands.Self({"--config=a"}), "../bin/pretrain_gpt --config=a");
  EXPECT_THAT(commands.Tool("plot_loss", {"x"}), Optional(Eq("../bin/plot_loss x")));
  EXPECT_EQ(commands.Tool("export_hf", {}), std::nullopt);
  EXPECT_THAT(UserCommands(In("bin", "./pretrain_gpt")).Tool("plot_loss", {}),
              Optional(Eq("./plot_loss")));
}

TEST_F(UserCommandsTest, AProgramInBazelsFoldersHasToolsThere) {
  MakeProgram("bazel-bin/megatron/train/pretrain_gpt");
  MakeProgram("bazel-bin/tools/export_hf");
  MakeWorkspace();
  UserCommands::Surroundings here = In(".", "bazel-bin/megatron/train/pretrain_gpt");
  here.program_file = kBuilt;
  EXPECT_THAT(UserCommands(here).Tool("export_hf", {"x"}),
              Optional(Eq("bazel-bin/tools/export_hf x")));
  MakeProgram("bazel-bin/tools/report/report");
  EXPECT_THAT(UserCommands(here).Tool("report", {"x"}),
              Optional(Eq("bazel-bin/tools/report/report x")));
  // One that is not built yet is built by Bazel.
  EXPECT_THAT(UserCommands(here).Tool("plot_loss", {"x"}),
              Optional(Eq("./bazelw run //tools:plot_loss -- x")));
}

TEST_F(UserCommandsTest, AProgramByItsNameHasToolsByTheirNames) {
  MakeProgram("bin/plot_loss");
  UserCommands::Surroundings here = In("somewhere", "pretrain_gpt");
  here.search_path = "/nowhere:" + (root_ / "bin").string();
  EXPECT_EQ(UserCommands(here).Self({}), "pretrain_gpt");
  here.instruction_set = "avx2";
  EXPECT_EQ(UserCommands(here).Self({"--config=a"}),
            "MEGATRON_CPU_ISA=avx2 pretrain_gpt --config=a");
  EXPECT_THAT(UserCommands(here).Tool("plot_loss", {}), Optional(Eq("plot_loss")));
  EXPECT_EQ(UserCommands(here).Tool("export_hf", {}), std::nullopt);
}

TEST_F(UserCommandsTest, PathsStartWhereTheUserStands) {
  const UserCommands commands(In("somewhere", "pretrain_gpt"));
  EXPECT_EQ(commands.PathFromHere((root_ / "somewhere/run/a").string()), "run/a");
  EXPECT_EQ(commands.PathFromHere((root_ / "elsewhere").string()), (root_ / "elsewhere").string());
  EXPECT_EQ(commands.PathFromHere("run"), "run");
  EXPECT_EQ(commands.PathFromHere("../run"), "../run");
}

}  // namespace
}  // namespace megatron
