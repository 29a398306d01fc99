#include "megatron/comm/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/launch/children.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/launch/tcp_job.h"
#include "megatron/comm/process_group.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(60);

struct Launched {
  LaunchResult result;
  std::string output;
  absl::Duration took;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();  // empty where it is of a process that is gone
  return text.str();
}

std::string TempPath(const char* name) { return absl::StrCat(::testing::TempDir(), "/", name); }

Launched LaunchShell(int ranks, const std::string& script, LaunchOptions options = {}) {
  const std::string path = TempPath("output");
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  options.children.output = options.children.errors =
      open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const absl::Time begin = SteadyNow();
  const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
  close(options.children.output);
  EXPECT_THAT(result, IsOk());
  return {result.value_or(LaunchResult()), ReadFile(path), SteadyNow() - begin};
}

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

bool IsGone(const std::string& pid_file) {
  const std::string text = ReadFile(pid_file);
  EXPECT_FALSE(text.empty());
  // A zombie that its parent has yet to collect has ended too.
  const absl::Time until = SteadyNow() + kPatience;
  while (SteadyNow() < until) {
    const std::string stat = ReadFile(absl::StrCat("/proc/", std::stoi(text), "/stat"));
    if (stat.empty() || stat.find(") Z") != std::string::npos) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

TEST(LauncherTest, RanksGetTheirNumbersAndPrefixes) {
  const Launched launched = LaunchShell(
      3,
      "echo $MEGATRON_RANK/$MEGATRON_LOCAL_RANK of $MEGATRON_WORLD_SIZE >&2; printf 'no newline'");
  EXPECT_EQ(launched.result.exit_code, 0);
  EXPECT_EQ(launched.result.Describe(), "");
  EXPECT_THAT(
      Lines(launched.output),
      UnorderedElementsAre("[rank 0] 0/0 of 3", "[rank 0] no newline", "[rank 1] 1/1 of 3",
                           "[rank 1] no newline", "[rank 2] 2/2 of 3", "[rank 2] no newline"));
}

TEST(LauncherTest, LinesOfErrorsThatItTakesAreNotPassedOn) {
  LaunchOptions options;
  std::vector<std::string> taken;
  options.children.takes_line = [&](absl::string_view line) {
    const bool takes = absl::StartsWith(line, "take ");
    if (takes) taken.emplace_back(line);
    return takes;
  };
  const Launched launched = LaunchShell(
      2, "for line in 'take one' two; do echo $line; echo $line >&2; done; printf 'take end' >&2",
      std::move(options));
  EXPECT_EQ(launched.result.exit_code, 0);
  EXPECT_THAT(taken, UnorderedElementsAre("take one", "take one", "take end", "take end"));
  EXPECT_THAT(Lines(launched.output),
              UnorderedElementsAre("[rank 0] take one", "[rank 0] two", "[rank 0] two",
                                   "[rank 1] take one", "[rank 1] two", "[rank 1] two"));
}

TEST(LauncherTest, OutputThatCannotBeWrittenIsTold) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c", "echo text"};
  options.children.output = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (options.children.output < 0) GTEST_SKIP() << "this machine has no /dev/full";
  const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
  close(options.children.output);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 0);
  EXPECT_EQ(result->output_error, ENOSPC);
  EXPECT_EQ(LaunchShell(2, "echo text").result.output_error, 0);
}

TEST(LauncherTest, LongOutputArrivesWhole) {
  const Launched launched = LaunchShell(2, "seq 1 20000");
  EXPECT_EQ(launched.result.exit_code, 0);
  EXPECT_EQ(Lines(launched.output).size(), 40000u);
  EXPECT_THAT(launched.output, HasSubstr("[rank 1] 20000\n"));
}

// It prints faster than the launcher passes it on.
TEST(LauncherTest, ARankThatPrintsWithoutEndDoesNotHideThatAnotherHasFailed) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c", "test $MEGATRON_RANK = 1 && exit 21; exec yes"};
  options.children.grace = absl::Milliseconds(200);
  options.children.output = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
  close(options.children.output);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 21);
  EXPECT_THAT(result->killed, ElementsAre("rank 0"));
}

// A pipe for what a launcher in another process prints, which this process reads or not.
struct OutputPipe {
  OutputPipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end = ends[0];
    write_end = ends[1];
  }
  void WaitUntilFull() const {
    pollfd entry = {write_end, POLLOUT, 0};
    const absl::Time until = SteadyNow() + kPatience;
    while (poll(&entry, 1, 0) != 0 && SteadyNow() < until) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(poll(&entry, 1, 0), 0);
  }
  // Returns all that comes until everyone has closed the other end.
  std::string ReadAll() {
    close(write_end);
    std::string text;
    char bytes[4096];
    for (ssize_t got = 0; (got = read(read_end, bytes, sizeof(bytes))) > 0;)
      text.append(bytes, got);
    close(read_end);
    return text;
  }
  int read_end = -1, write_end = -1;
};

pid_t LaunchToPipe(const std::string& script, const OutputPipe& pipe) {
  const pid_t child = fork();
  if (child == 0) {
    close(pipe.read_end);
    LaunchOptions options;
    options.ranks = 2;
    options.children.output = options.children.errors = pipe.write_end;
    options.children.one_request = absl::ZeroDuration();
    options.command = {"sh", "-c", script};
    const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
    _exit(result.ok() ? result->exit_code : 99);
  }
  return child;
}

int ExitCodeOf(pid_t process) {
  int status = 0;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void WaitForFile(const std::string& path) {
  const absl::Time until = SteadyNow() + kPatience;
  while (ReadFile(path).empty() && SteadyNow() < until) absl::SleepFor(absl::Milliseconds(5));
}

TEST(LauncherTest, AReaderThatComesLateGetsAllLines) {
  OutputPipe pipe;
  const pid_t launcher =
      LaunchToPipe("seq 1 20000; head -c 20000 /dev/zero | tr '\\0' x; echo; echo end >&2", pipe);
  pipe.WaitUntilFull();
  const std::vector<std::string> lines = Lines(pipe.ReadAll());
  EXPECT_EQ(ExitCodeOf(launcher), 0);
  EXPECT_EQ(lines.size(), 40004u);
  for (const char* rank : {"[rank 0] ", "[rank 1] "}) {
    EXPECT_THAT(lines, Contains(absl::StrCat(rank, std::string(20000, 'x'))));
    EXPECT_THAT(lines, Contains(absl::StrCat(rank, "20000")));
    EXPECT_THAT(lines, Contains(absl::StrCat(rank, "end")));
  }
}

// Rank 1 prints without end; rank 0 says that the first request has come.
TEST(LauncherTest, ASecondSignalEndsRanksWhoseOutputNobodyReads) {
  const std::string ready = TempPath("ready_unread"), asked = TempPath("asked_unread");
  for (const std::string& path : {ready, asked}) std::remove(path.c_str());
  OutputPipe pipe;
  const pid_t launcher = LaunchToPipe(
      absl::StrCat("if test $MEGATRON_RANK = 1; then trap '' TERM; while ! test -s ", ready,
                   "; do sleep 0.01; done; exec yes; fi; trap 'echo yes > ", asked,
                   "' TERM; echo yes > ", ready, "; while true; do sleep 0.01; done"),
      pipe);
  pipe.WaitUntilFull();
  kill(launcher, SIGTERM);
  WaitForFile(asked);
  const bool heard = !ReadFile(asked).empty();
  EXPECT_TRUE(heard);
  kill(launcher, heard ? SIGTERM : SIGKILL);
  EXPECT_EQ(ExitCodeOf(launcher), 128 + SIGTERM);
  pipe.ReadAll();
}

TEST(LauncherTest, AFailureEndsTheOthersAndGivesItsCode) {
  LaunchOptions options;
  options.children.grace = absl::Milliseconds(200);
  const Launched launched =
      LaunchShell(3, "test $MEGATRON_RANK = 1 && exit 21; trap '' TERM; exec sleep 60", options);
  EXPECT_EQ(launched.result.exit_code, 21);
  EXPECT_EQ(launched.result.child, 1);
  EXPECT_THAT(launched.result.killed, ElementsAre("rank 0", "rank 2"));
  EXPECT_EQ(launched.result.Describe(),
            "rank 1 ended with code 21; after that rank 0, rank 2 did not end and were killed");
  EXPECT_LT(launched.took, absl::Seconds(5));
}

TEST(LauncherTest, ARankThatIsKilledIsNamedBeforeTheOneThatOnlyMissedIt) {
  LaunchOptions options;
  options.children.grace = absl::Milliseconds(200);
  for (const int code : {options.children.consequence_code, options.children.hang_code}) {
    const Launched launched = LaunchShell(
        2, absl::StrCat("test $MEGATRON_RANK = 0 && exit ", code, "; exec sleep 60"), options);
    EXPECT_EQ(launched.result.exit_code, code);
    EXPECT_EQ(
        launched.result.Describe(),
        absl::StrCat("rank 1 did not end and was killed, after rank 0 had ended with code ", code));
  }
}

// Rank 1 is killed at its first start; the others wait for its second one.
TEST(LauncherTest, ALostRankIsStartedAgainBesideTheOthers) {
  const std::string mark = TempPath("lost");
  unlink(mark.c_str());
  LaunchOptions options;
  options.children.grace = absl::Milliseconds(200);
  options.children.goes_on = true;
  options.children.replacements = 1;
  options.children.replacement_wait = absl::Milliseconds(50);
  std::vector<std::string> told;
  options.children.tell = [&](absl::string_view line) { told.emplace_back(line); };
  const std::string script =
      absl::StrCat("test $MEGATRON_RANK = 1 || while ! test -e ", mark,
                   "; do sleep 0.05; done; "
                   "test $MEGATRON_RANK = 1 && { test -e ",
                   mark, ".first && touch ", mark, "; touch ", mark, ".first; test -e ", mark,
                   " || kill -KILL $$; }; echo done $MEGATRON_RANK");
  unlink((mark + ".first").c_str());
  const Launched launched = LaunchShell(3, script, options);
  EXPECT_EQ(launched.result.exit_code, 0) << launched.result.Describe();
  EXPECT_THAT(Lines(launched.output),
              UnorderedElementsAre("[rank 0] done 0", "[rank 1] done 1", "[rank 2] done 2"));
  EXPECT_THAT(told, ElementsAre("rank 1 was ended by signal 9 (Killed); it is started again in "
                                "50ms (1 of 1)"));
}

// The launcher has no descriptors for the pipes of rank 1 when that is to be started again.
TEST(LauncherTest, ALostRankThatCannotBeStartedIsTriedAgain) {
  const std::string mark = TempPath("tried");
  unlink(mark.c_str());
  unlink((mark + ".first").c_str());
  LaunchOptions options;
  options.children.goes_on = true;
  options.children.replacements = 2;
  options.children.replacement_wait = absl::Milliseconds(10);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  std::vector<std::string> told;
  options.children.tell = [&](absl::string_view line) {
    told.emplace_back(line);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, told.size() == 1 ? &none : &before), 0);
  };
  const Launched launched = LaunchShell(
      2,
      absl::StrCat("if test $MEGATRON_RANK = 1; then test -e ", mark, ".first && exec touch ", mark,
                   "; touch ", mark, ".first; kill -KILL $$; fi; for i in $(seq 600); do test -e ",
                   mark, " && exit 0; sleep 0.05; done; exit 1"),
      options);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(launched.result.exit_code, 0) << launched.result.Describe();
  EXPECT_THAT(told, ElementsAre("rank 1 was ended by signal 9 (Killed); it is started again in "
                                "10ms (1 of 2)",
                                AllOf(StartsWith("rank 1 cannot be started: "),
                                      EndsWith("; it is started again in 10ms (2 of 2)"))));
}

// Rank 1 is killed, fails when it is started again, and comes up at the third start.
TEST(LauncherTest, ARankThatFailsWhenItIsStartedAgainDoesNotEndTheOthers) {
  const std::string starts = TempPath("starts");
  unlink(starts.c_str());
  LaunchOptions options;
  options.children.goes_on = true;
  options.children.replacements = 2;
  options.children.replacement_wait = absl::Milliseconds(10);
  std::vector<std::string> told;
  options.children.tell = [&](absl::string_view line) { told.emplace_back(line); };
  const std::string script =
      absl::StrCat("if test $MEGATRON_RANK = 1; then echo >> ", starts, "; case $(wc -l < ", starts,
                   ") in 1) kill -KILL $$;; 2) exit 20;; esac; exit 0; fi; for i in $(seq 600); do "
                   "test $(wc -l < ",
                   starts, ") = 3 && exit 0; sleep 0.05; done; exit 1");
  const Launched launched = LaunchShell(2, script, options);
  EXPECT_EQ(launched.result.exit_code, 0) << launched.result.Describe();
  EXPECT_THAT(told, ElementsAre("rank 1 was ended by signal 9 (Killed); it is started again in "
                                "10ms (1 of 2)",
                                "rank 1 ended with code 20; it is started again in 10ms (2 of 2)"));
  // The code is that of all where the others fail, too.
  unlink(starts.c_str());
  options.children.replacements = 1;
  EXPECT_EQ(LaunchShell(2,
                        absl::StrCat("if test $MEGATRON_RANK = 1; then echo >> ", starts,
                                     "; test $(wc -l < ", starts,
                                     ") = 1 && kill -KILL $$; exit 22; fi; for i in $(seq 600); do "
                                     "test $(wc -l < ",
                                     starts, ") = 2 && exit 22; sleep 0.05; done; exit 1"),
                        options)
                .result.exit_code,
            22);
}

TEST(LauncherTest, OthersGoOnWithoutALostRank) {
  LaunchOptions options;
  options.children.grace = absl::Milliseconds(200);
  options.children.goes_on = true;
  const Launched well =
      LaunchShell(2, "test $MEGATRON_RANK = 1 && kill -KILL $$; sleep 0.5; echo done", options);
  EXPECT_EQ(well.result.exit_code, 0) << well.result.Describe();
  EXPECT_EQ(well.output, "[rank 0] done\n");
  // The lost rank is the cause where the others can't go on.
  const Launched badly =
      LaunchShell(2, "test $MEGATRON_RANK = 1 && kill -KILL $$; sleep 0.5; exit 30", options);
  EXPECT_EQ(badly.result.Describe(), "rank 1 was ended by signal 9 (Killed)");
  const Launched all = LaunchShell(2, "kill -KILL $$", options);
  EXPECT_EQ(all.result.exit_code, 128 + SIGKILL);
  // Other failures end all.
  EXPECT_EQ(
      LaunchShell(2, "test $MEGATRON_RANK = 1 && exit 21; sleep 60", options).result.exit_code, 21);
}

// A rank that is just starting, as in the place of a lost one, does not listen to signals yet.
TEST(LauncherTest, ARankThatARequestEndsAtOnceLeavesTheOthersTheirTime) {
  LaunchOptions options;
  options.children.grace = absl::Milliseconds(100);
  options.children.goes_on = true;
  const std::string ready = TempPath("starting");
  std::remove(ready.c_str());
  const Launched launched = LaunchShell(
      2,
      absl::StrCat("if test $MEGATRON_RANK = 1; then touch ", ready,
                   "; exec sleep 60; fi; trap 'sleep 1; exit 10' TERM; while ! test -e ", ready,
                   "; do sleep 0.01; done; kill -TERM $PPID; while true; do sleep 0.01; done"),
      options);
  EXPECT_EQ(launched.result.exit_code, 10) << launched.result.Describe();
  EXPECT_THAT(launched.result.killed, IsEmpty());
  // Where nobody ends in good order the signal is the end.
  EXPECT_EQ(LaunchShell(2, "test $MEGATRON_RANK = 1 && kill -TERM $PPID; exec sleep 60", options)
                .result.exit_code,
            128 + SIGTERM);
}

// Rank 0 ends in good order once the launcher has collected rank 1, which only the request kills.
TEST(LauncherTest, ARankThatIsLostWhenAllAreAskedToEndLeavesTheOthersTheirTime) {
  const std::string pid_file = TempPath("lost_when_asked");
  std::remove(pid_file.c_str());
  LaunchOptions options;
  options.children.goes_on = true;
  const std::string script =
      absl::StrCat("if test $MEGATRON_RANK = 1; then trap 'kill -KILL $$' TERM; echo $$ > ",
                   pid_file, "; while true; do sleep 0.01; done; fi; while ! test -s ", pid_file,
                   "; do sleep 0.01; done; trap 'while kill -0 $(cat ", pid_file,
                   ") 2>/dev/null; do sleep 0.01; done; exit CODE' TERM; kill -TERM $PPID; "
                   "while true; do sleep 0.01; done");
  const auto launch = [&](const char* code) {
    std::remove(pid_file.c_str());
    return LaunchShell(2, absl::StrReplaceAll(script, {{"CODE", code}}), options).result;
  };
  const LaunchResult well = launch("10");
  EXPECT_EQ(well.exit_code, 10) << well.Describe();
  EXPECT_THAT(well.killed, IsEmpty());
  // The lost rank is the cause where the others can't end without it.
  EXPECT_EQ(launch("30").exit_code, 128 + SIGKILL);
}

// A process that has a tracer does not end for its parent before the tracer has seen it.
TEST(LauncherTest, ARankThatDoesNotEndAlthoughItWasKilledIsToldOf) {
  const std::string pid_file = TempPath("traced_pid"), traced = TempPath("traced"),
                    told = TempPath("told");
  for (const std::string& path : {pid_file, traced, told}) std::remove(path.c_str());
  const pid_t launcher = fork();
  if (launcher == 0) {
    LaunchOptions options;
    options.ranks = 2;
    options.children.grace = absl::Milliseconds(1);
    options.children.kill_patience = absl::Milliseconds(10);
    options.children.tell = [&](absl::string_view line) {
      std::ofstream(told, std::ios::app) << line << "\n";
    };
    options.command = {"sh", "-c",
                       absl::StrCat("if test $MEGATRON_RANK = 1; then while ! test -s ", traced,
                                    "; do sleep 0.01; done; exit 21; fi; echo $$ > ", pid_file,
                                    "; exec sleep 1000")};
    const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
    _exit(result.ok() ? result->exit_code : 99);
  }
  WaitForFile(pid_file);
  const pid_t rank = std::stoi(ReadFile(pid_file));
  if (ptrace(PTRACE_SEIZE, rank, nullptr, nullptr) != 0) {
    kill(launcher, SIGKILL);
    ExitCodeOf(launcher);
    GTEST_SKIP() << "this machine does not let a process trace another";
  }
  std::ofstream(traced) << "yes\n";
  WaitForFile(told);
  EXPECT_THAT(ReadFile(told),
              StartsWith(absl::StrCat("rank 0 (process ", rank,
                                      ") was killed and has not ended for 10ms: ")));
  EXPECT_EQ(waitpid(rank, nullptr, __WALL), rank);
  EXPECT_EQ(ExitCodeOf(launcher), 21);
  EXPECT_EQ(Lines(ReadFile(told)).size(), 1u);
}

TEST(LauncherTest, TheDefaultGraceEndsAllWithinFiveSeconds) {
  const Launched launched = LaunchShell(2, "test $MEGATRON_RANK = 1 && exit 23; exec sleep 60");
  EXPECT_EQ(launched.result.exit_code, 23);
  EXPECT_LT(launched.took, absl::Seconds(5));
}

TEST(LauncherTest, ARankThatIsStoppedWhenOthersHaveLeftIsNamed) {
  LaunchOptions options;
  options.children.idle_limit = absl::Seconds(1);
  const Launched launched =
      LaunchShell(3, "if test $MEGATRON_RANK = 2; then kill -STOP $$; fi; exit 0", options);
  EXPECT_EQ(launched.result.exit_code, 31);
  EXPECT_EQ(launched.result.Describe(),
            "rank 2 was still there when another one had ended, and has been stopped for 1s");
  EXPECT_LT(launched.took, absl::Seconds(5));
}

TEST(LauncherTest, ARankThatIsStoppedWhileOthersWaitIsNamedIfAskedFor) {
  LaunchOptions options;
  options.children.stop_limit = absl::Seconds(2);
  const Launched launched = LaunchShell(
      3, "if test $MEGATRON_RANK = 2; then kill -STOP $$; fi; exec sleep 1000", options);
  EXPECT_EQ(launched.result.exit_code, 31);
  EXPECT_THAT(launched.result.Describe(), StartsWith("rank 2 has been stopped for 2s"));
  EXPECT_LT(launched.took, absl::Seconds(10));
}

TEST(LauncherTest, NoRankIsNamedIfAllAreStopped) {
  LaunchOptions options;
  options.children.stop_limit = absl::Seconds(1);
  const Launched launched =
      LaunchShell(2, "pid=$$; (sleep 3.5; kill -CONT $pid) & kill -STOP $$; exit 0", options);
  EXPECT_EQ(launched.result.exit_code, 0);
}

TEST(LauncherTest, ARankThatSleepsWhenOthersHaveLeftIsNamedIfAskedFor) {
  LaunchOptions options;
  const std::string script = "if test $MEGATRON_RANK = 0; then sleep 3; fi; exit 10";
  EXPECT_EQ(LaunchShell(2, script, options).result.exit_code, 10);
  options.children.idle_limit = absl::Seconds(1);
  const Launched launched = LaunchShell(2, script, options);
  EXPECT_EQ(launched.result.exit_code, 31);
  EXPECT_THAT(launched.result.Describe(), HasSubstr("rank 0 was still there when"));
  EXPECT_THAT(launched.result.Describe(), HasSubstr("asleep for 1s"));
}

TEST(LauncherTest, ARankThatWorksWhenOthersHaveLeftIsWaitedFor) {
  LaunchOptions options;
  options.children.idle_limit = absl::Seconds(1);
  // The process that works was started by the rank.
  const Launched launched = LaunchShell(2,
                                        "test $MEGATRON_RANK = 0 && exit 0; timeout --foreground 3 "
                                        "sh -c 'while :; do :; done'; exit 0",
                                        options);
  EXPECT_EQ(launched.result.exit_code, 0) << launched.result.Describe();
  EXPECT_GE(launched.took, absl::Seconds(3));
}

TEST(LauncherTest, TheSignalThatEndedARankIsTheCauseNotItsConsequences) {
  // Rank 0 ends first, but only because it misses rank 1.
  const Launched launched =
      LaunchShell(2, "if test $MEGATRON_RANK = 0; then exit 30; fi; sleep 0.2; kill -9 $$");
  EXPECT_EQ(launched.result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(launched.result.child, 1);
  EXPECT_EQ(launched.result.signal, SIGKILL);
  EXPECT_THAT(launched.result.Describe(), HasSubstr("rank 1 was ended by signal 9"));
  EXPECT_THAT(launched.result.killed, IsEmpty());
}

TEST(LauncherTest, OrderlyCodesLetTheOthersFinish) {
  LaunchOptions options;
  options.children.grace = absl::Milliseconds(1);
  const Launched launched =
      LaunchShell(2, "test $MEGATRON_RANK = 1 && exit 10; sleep 0.3; echo saved; exit 10", options);
  EXPECT_EQ(launched.result.exit_code, 10);
  EXPECT_THAT(launched.result.killed, IsEmpty());
  EXPECT_EQ(launched.output, "[rank 0] saved\n");
}

TEST(LauncherTest, AnotherChildTakesThePlaceOfALostOne) {
  const std::string here = TempPath("here");
  std::remove(here.c_str());
  LaunchOptions options;
  options.children.goes_on = true;
  options.children.is_lost = [](int code) { return code == 77; };
  options.children.replacements = 1;
  options.children.replacement_wait = absl::Milliseconds(10);
  options.children.replacement = [&](size_t index) {
    EXPECT_EQ(index, 1u);
    Child child;
    child.name = "the spare";
    child.prefix = "[spare] ";
    child.command = {"sh", "-c", absl::StrCat("echo comes; echo yes > ", here)};
    child.environment = ProcessEnvironment();
    return child;
  };
  std::string told;
  options.children.tell = [&](absl::string_view line) { told = std::string(line); };
  const Launched launched =
      LaunchShell(2,
                  absl::StrCat("test $MEGATRON_RANK = 1 && exit 77; while test ! -s ", here,
                               "; do sleep 0.01; done"),
                  options);
  EXPECT_EQ(launched.result.exit_code, 0) << launched.result.Describe();
  EXPECT_EQ(launched.output, "[spare] comes\n");
  EXPECT_EQ(told, "rank 1 ended with code 77; the spare takes its place in 10ms (1 of 1)");
}

// As ssh does while it waits for its host.
TEST(LauncherTest, AChildThatDoesNotReadItsInputDoesNotKeepOthersWaiting) {
  const std::string path = TempPath("length");
  std::remove(path.c_str());
  std::vector<Child> children(3);
  children[0].command = {"sh", "-c", "exec sleep 1000"};
  children[1].command = {"sh", "-c", absl::StrCat("sleep 0.1; head -c 3000000 | wc -c > ", path)};
  children[2].command = {"sh", "-c",
                         absl::StrCat("while test ! -s ", path, "; do sleep 0.05; done; exit 21")};
  for (Child& child : children) child.environment = ProcessEnvironment();
  children[0].input = children[1].input = std::string(3000000, 'x');
  ChildrenOptions options;
  options.grace = absl::Milliseconds(100);
  const absl::StatusOr<LaunchResult> result = RunChildren(std::move(children), options);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 21);
  EXPECT_THAT(ReadFile(path), HasSubstr("3000000"));
}

TEST(LauncherTest, ARankThatWasCutOffUntilTheOthersHadEndedIsNoFailure) {
  LaunchOptions options;
  options.children.goes_on = true;
  const char* const script = "test $MEGATRON_RANK = 0 && exit 0; sleep 0.3; exit 30";
  EXPECT_EQ(LaunchShell(2, script, options).result.exit_code, 0);
  options.children.goes_on = false;
  EXPECT_EQ(LaunchShell(2, script, options).result.exit_code, 30);
}

TEST(LauncherTest, ChildrenOfARankEndWithIt) {
  const std::string pid_file = TempPath("grandchild");
  const Launched launched =
      LaunchShell(1, absl::StrCat("sleep 1000 >/dev/null 2>&1 & echo $! > ", pid_file, "; exit 0"));
  EXPECT_EQ(launched.result.exit_code, 0);
  EXPECT_TRUE(IsGone(pid_file));
}

// Runs in its own process, which can be signalled.
pid_t LaunchInChild(const std::string& script, absl::Duration idle_limit = {},
                    bool serves_store = false) {
  const pid_t child = fork();
  if (child == 0) {
    LaunchOptions options;
    options.ranks = 2;
    options.children.idle_limit = idle_limit;
    options.children.one_request = absl::ZeroDuration();
    options.serves_store = serves_store;
    options.command = {"sh", "-c", script};
    const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
    _exit(result.ok() ? result->exit_code : 99);
  }
  return child;
}

TEST(LauncherTest, SignalsArePassedOn) {
  const std::string ready = TempPath("ready");
  for (const bool serves_store : {false, true}) {  // a thread beside the launcher takes none
    for (const char* rank : {"0", "1"}) std::remove((ready + rank).c_str());
    const pid_t launcher =
        LaunchInChild(absl::StrCat("trap 'exit 10' TERM; echo yes > ", ready,
                                   "$MEGATRON_RANK; while true; do sleep 0.01; done"),
                      /*idle_limit=*/{}, serves_store);
    WaitForFile(ready + "0");
    WaitForFile(ready + "1");
    kill(launcher, SIGTERM);
    int status = 0;
    ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 10);
  }
}

// The rank has ended before the launcher looks again, and both wait for it then.
TEST(LauncherTest, AHangupThatIsIgnoredAsksForNothing) {
  const auto before = signal(SIGHUP, SIG_IGN);
  const Launched launched = LaunchShell(1, "kill -HUP $PPID; exit 3");
  signal(SIGHUP, before);
  EXPECT_EQ(launched.result.asked, 0);
  EXPECT_EQ(launched.result.exit_code, 3);
}

TEST(LauncherTest, ASecondSignalIsTheCauseOfTheEnd) {
  const std::string ready = TempPath("deaf_ready"), asked = TempPath("deaf_asked");
  for (const std::string& path : {ready, asked}) {
    for (const char* rank : {"0", "1"}) std::remove((path + rank).c_str());
  }
  const pid_t launcher =
      LaunchInChild(absl::StrCat("trap 'echo yes > ", asked, "$MEGATRON_RANK' TERM; echo yes > ",
                                 ready, "$MEGATRON_RANK; while true; do sleep 0.01; done"));
  WaitForFile(ready + "0");
  WaitForFile(ready + "1");
  kill(launcher, SIGTERM);
  WaitForFile(asked + "0");
  WaitForFile(asked + "1");
  kill(launcher, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

// The rank sends the second signal once it has got the first one, and ends when it has got what it
// sends after that.
TEST(LauncherTest, ASecondSignalOfTheSameRequestEndsNothing) {
  LaunchOptions options;
  options.children.one_request = absl::Hours(1);
  const Launched launched =
      LaunchShell(1,
                  "trap 'asked=yes' TERM; trap 'end=yes' USR1; kill -TERM $PPID; "
                  "while test -z \"$asked\"; do sleep 0.01; done; kill -INT $PPID; "
                  "kill -USR1 $PPID; while test -z \"$end\"; do sleep 0.01; done; exit 10",
                  options);
  EXPECT_EQ(launched.result.exit_code, 10) << launched.result.Describe();
  EXPECT_FALSE(launched.result.asked_twice);
  EXPECT_EQ(launched.result.asked, SIGTERM);
}

TEST(LauncherTest, RanksEndWithAKilledLauncher) {
  const std::string pid_file = TempPath("pid");
  for (const char* rank : {"0", "1"}) std::remove((pid_file + rank).c_str());
  const pid_t launcher =
      LaunchInChild(absl::StrCat("echo $$ > ", pid_file, "$MEGATRON_RANK; exec sleep 1000"));
  WaitForFile(pid_file + "0");
  WaitForFile(pid_file + "1");
  kill(launcher, SIGKILL);
  ASSERT_EQ(waitpid(launcher, nullptr, 0), launcher);
  EXPECT_TRUE(IsGone(pid_file + "0"));
  EXPECT_TRUE(IsGone(pid_file + "1"));
}

TEST(LauncherTest, ALauncherThatWasStoppedDoesNotCountItsRanksAsIdle) {
  const pid_t launcher =
      LaunchInChild("test $MEGATRON_RANK = 0 || sleep 3.8; exit 0", absl::Seconds(2));
  absl::SleepFor(absl::Milliseconds(500));
  kill(launcher, SIGSTOP);
  absl::SleepFor(absl::Seconds(3));
  kill(launcher, SIGCONT);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(LauncherTest, AProgramThatDoesNotExistIsAFailure) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"/nonexistent/program"};
  const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->exit_code, 127);
  options.command.clear();
  EXPECT_THAT(LaunchRanks(options), StatusIs(absl::StatusCode::kInvalidArgument));
}

// This test's own program is the ranks' program: see main.
TEST(LauncherTest, RanksMeetThroughTheirEnvironment) {
  LaunchOptions options;
  options.ranks = 3;
  options.command = {"/proc/self/exe", "--be_a_rank"};
  for (const bool serves_store : {false, true}) {
    options.serves_store = serves_store;
    const absl::StatusOr<LaunchResult> result = LaunchRanks(options);
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->exit_code, 0) << result->Describe();
  }
}

int BeARank() {
  const auto launch = ReadLaunchEnvironment(ProcessEnvironment());
  const auto secret = JobSecretFromEnvironment(ProcessEnvironment());
  if (!launch.ok() || !secret.ok()) return 1;
  const auto job = TcpJob::Join(*launch, *secret);
  if (!job.ok()) return 2;
  const ProcessGroup world((*job)->world().communicator());
  ThreadPool pool(1);
  int32_t sum = launch->rank + 1;
  world.AllReduce(Tensor(&sum, DType::kInt32, {1}), ReduceOp::kSum, Stream::Cpu(&pool));
  return world.status().ok() && sum == 6 ? 0 : 3;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--be_a_rank") return megatron::BeARank();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
