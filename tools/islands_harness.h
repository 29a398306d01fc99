// Islands as real processes with a real outer server, for tests.
#ifndef MEGATRON_TOOLS_ISLANDS_HARNESS_H_
#define MEGATRON_TOOLS_ISLANDS_HARNESS_H_

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {

// Dropout is by the number of the sample in the run, which islands count by themselves.
inline const Arguments kCommon = {"--set=model.hidden_dropout=0",
                                  "--set=model.attention_dropout=0",
                                  "--set=diloco.sync_every=4",
                                  "--set=train.eval_iters=0",
                                  "--set=optimizer.lr_decay_style=constant",
                                  "--set=optimizer.lr_warmup_iters=0"};

class IslandsProgramTest : public PretrainProgramTest {
 protected:
  IslandsProgramTest() {
    std::ofstream(Path("secret")) << JobSecret::Random().ToHex() << "\n";
    chmod(Path("secret").c_str(), 0600);
  }
  ~IslandsProgramTest() override { StopServer(); }

  void StartServer(const Arguments& more, const std::string& listen = "127.0.0.1:0") {
    server_ = StartProgram(Joined({ProgramPath("tools/outer_server"), "--listen=" + listen,
                                   "--secret_file=" + Path("secret"), "--state=" + Path("state")},
                                  more),
                           Path("server.txt"));
    WaitFor("listening at ", Path("server.txt"));
    const std::string text = ReadTextFile(Path("server.txt"));
    const size_t at = text.find("listening at ") + 13;
    address_ = text.substr(at, text.find('\n', at) - at);
  }
  void StopServer(int signal = SIGTERM) {
    if (server_ <= 0) return;
    kill(server_, signal);
    server_log_ += FinishProgram(server_, Path("server.txt")).output;
    server_ = -1;
  }
  Arguments IslandOf(int number, const Arguments& more = {}) const {
    return Joined(
        Joined(kCommon, {"--set=train.global_batch_size=2",
                         absl::StrCat("--set=diloco.server_address=\"", address_, "\""),
                         absl::StrCat("--set=diloco.secret_file=\"", Path("secret"), "\""),
                         absl::StrCat("--set=diloco.island=", number), "--set=diloco.num_islands=2",
                         SaveTo(absl::StrCat("island", number))}),
        more);
  }
  std::string LogOf(int number) const { return Path(absl::StrCat("log", number, ".txt")); }
  pid_t StartIsland(int number, const Arguments& more = {}) const {
    return Start(IslandOf(number, more), LogOf(number));
  }
  void Kill(pid_t pid, int number) const {
    kill(pid, SIGKILL);
    FinishProgram(pid, LogOf(number));
  }
  void ExpectEnd(pid_t pid, int number) const {
    const Outcome outcome = FinishProgram(pid, LogOf(number));
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output << ReadTextFile(Path("server.txt"));
  }

  // The global copy in the newest checkpoint, by name.
  std::map<std::string, std::string> WeightsOf(const std::string& name) const {
    std::map<std::string, std::string> weights;
    const auto found = FindLatestCheckpoint(PosixFileSystem(), Path(name), Check::kContents);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return weights;
    const auto reader = CheckpointReader::Open(PosixFileSystem(), found->directory);
    EXPECT_TRUE(reader.ok()) << reader.status();
    for (const TensorEntry& entry : reader->manifest().tensors) {
      if (absl::StartsWith(entry.name, "optimizer.")) continue;
      std::string& bytes = weights[entry.name];
      bytes.resize(entry.shape.numel() * SizeOf(entry.dtype));
      ShardedTensor block;
      block.name = entry.name;
      block.tensor = Tensor(&bytes[0], entry.dtype, entry.shape);
      block.global_shape = block.offset = entry.shape;
      for (int d = 0; d < entry.shape.rank(); ++d) block.offset[d] = 0;
      EXPECT_TRUE(reader->Load(block).ok());
    }
    EXPECT_GT(weights.size(), 10u);
    return weights;
  }

  pid_t server_ = -1;
  std::string address_, server_log_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_ISLANDS_HARNESS_H_
