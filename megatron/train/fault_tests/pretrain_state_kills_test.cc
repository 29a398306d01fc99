// Kills (kill -9) a run whose masters and states are in a file at random moments, again and again:
// each time the same command goes on from its last checkpoint, and every run that ends has the
// bytes of the undisturbed one. A fifth as often it kills a run on the emulated device whose
// weights are in a file too. The first argument is the number of kills.

#include <signal.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

int wanted_kills = 50;

class PretrainStateKillsTest : public PretrainProgramTest {
 protected:
  Arguments Common() const {
    return {"--set=precision.bf16=true",
            "--set=optimizer.optimizer_cpu_offload=true",
            absl::StrCat("--set=optimizer.optimizer_offload_path=", Path("states")),
            "--set=checkpoint.save_interval=2",
            "--set=checkpoint.async_save=true",
            "--set=checkpoint.keep_last=2",
            "--set=train.eval_iters=0"};
  }

  pid_t StartIt(const Arguments& args, const std::string& log) const {
    Arguments command = Command(args);
    if (on_device_) command[0] = ProgramPath("megatron/train/pretrain_gpt_emulated_cuda");
    return StartProgram(command, log);
  }
  Outcome RunIt(const Arguments& args) const {
    const std::string log = Path("whole.txt");
    return FinishProgram(StartIt(args, log), log);
  }

  double SecondsOf(const Arguments& args) const {
    const absl::Time begin = absl::Now();
    const Outcome outcome = RunIt(args);
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }

  // The file loses its name before it takes space: nothing but a name is left of a killed run.
  void ExpectNothingLeft(const std::string& folder) const {
    const auto left = PosixFileSystem().List(Path(folder));
    ASSERT_TRUE(left.ok()) << left.status();
    for (const std::string& name : *left) {
      const auto info = PosixFileSystem().Stat(absl::StrCat(Path(folder), "/", name));
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->size, 0) << name;
    }
  }

  void Kill(int wanted, int iterations, const Arguments& more) const;

  bool on_device_ = false;  // whether runs are on the emulated device
};

// Kills runs with these arguments until there were so many kills.
void PretrainStateKillsTest::Kill(int wanted, int iterations, const Arguments& more) const {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const Arguments args =
      Joined(Joined(Common(), more), {absl::StrCat("--set=train.train_iters=", iterations)});
  const double start = SecondsOf(Joined({SaveTo("start"), "--set=train.exit_interval=1"}, args));
  const double whole = SecondsOf(Joined({SaveTo("whole")}, args));
  // A run gets about a fifth of its way before it is killed.
  std::uniform_real_distribution<> moment(0, start + 0.4 * whole);
  int kills = 0, ended = 0, continued = 0;
  std::string saved = "killed_0";
  const auto check_end = [&] {
    ExpectEqualCheckpoints("whole", saved);
    saved = absl::StrCat("killed_", ++ended);
  };
  const std::string log = Path("log.txt");
  while (kills < wanted) {
    const pid_t pid = StartIt(Joined({SaveTo(saved)}, args), log);
    absl::SleepFor(absl::Seconds(moment(random)));
    kill(pid, SIGKILL);
    const Outcome outcome = FinishProgram(pid, log);
    if (outcome.exit_code == kExitDone) {
      check_end();
    } else {
      ASSERT_EQ(outcome.exit_code, -SIGKILL) << outcome.output;
      ++kills;
      continued += CountOf(outcome.output, "continuing") > 0;
    }
  }
  const Outcome last = RunIt(Joined({SaveTo(saved)}, args));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  check_end();
  ExpectNothingLeft("states");
  std::cout << kills << " kills, " << ended << " runs that ended, " << continued
            << " starts from a checkpoint\n";
}

TEST_F(PretrainStateKillsTest, EveryRunThatEndsHasTheBytesOfTheUndisturbedOne) {
  Kill(wanted_kills, 60, {});
}

TEST_F(PretrainStateKillsTest, SoDoRunsWhoseWeightsAreInAFileToo) {
  on_device_ = true;
  Kill(wanted_kills / 5, 20,
       {"--set=parallel.param_cpu_offload=true",
        absl::StrCat("--set=parallel.param_offload_path=", Path("weights"))});
  ExpectNothingLeft("weights");
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) megatron::wanted_kills = std::atoi(argv[1]);
  return RUN_ALL_TESTS();
}
