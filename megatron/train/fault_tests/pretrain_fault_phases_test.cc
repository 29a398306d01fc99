// Tests each kind of fault in each phase of a run: one report names the fault, the rank and the
// phase, in time, and no process stays behind. Deadlines are a tenth of the defaults, unless the
// test is run with --real_deadlines; --times=N tries each N times.

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

bool real_deadlines = false;
bool all_of_them = false;
int times = 1;

const std::vector<std::string>& Phases() {
  static const auto* const phases =
      new std::vector<std::string>{"start",  "data",     "forward", "backward", "reduce",
                                   "update", "evaluate", "save",    "generate", "leave"};
  return *phases;
}

struct Kind {
  std::string name;
  bool for_threads;
  std::vector<int> exit_codes;
};

const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      {"kill", false, {kExitPeerLost}}, {"stop", false, {kExitHang}},
      {"hang", true, {kExitHang}},      {"spin", true, {kExitHang}},
      {"deaf", false, {kExitHang}},     {"mismatch", true, {kExitPeerLost}},
  };
  return *kinds;
}

struct Case {
  Kind kind;
  std::string phase;
  bool threads;
};

// Returns all cases, or a selection that has each kind and each phase once.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Kind& kind : Kinds()) {
    for (const std::string& phase : Phases()) {
      // By then the rank may have received all that it needs.
      if (kind.name == "deaf" && phase == "leave") continue;
      cases.push_back({kind, phase, false});
      if (kind.for_threads) cases.push_back({kind, phase, true});
    }
  }
  if (all_of_them) return cases;
  const auto chosen = [](const Case& c) {
    static const auto* const names = new std::map<std::string, std::string>{
        {"start", "hang"},    {"data", "kill"},       {"forward", "spin"},  {"backward", "stop"},
        {"reduce", "deaf"},   {"update", "mismatch"}, {"evaluate", "spin"}, {"save", "hang"},
        {"generate", "hang"}, {"leave", "stop"}};
    // Half of the ranks that can be threads are threads.
    return names->at(c.phase) == c.kind.name &&
           c.threads == (c.kind.for_threads && c.phase.size() % 2 == 0);
  };
  std::vector<Case> few;
  for (const Case& c : cases) {
    if (chosen(c)) few.push_back(c);
  }
  return few;
}

class PretrainFaultPhasesTest : public PretrainProgramTest {
 protected:
  Arguments CommandFor(const Case& c) const {
    Arguments command =
        Command({SaveTo("save"), "--set=train.micro_batch_size=1",
                 "--set=parallel.pipeline_model_parallel_size=2",
                 "--set=parallel.data_parallel_size=2", "--set=train.eval_interval=2",
                 "--set=checkpoint.save_interval=2", "--set=train.train_iters=8",
                 "--set=generation={prompt: \"Sam\" tokens_to_generate: 12 temperature: 0}"});
    command[0] = ProgramPath("megatron/train/fault_tests/pretrain_gpt_with_faults");
    command.push_back(
        absl::StrCat("--set=parallel.ranks_as=", c.threads ? "threads" : "processes"));
    const bool by_others = WaitsForOthersDeadline(c);
    if (!real_deadlines) {
      command.push_back("--set=parallel.heartbeat_timeout_seconds=1");
      command.push_back("--set=parallel.stuck_rank_timeout_seconds=1");
    }
    if (by_others) {
      command.push_back(absl::StrCat("--set=parallel.distributed_timeout_seconds_after_init=",
                                     real_deadlines ? 12 : 2));
    }
    return command;
  }

  // Returns whether only the other ranks' deadline ends the wait: the rank does work of a kind that
  // it has never finished before.
  static bool WaitsForOthersDeadline(const Case& c) {
    return c.kind.name == "spin" && IsOnce(c.phase);
  }
  static bool IsOnce(const std::string& phase) { return phase == "start" || phase == "leave"; }

  static std::vector<std::string> ExpectedTexts(const Case& c, int victim) {
    const std::string rank = absl::StrCat("rank ", victim);
    if (WaitsForOthersDeadline(c)) return {"still missing: "};
    // The report shows two different calls of one group, or calls of two groups.
    if (c.kind.name == "mismatch") return {"fp32[7]", "ranks "};
    if (c.kind.name == "kill") {
      return {absl::StrCat(rank, " of world ("), "is lost: its connection ended",
              absl::StrCat(rank, " could not be asked")};
    }
    if (c.kind.name == "stop") {
      return {absl::StrCat(rank, " of world ("), "has given no sign of life",
              absl::StrCat(rank, " could not be asked")};
    }
    if (c.kind.name == "deaf") return {"has given no sign of life"};
    const std::string what =
        c.kind.name == "hang" ? "is stuck: nothing has moved for " : "computes without end";
    return {absl::StrCat("error: ", rank, " on "), what, absl::StrCat(", ", c.phase, "\n")};
  }

  void Try(const Case& c) {
    const int victim = static_cast<int>(random_() % 4);
    const int before = IsOnce(c.phase) ? 0 : 2 + static_cast<int>(random_() % 2);
    const std::string fault = absl::StrCat(c.kind.name, " ", c.phase, " ", victim, " ", before);
    SCOPED_TRACE(absl::StrCat(fault, c.threads ? ", threads" : ", processes"));
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("save")).ok());
    const std::string log = Path("log.txt");
    const pid_t pid = StartProgram(CommandFor(c), log, {{"MEGATRON_TEST_FAULT", fault}});
    WaitFor("the fault begins", log);
    const absl::Time begin = absl::Now();
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    const auto told = [&] { return absl::StrContains(ReadTextFile(log), "error: "); };
    absl::Time named = absl::InfiniteFuture();
    while (!HasEnded(pid) && absl::Now() < begin + 2 * AllOut()) {
      if (named == absl::InfiniteFuture() && told()) named = absl::Now();
      absl::SleepFor(absl::Milliseconds(10));
    }
    const absl::Time end = absl::Now();
    if (named == absl::InfiniteFuture() && told()) named = end;
    if (!HasEnded(pid)) kill(pid, SIGKILL);
    const Outcome outcome = FinishProgram(pid, log);
    EXPECT_LT(named - begin, NamedBy());
    EXPECT_LT(end - begin, AllOut());
    slowest_ = std::max(slowest_, end - begin);
    std::printf("%s, %s: named after %s, out after %s\n", fault.c_str(),
                c.threads ? "threads" : "processes", absl::FormatDuration(named - begin).c_str(),
                absl::FormatDuration(end - begin).c_str());
    std::fflush(stdout);
    EXPECT_EQ(std::count(c.kind.exit_codes.begin(), c.kind.exit_codes.end(), outcome.exit_code), 1)
        << outcome.exit_code << "\n"
        << outcome.output;
    for (const pid_t rank : ranks) EXPECT_TRUE(HasEnded(rank));
    // Both sides of a cut network report it.
    const int reports = CountOf(outcome.output, "what the ranks were at:");
    EXPECT_TRUE(reports == 1 || (reports == 2 && c.kind.name == "deaf")) << outcome.output;
    for (const std::string& text : ExpectedTexts(c, victim)) {
      EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
    }
  }

  absl::Duration slowest() const { return slowest_; }

  // Deadlines shorten only finding the fault, to a tenth, and not reporting it and ending.
  static absl::Duration NamedBy() { return absl::Seconds(real_deadlines ? 15 : 6); }
  static absl::Duration AllOut() { return absl::Seconds(real_deadlines ? 25 : 10); }

 private:
  std::mt19937 random_{std::random_device()()};
  absl::Duration slowest_;
};

TEST_F(PretrainFaultPhasesTest, FaultsAreReportedInTimeAndNoProcessStays) {
  const std::vector<Case> cases = Cases();
  for (int i = 0; i < times; ++i) {
    for (const Case& c : cases) Try(c);
  }
  std::printf("%zu faults, %d times; the slowest end came after %s\n", cases.size(), times,
              absl::FormatDuration(slowest()).c_str());
}

// A step has two passes forward.
TEST_F(PretrainFaultPhasesTest, WithoutMemoryOrThreadsAProcessEndsWithALineAndACode) {
  const std::string log = Path("log.txt");
  const auto run = [&](Arguments command, const std::string& fault) {
    EXPECT_TRUE(PosixFileSystem().RemoveTree(Path("save")).ok());
    command[0] = ProgramPath("megatron/train/fault_tests/pretrain_gpt_with_faults");
    return FinishProgram(StartProgram(command, log, {{"MEGATRON_TEST_FAULT", fault}}), log);
  };
  for (const std::string kind : {"no_memory", "no_thread"}) {
    const std::string line =
        absl::StrCat("error: the system ",
                     kind == "no_memory" ? "gives this program no more memory" : "starts no more");
    const auto expect = [&](const Outcome& outcome, int code) {
      EXPECT_EQ(outcome.exit_code, code) << outcome.output;
      EXPECT_EQ(CountOf(outcome.output, line), 1) << outcome.output;
      EXPECT_FALSE(absl::StrContains(outcome.output, "terminate called")) << outcome.output;
    };
    expect(run(Command({}), kind + " forward 0 1"), kExitConfig);
    expect(run(Command({}), kind + " forward 0 6"), kExitPeerLost);
    // The rank is known as the one that failed, and the run may be started again.
    const Outcome several =
        run(CommandFor({{kind, false, {}}, "forward", false}), kind + " forward 2 6");
    expect(several, kExitPeerLost);
    EXPECT_TRUE(absl::StrContains(several.output, "rank 2 of world (")) << several.output;
  }
}

TEST_F(PretrainFaultPhasesTest, ARankThatStaysBehindIsNamedByTheLauncher) {
  for (const std::string kind : {"stop", "hang"}) {
    const std::string log = Path("log.txt");
    ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("save")).ok());
    const pid_t pid = StartProgram(CommandFor({{kind, false, {}}, "end", false}), log,
                                   {{"MEGATRON_TEST_FAULT", kind + " end 2 0"}});
    WaitFor("the fault begins", log);
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    const absl::Time begin = absl::Now();
    const Outcome outcome = FinishProgram(pid, log);
    EXPECT_LT(absl::Now() - begin, NamedBy());
    EXPECT_EQ(outcome.exit_code, kExitHang) << outcome.output;
    for (const pid_t rank : ranks) EXPECT_TRUE(HasEnded(rank));
    EXPECT_TRUE(absl::StrContains(outcome.output, "error: rank 2 was still there when another"))
        << outcome.output;
    EXPECT_TRUE(absl::StrContains(outcome.output, kind == "stop" ? "stopped for" : "asleep for"))
        << outcome.output;
  }
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    megatron::real_deadlines |= arg == "--real_deadlines";
    megatron::all_of_them |= arg == "--all";
    if (absl::StartsWith(arg, "--times=")) megatron::times = std::atoi(arg.c_str() + 8);
  }
  return RUN_ALL_TESTS();
}
