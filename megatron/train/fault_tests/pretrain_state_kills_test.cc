// Kills (kill -9) a run whose masters and states are in a file at random moments, again and again:
// each time the same command goes on from its last checkpoint, and every run that ends has the
// bytes of the undisturbed one. The first argument is the number of kills.

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

  double SecondsOf(const Arguments& args) const {
    const absl::Time begin = absl::Now();
    const Outcome outcome = Run(args);
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }

  // The file loses its name before it takes space: nothing but a name is left of a killed run.
  void ExpectNothingLeft() const {
    const auto left = PosixFileSystem().List(Path("states"));
    ASSERT_TRUE(left.ok()) << left.status();
    for (const std::string& name : *left) {
      const auto info = PosixFileSystem().Stat(absl::StrCat(Path("states"), "/", name));
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->size, 0) << name;
    }
  }
};

TEST_F(PretrainStateKillsTest, EveryRunThatEndsHasTheBytesOfTheUndisturbedOne) {
  constexpr int kIterations = 60;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const Arguments args = Joined(Common(), {absl::StrCat("--set=train.train_iters=", kIterations)});
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
  while (kills < wanted_kills) {
    const pid_t pid = Start(Joined({SaveTo(saved)}, args), log);
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
  const Outcome last = Run(Joined({SaveTo(saved)}, args));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  check_end();
  ExpectNothingLeft();
  std::cout << kills << " kills, " << ended << " runs that ended, " << continued
            << " starts from a checkpoint\n";
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) megatron::wanted_kills = std::atoi(argv[1]);
  return RUN_ALL_TESTS();
}
