// Tests faults of ranks in any phase: they are found in time and reported once, with what every
// live rank was doing, and no process stays behind. Deadlines are a tenth of the defaults, unless
// the test is run with --real_deadlines.

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

bool real_deadlines = false;

Arguments Deadlines() {
  if (real_deadlines) return {};
  return {"--set=parallel.heartbeat_timeout_seconds=1",
          "--set=parallel.stuck_rank_timeout_seconds=1"};
}
// The time in which all ranks must have ended: 25 s, or with short deadlines a tenth of the time
// for finding the fault and all of the time for ending.
absl::Duration AllOut() { return absl::Seconds(real_deadlines ? 25 : 12); }

const Arguments kThreads = {"--set=parallel.ranks_as=threads"};
const Arguments kProcesses = {"--set=parallel.ranks_as=processes"};
const Arguments kFourRanks = {"--set=train.micro_batch_size=1",
                              "--set=parallel.pipeline_model_parallel_size=2",
                              "--set=parallel.data_parallel_size=2"};
// These settings make each phase take much of the time.
const Arguments kEvaluating = {"--set=train.eval_interval=2"};
const Arguments kSaving = {"--set=checkpoint.save_interval=3", "--set=checkpoint.keep_last=1"};

// Stops one thread of another process, as if it hung, until that process ends.
class HungThread {
 public:
  explicit HungThread(pid_t thread)
      : tracer_([thread] {
          // ptrace's tracer is a thread, not a process.
          ASSERT_EQ(ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0) << strerror(errno);
          ASSERT_EQ(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0);
          int status = 0;
          while (waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status)) {
          }
        }) {}
  ~HungThread() { tracer_.join(); }

 private:
  std::thread tracer_;
};

std::vector<pid_t> ThreadsOf(pid_t pid) {
  const auto names = PosixFileSystem().List(absl::StrCat("/proc/", pid, "/task"));
  EXPECT_TRUE(names.ok()) << names.status();
  std::vector<pid_t> threads;
  for (const std::string& name : *names) threads.push_back(std::stoi(name));
  std::sort(threads.begin(), threads.end());
  return threads;
}

pid_t RankThreadOf(pid_t process, int rank) {
  for (const pid_t thread : ThreadsOf(process)) {
    const std::string name =
        ReadTextFile(absl::StrCat("/proc/", process, "/task/", thread, "/comm"));
    if (name == absl::StrCat("rank ", rank, "\n")) return thread;
  }
  ADD_FAILURE() << "no thread of rank " << rank;
  return -1;
}

class PretrainFaultsTest : public PretrainProgramTest {
 protected:
  // Starts four ranks that train without end, and returns some time after their first steps.
  pid_t StartEndless(const Arguments& ranks_as, const Arguments& deadlines = Deadlines()) {
    const pid_t pid = Start(
        Joined(Joined(Joined(ranks_as, deadlines), Joined(kFourRanks, kEvaluating)),
               {SaveTo("save"), "--set=train.train_iters=100000", "--set=train.log_interval=1"}),
        log_);
    WaitFor(" iteration ", log_);
    absl::SleepFor(absl::Milliseconds(random_() % 400));
    return pid;
  }

  // Expects that all ranks end in time, and that the fault is reported once. Returns the output.
  std::string ExpectTheEnd(pid_t pid, int code) {
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    const absl::Time begin = SteadyNow();
    while (!HasEnded(pid) && SteadyNow() < begin + 2 * AllOut()) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_LT(SteadyNow() - begin, AllOut());
    if (!HasEnded(pid)) kill(pid, SIGKILL);
    const Outcome outcome = FinishProgram(pid, log_);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    for (const pid_t rank : ranks) EXPECT_TRUE(HasEnded(rank));
    EXPECT_EQ(CountOf(outcome.output, "what the ranks were at:"), 1) << outcome.output;
    return outcome.output;
  }

  static void ExpectToSay(const std::vector<std::string>& texts, const std::string& output) {
    for (const std::string& text : texts) {
      EXPECT_TRUE(absl::StrContains(output, text)) << text << "\n" << output;
    }
  }

  const std::string log_ = Path("log.txt");
  std::mt19937 random_{std::random_device()()};
};

TEST_F(PretrainFaultsTest, AKilledRank) {
  for (int victim = 0; victim < 4; ++victim) {
    const pid_t pid = StartEndless(Joined(kProcesses, kSaving));
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    ASSERT_EQ(ranks.size(), 4u);
    const absl::Time begin = SteadyNow();
    kill(ranks[victim], SIGKILL);
    const std::string output = ExpectTheEnd(pid, kExitPeerLost);
    EXPECT_LT(SteadyNow() - begin, absl::Seconds(5));
    ExpectToSay({absl::StrCat("rank ", victim, " of world ("), "is lost: its connection ended",
                 absl::StrCat("rank ", victim, " could not be asked"),
                 absl::StrCat("rank ", (victim + 1) % 4, " on "), ", process ", ": iteration ",
                 absl::StrCat("rank ", victim, " was ended by signal 9 (Killed)"), "  thread ",
                 "megatron::PretrainRank"},
                output);
  }
}

TEST_F(PretrainFaultsTest, AStoppedRank) {
  for (const int victim : {0, 3}) {
    const pid_t pid = StartEndless(Joined(kProcesses, kSaving));
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    ASSERT_EQ(ranks.size(), 4u);
    kill(ranks[victim], SIGSTOP);
    ExpectToSay(
        {absl::StrCat("rank ", victim, " of world ("), "has given no sign of life",
         absl::StrCat("rank ", victim, " could not be asked"), "megatron::PretrainRank",
         absl::StrCat("\nerror: rank ", victim, " did not end and was killed, after rank ")},
        ExpectTheEnd(pid, kExitHang));
  }
}

// One of two machines is lost, with the rank that would have reported what all ranks were doing.
TEST_F(PretrainFaultsTest, RanksThatAreLostTogether) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const pid_t pid = StartEndless(kProcesses);
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    ASSERT_EQ(ranks.size(), 4u);
    for (const int victim : {1, 0}) kill(ranks[victim], signal);
    ExpectToSay({"error: rank ", "rank 0 could not be asked", "rank 1 could not be asked",
                 "rank 2 on ", "rank 3 on ", "megatron::PretrainRank"},
                ExpectTheEnd(pid, signal == SIGKILL ? kExitPeerLost : kExitHang));
  }
}

TEST_F(PretrainFaultsTest, AStuckRankThatIsAProcess) {
  for (const int victim : {1, 2}) {
    const pid_t pid = StartEndless(kProcesses);
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    ASSERT_EQ(ranks.size(), 4u);
    const HungThread hung(ranks[victim]);
    ExpectToSay({absl::StrCat("error: rank ", victim, " on "), " is stuck: nothing has moved for ",
                 " in iteration ", "does not answer: it is stopped", "megatron::PretrainRank"},
                ExpectTheEnd(pid, kExitHang));
  }
}

TEST_F(PretrainFaultsTest, AStuckRankThatIsAThread) {
  for (int trial = 0; trial < 2; ++trial) {
    const pid_t pid = StartEndless(kThreads);
    const HungThread hung(RankThreadOf(pid, 1 + trial));
    ExpectToSay({"error: rank ", " is stuck: nothing has moved for ", " was in ",
                 "does not answer: it is stopped", "rank 0 on ", "rank 3 on "},
                ExpectTheEnd(pid, kExitHang));
  }
}

TEST_F(PretrainFaultsTest, ARankThatIsLateForACallIsNamedWithTheCall) {
  const Arguments late = {"--set=parallel.stuck_rank_timeout_seconds=0",
                          "--set=parallel.distributed_timeout_seconds_after_init=2"};
  for (const Arguments& ranks_as : {kThreads, kProcesses}) {
    const pid_t pid = StartEndless(ranks_as, late);
    const std::vector<pid_t> ranks = ChildrenOf(pid);
    const HungThread hung(ranks.empty() ? RankThreadOf(pid, 1) : ranks[1]);
    // If the rank hangs in the middle of a call, no rank is missing from the call.
    ExpectToSay({"after 2s still ", "world rank ", " was in "}, ExpectTheEnd(pid, kExitHang));
  }
}

TEST_F(PretrainFaultsTest, ResumedJobsContinue) {
  const pid_t pid = StartEndless(kProcesses);
  std::vector<pid_t> all = ChildrenOf(pid);
  all.push_back(pid);
  for (const pid_t each : all) kill(each, SIGSTOP);
  absl::SleepFor(absl::Seconds(3));
  for (const pid_t each : all) kill(each, SIGCONT);
  absl::SleepFor(absl::Seconds(2));
  EXPECT_FALSE(HasEnded(pid)) << ReadTextFile(log_);
  kill(pid, SIGTERM);
  EXPECT_EQ(FinishProgram(pid, log_).exit_code, kExitSavedOnSignal) << ReadTextFile(log_);
}

// Connects to the rendezvous as a stranger that misbehaves in way `kind`.
void Disturb(const Endpoint& at, int kind, std::mt19937* random) {
  const absl::StatusOr<Socket> socket = ConnectTcp(at, SteadyNow() + absl::Seconds(10));
  if (!socket.ok()) return;  // a refused connection does no harm either
  std::string bytes(kind % 5 == 0 ? 0 : (*random)() % 300, '\0');
  for (char& c : bytes) c = static_cast<char>((*random)());
  if (kind % 5 == 2) bytes = std::string("MGTN\x01\0\0\0", 8) + bytes;
  if (kind % 5 == 3) bytes = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  if (kind % 5 == 4) bytes = std::string(8, '\xff') + bytes;
  (void)!send(socket->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

TEST_F(PretrainFaultsTest, TenThousandHostileConnectionsChangeNothing) {
  std::ofstream(Path("secret")) << JobSecret::Random().ToHex();
  ASSERT_EQ(chmod(Path("secret").c_str(), 0600), 0);
  const auto free_port = [] {
    const auto listener = ListenTcp({"127.0.0.1", 0});
    return LocalEndpoint(*listener)->port;
  };
  const Endpoint master = {"127.0.0.1", free_port()};
  const Arguments args = {"--set=parallel.data_parallel_size=2", "--set=train.micro_batch_size=1",
                          "--set=train.train_iters=100000", "--set=train.log_interval=1"};
  std::vector<pid_t> pids;
  for (const char* rank : {"0", "1"}) {
    pids.push_back(StartProgram(Command(Joined({SaveTo("disturbed")}, args)), Path(rank),
                                {{"RANK", rank},
                                 {"WORLD_SIZE", "2"},
                                 {"LOCAL_RANK", rank},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", master.host},
                                 {"MASTER_PORT", absl::StrCat(master.port)},
                                 {"MEGATRON_JOB_SECRET_FILE", Path("secret")}}));
  }
  std::mt19937 random(7);
  // The disturbances begin before the ranks have met.
  for (int i = 0; i < 10000; ++i) Disturb(master, i, &random);
  WaitFor("iteration        3/", Path("1"));
  for (const pid_t pid : pids) kill(pid, SIGTERM);
  EXPECT_EQ(FinishProgram(pids[0], Path("0")).exit_code, kExitSavedOnSignal)
      << ReadTextFile(Path("0"));
  const Outcome outcome = FinishProgram(pids[1], Path("1"));
  ASSERT_EQ(outcome.exit_code, kExitSavedOnSignal) << outcome.output;
  const int iteration =
      std::stoi(ReadTextFile(Path("disturbed/latest_checkpointed_iteration.txt")));
  ASSERT_EQ(
      Run(Joined({SaveTo("alone"), absl::StrCat("--set=train.exit_interval=", iteration)}, args))
          .exit_code,
      kExitDone);
  ExpectEqualCheckpoints("alone", "disturbed");
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  megatron::real_deadlines = argc > 1 && std::string(argv[1]) == "--real_deadlines";
  return RUN_ALL_TESTS();
}
