// Tests the command of logging.on_event with whole runs and faults: what happens is told once, by
// one rank, and a command that fails or hangs changes nothing.

#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const Arguments kShort = {"--set=train.train_iters=4", "--set=train.eval_interval=0"};
const Arguments kTwoProcesses = {
    "--set=parallel.data_parallel_size=2", "--set=parallel.ranks_as=processes",
    "--set=parallel.heartbeat_timeout_seconds=1", "--set=parallel.stuck_rank_timeout_seconds=4"};

class PretrainEventsTest : public PretrainProgramTest {
 protected:
  Arguments OnEvent() const {
    return {absl::StrCat("--set=logging.on_event=\"cat >> ", Path("events"), "\"")};
  }

  std::vector<nlohmann::json> Events() const {
    std::vector<nlohmann::json> events;
    const std::string text = ReadTextFile(Path("events"));
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      events.push_back(nlohmann::json::parse(text.substr(at, end - at)));
      at = end + 1;
    }
    return events;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const nlohmann::json& event : Events()) names.push_back(event["event"]);
    return names;
  }
};

TEST_F(PretrainEventsTest, ARunThatEndsWellIsToldOnce) {
  for (const Arguments& ranks :
       {Arguments(), Arguments({"--set=parallel.data_parallel_size=2"}), kTwoProcesses}) {
    (void)PosixFileSystem().Remove(Path("events")).ok();
    (void)PosixFileSystem().RemoveTree(Path("save")).ok();
    const Outcome outcome = Run(Joined(Joined(kShort, ranks), Joined(OnEvent(), {SaveTo("save")})));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_THAT(Names(), ElementsAre("start", "saved", "end"));
    const nlohmann::json end = Events().back();
    EXPECT_EQ(end["iteration"], 4);
    EXPECT_EQ(end["exit_code"], 0);
    EXPECT_EQ(end["save"], Path("save"));
    EXPECT_EQ(Events()[1]["message"],
              absl::StrCat("saved checkpoint of iteration 4 to ", Path("save")));
  }
}

TEST_F(PretrainEventsTest, GradientsThatAreNotFiniteAreToldAtTheFirstStep) {
  const Outcome outcome = Run(Joined(
      kShort, Joined(OnEvent(), {"--set=precision.fp16=true", "--set=precision.loss_scale=1e12"})));
  ASSERT_THAT(Names(), ElementsAre("start", "nan", "end")) << outcome.output;
  EXPECT_THAT(Events()[1]["message"], HasSubstr("not finite"));
}

TEST_F(PretrainEventsTest, ASaveThatFailsIsTold) {
  const pid_t pid = Start(Joined(OnEvent(), {SaveTo("save"), "--set=checkpoint.save_interval=2",
                                             "--set=train.train_iters=100000"}),
                          Path("log.txt"));
  WaitFor(" iteration ", Path("log.txt"));
  // A file takes the directory's place. The directory is moved away rather than removed, since the
  // run may write in it meanwhile; the run may also make it anew before the file is there.
  FileSystem& fs = PosixFileSystem();
  for (int tries = 0; !fs.Create(Path("save")).ok(); ++tries) {
    (void)fs.Rename(Path("save"), Path(absl::StrCat("moved_", tries))).ok();
  }
  WaitFor("was not saved", Path("log.txt"));
  kill(pid, SIGTERM);
  const Outcome outcome = FinishProgram(pid, Path("log.txt"));
  EXPECT_THAT(Names(), ::testing::Contains("save_failed")) << outcome.output;
  EXPECT_EQ(Names().back(), "end");
}

TEST_F(PretrainEventsTest, AKilledRankIsToldByOneOfTheOthers) {
  for (int victim = 0; victim < 2; ++victim) {
    (void)PosixFileSystem().Remove(Path("events")).ok();
    const pid_t pid =
        Start(Joined(Joined(kTwoProcesses, OnEvent()), {"--set=train.train_iters=100000"}),
              Path("log.txt"));
    WaitFor(" iteration ", Path("log.txt"));
    WaitFor("\"start\"", Path("events"));  // its command runs beside the first steps
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    ASSERT_EQ(ranks.size(), 2u);
    kill(ranks[victim], SIGKILL);
    const Outcome outcome = FinishProgram(pid, Path("log.txt"));
    EXPECT_EQ(outcome.exit_code, kExitPeerLost) << outcome.output;
    ASSERT_THAT(Names(), ElementsAre("start", "rank_lost", "end")) << outcome.output;
    EXPECT_THAT(Events()[1]["message"], HasSubstr(absl::StrCat("rank ", victim, " of world")));
    EXPECT_GT(Events()[1]["iteration"], 0);
    EXPECT_EQ(Events()[2]["exit_code"], static_cast<int>(kExitPeerLost));
  }
}

TEST_F(PretrainEventsTest, ACommandThatFailsOrHangsChangesNothing) {
  const Outcome fails =
      Run(Joined(kShort, {"--set=logging.on_event=\"echo no route >&2; exit 9\""}));
  EXPECT_EQ(fails.exit_code, kExitDone) << fails.output;
  EXPECT_EQ(CountOf(fails.output, "the command failed: it ended with code 9: no route"), 1)
      << fails.output;
  const absl::Time begin = absl::Now();
  const Outcome hangs = Run(Joined(kShort, {"--set=logging.on_event=\"exec sleep 1000\""}));
  EXPECT_EQ(hangs.exit_code, kExitDone) << hangs.output;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(60));
}

}  // namespace
}  // namespace megatron
