// Federated runs as real processes: islands with a server that learns the sum of their updates.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/islands/frame_tap.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "tools/islands_harness.h"

namespace megatron {
namespace {

const Arguments kFederated = {"--set=federated.clip_norm=4"};
// So little noise that training goes on.
const Arguments kNoised = {"--set=federated.clip_norm=0.01", "--set=federated.noise_multiplier=1",
                           "--set=federated.max_epsilon=7.2"};

class FederatedTest : public IslandsProgramTest {
 protected:
  void StartFederated(const Arguments& more = {}, const std::string& listen = "127.0.0.1:0") {
    StartServer(Joined({"--clip_norm=4", "--min_islands=2"}, more), listen);
  }
  // An island that connects to the relay.
  pid_t StartBehind(const FrameTap& tap, int number, const Arguments& more = {}) const {
    return StartIsland(number,
                       Joined(Joined(kFederated, {absl::StrCat("--set=diloco.server_address=\"",
                                                               tap.address(), "\"")}),
                              more));
  }
  std::string ServerLog() const { return ReadTextFile(Path("server.txt")); }

  // The largest difference of two checkpoints' weights, which are fp32.
  double Distance(const std::map<std::string, std::string>& a,
                  const std::map<std::string, std::string>& b) {
    double most = 0;
    EXPECT_EQ(a.size(), b.size());
    for (const auto& [name, bytes] : a) {
      const std::string& others = b.at(name);
      EXPECT_EQ(bytes.size(), others.size()) << name;
      for (size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
        float x, y;
        std::memcpy(&x, &bytes[i], sizeof(x));
        std::memcpy(&y, &others[i], sizeof(y));
        most = std::max(most, std::fabs(static_cast<double>(x) - y));
      }
    }
    return most;
  }
  void RemoveRun() {
    StopServer();
    PosixFileSystem().Remove(Path("state")).IgnoreError();
    for (const char* name : {"island0", "island1"})
      ASSERT_TRUE(PosixFileSystem().RemoveTree(Path(name)).ok());
  }
};

TEST_F(FederatedTest, IslandsTrainAsPlainOnesDoWhateverTheirLayout) {
  StartServer({"--min_islands=2"});
  pid_t a = StartIsland(0), b = StartIsland(1);
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  const auto plain = WeightsOf("island0");
  RemoveRun();

  StartFederated();
  a = StartIsland(0, kFederated);
  b = StartIsland(1, kFederated);
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  EXPECT_EQ(CountOf(ReadTextFile(LogOf(0)), ": islands 0, 1; "), 3) << ReadTextFile(LogOf(0));
  const auto federated = WeightsOf("island0");
  EXPECT_EQ(WeightsOf("island1"), federated);
  // A unit is 5e-7, and the steps on slightly other weights differ slightly.
  EXPECT_GT(Distance(federated, plain), 0);
  EXPECT_LT(Distance(federated, plain), 1e-4);
  RemoveRun();

  StartFederated();
  a = StartIsland(0, Joined(kFederated, {"--set=parallel.tensor_model_parallel_size=2"}));
  b = StartIsland(1, Joined(kFederated, {"--set=parallel.data_parallel_size=2",
                                         "--set=train.micro_batch_size=1",
                                         "--set=parallel.use_distributed_optimizer=true"}));
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  EXPECT_EQ(WeightsOf("island1"), WeightsOf("island0"));
  EXPECT_LT(Distance(WeightsOf("island0"), federated), 1e-4);
}

TEST_F(FederatedTest, WithOneIslandLostARoundOfTwoFailsAndTheRunsGoOn) {
  StartFederated();
  pid_t b = -1;
  std::atomic<bool> killed{false};
  const FrameTap tap(address_, [&](const IslandMessage& message) {
    if (message.kind != IslandMessageKind::kPut || message.content != IslandContent::kMasked ||
        message.round != 1 || killed.exchange(true))
      return true;
    kill(b, SIGKILL);
    return false;
  });
  const Arguments longer = {"--set=train.train_iters=24"};
  const pid_t a = StartIsland(0, Joined(kFederated, longer));
  b = StartBehind(tap, 1, Joined(longer, {"--set=checkpoint.save_interval=1"}));
  FinishProgram(b, LogOf(1));
  EXPECT_TRUE(killed.load()) << ReadTextFile(LogOf(1));
  WaitFor("outer round 2: no outer step (secure sum of run ", LogOf(0));
  b = StartIsland(1, Joined(kFederated, Joined(longer, {"--set=checkpoint.save_interval=1"})));
  // It has as many rounds left, or one more, and the last one has no other island.
  WaitFor("outer round 5: islands 0, 1; ", LogOf(1));
  ExpectEnd(a, 0);
  Kill(b, 1);
  EXPECT_EQ(CountOf(ServerLog(), "has no outer step"), 1) << ServerLog();
}

TEST_F(FederatedTest, AnIslandAndTheServerAreKilledAtEachStepAndTheOthersGoOn) {
  // A round begins with three islands, and two are enough for its sum.
  StartFederated({"--min_islands=3"});
  pid_t c = -1;
  std::atomic<IslandMessageKind> deadly{IslandMessageKind::kShare};
  const FrameTap tap(address_, [&](const IslandMessage& message) {
    IslandMessageKind kind = message.kind;
    if (kind == IslandMessageKind::kPut && message.content != IslandContent::kMasked) return true;
    if (!deadly.compare_exchange_strong(kind, IslandMessageKind::kValues)) return true;
    kill(c, SIGKILL);
    return false;
  });
  const Arguments longer = {"--set=train.train_iters=40", "--set=diloco.num_islands=0"};
  const Arguments federated = Joined(kFederated, longer);
  const pid_t a = StartIsland(0, federated), b = StartIsland(1, federated);
  for (const IslandMessageKind kind :
       {IslandMessageKind::kShare, IslandMessageKind::kPut, IslandMessageKind::kReveal}) {
    deadly = kind;
    c = StartBehind(tap, 2, longer);
    FinishProgram(c, LogOf(2));
    EXPECT_EQ(deadly.load(), IslandMessageKind::kValues) << ReadTextFile(LogOf(2));
  }
  WaitFor("outer round 3: islands 0, 1, 2; ", LogOf(0));  // its vector was there
  c = StartIsland(2, Joined(federated, {"--set=train.train_iters=80"}));
  WaitFor("outer round 4: islands 0, 1, 2; ", LogOf(0));
  StopServer(SIGKILL);
  StartFederated({"--min_islands=3"}, address_);
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  Kill(c, 2);
  const std::string log = ReadTextFile(LogOf(0));
  EXPECT_EQ(CountOf(log, ": islands 0, 1; "), 2) << log;
  EXPECT_EQ(CountOf(log, "no outer step"), 0) << log;
  EXPECT_TRUE(absl::StrContains(log, "outer round 10: islands 0, 1, 2; ")) << log;
  EXPECT_EQ(WeightsOf("island0"), WeightsOf("island1"));
}

TEST_F(FederatedTest, AnIslandThatComesBackAndAServerThatIsKilledEndWithTheSameBits) {
  const Arguments saves = Joined(kFederated, {"--set=checkpoint.save_interval=1"});
  StartFederated();
  pid_t a = StartIsland(0, kFederated), b = StartIsland(1, saves);
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  const auto whole = WeightsOf("island0");
  RemoveRun();
  StartFederated();
  a = StartIsland(0, kFederated);
  b = StartIsland(1, Joined(saves, {"--set=train.exit_interval=6"}));
  ExpectEnd(b, 1);
  // The other one waits in the sum of the second round when the server is killed.
  StopServer(SIGKILL);
  StartFederated({}, address_);
  b = StartIsland(1, saves);
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  EXPECT_EQ(WeightsOf("island0"), whole);
  EXPECT_EQ(WeightsOf("island1"), whole);
  RemoveRun();
  // On a CUDA device, which the CPU plays.
  StartFederated();
  a = StartIsland(0, kFederated);
  Arguments command = Command(IslandOf(1, kFederated));
  command[0] = ProgramPath("megatron/train/pretrain_gpt_emulated_cuda");
  b = StartProgram(command, LogOf(1));
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  EXPECT_TRUE(absl::StrContains(ReadTextFile(LogOf(1)), "emulated")) << ReadTextFile(LogOf(1));
  EXPECT_EQ(WeightsOf("island0"), whole);
  EXPECT_EQ(WeightsOf("island1"), whole);
}

TEST_F(FederatedTest, AnotherClipNormIsRefusedByName) {
  StartFederated();
  const Outcome outcome = FinishProgram(StartIsland(0, {"--set=federated.clip_norm=5"}), LogOf(0));
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(outcome.output,
                                "the server has federated.clip_norm = 4, and the "
                                "island 5"))
      << outcome.output;
  EXPECT_TRUE(absl::StrContains(ServerLog(), "federated.clip_norm")) << ServerLog();
  const Outcome plain = FinishProgram(StartIsland(1), LogOf(1));
  EXPECT_EQ(plain.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(plain.output, "the server is a federated one")) << plain.output;
}

TEST_F(FederatedTest, TheBudgetEndsTheRunsWithTheGlobalCopy) {
  const Arguments noise = {"--clip_norm=0.01", "--noise_multiplier=1", "--max_epsilon=7.2"};
  StartFederated(noise);
  pid_t a = StartIsland(0, kNoised), b = StartIsland(1, kNoised);
  ExpectEnd(a, 0);
  ExpectEnd(b, 1);
  const std::string log = ReadTextFile(LogOf(0));
  EXPECT_TRUE(absl::StrContains(log, "outer round 1: islands 0, 1; epsilon 4.729 at delta 1e-05; "))
      << log;
  EXPECT_TRUE(absl::StrContains(log,
                                "epsilon 7.077 at delta 1e-05, and the privacy budget allows "
                                "no more rounds"))
      << log;
  EXPECT_FALSE(absl::StrContains(log, "outer round 3")) << log;
  EXPECT_EQ(WeightsOf("island0"), WeightsOf("island1"));
  const std::string metrics = ReadTextFile(Path("island0/metrics.jsonl"));
  EXPECT_EQ(CountOf(metrics, "\"epsilon\":"), 2) << metrics;
  EXPECT_TRUE(absl::StrContains(ServerLog(), "there are no more rounds")) << ServerLog();
  // A server that is started again has the account, and a run that is started again ends at once.
  StopServer(SIGKILL);
  StartFederated(noise, address_);
  a = StartIsland(0, kNoised);
  ExpectEnd(a, 0);
  EXPECT_TRUE(absl::StrContains(ReadTextFile(LogOf(0)),
                                "already at iteration 8 of 12, and the "
                                "privacy budget of the federated run is "
                                "spent: nothing to do"))
      << ReadTextFile(LogOf(0));
}

TEST_F(FederatedTest, FlagsOfTheServerThatDoNotFitAreRefusedByName) {
  const auto refused = [&](const Arguments& flags, const std::string& why, int code = kExitConfig) {
    const Outcome outcome = FinishProgram(
        StartProgram(Joined({ProgramPath("tools/outer_server"), "--listen=127.0.0.1:0",
                             "--secret_file=" + Path("secret")},
                            flags),
                     Path("refused.txt")),
        Path("refused.txt"));
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_TRUE(absl::StrContains(outcome.output, why)) << outcome.output;
  };
  refused({"--noise_multiplier=1"}, "--noise_multiplier has no effect without --clip_norm");
  refused({"--clip_norm=1", "--noise_multiplier=33"}, "--noise_multiplier is 33; it is 0 to 32");
  refused({"--clip_norm=-1"}, "--clip_norm is -1; it is above 0");
  refused({"--clip_norm=1", "--noise_multiplier=1"}, "--noise_multiplier needs --state");
  refused({"--clip_norm=1", "--min_islands=256"}, "--min_islands is 256; it is 1 to 255");
  refused({"--state=" + Path("missing/state")}, "missing/state", kExitIo);
}

}  // namespace
}  // namespace megatron
