// Runs pretrain_gpt as a user does: as a process, with a configuration file, alone or under a
// launcher, and now and then with signals.
#ifndef MEGATRON_TRAIN_PRETRAIN_HARNESS_H_
#define MEGATRON_TRAIN_PRETRAIN_HARNESS_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {

using Arguments = std::vector<std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

struct Outcome {
  int exit_code = -1;  // exit code, or minus the signal that ended it
  std::string output;  // both streams
};

std::string ReadTextFile(const std::string& path);
Arguments Joined(Arguments a, const Arguments& b);
int CountOf(const std::string& text, const std::string& piece);
// Returns the number that follows the last `piece` in the text.
double NumberAfter(const std::string& text, const std::string& piece);

// A program of this repository among the test's data, "tools/launch".
std::string ProgramPath(const std::string& label);
// Starts a program with both outputs going to the file, and these variables besides ours.
pid_t StartProgram(const Arguments& command, const std::string& log,
                   const Variables& environment = {});
Outcome FinishProgram(pid_t pid, const std::string& log);

// The processes that a process has started and that have not ended.
std::vector<pid_t> ChildrenOf(pid_t pid);
// Returns whether the process has ended, collected or not.
bool HasEnded(pid_t pid);

class PretrainProgramTest : public ::testing::Test {
 protected:
  PretrainProgramTest();

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string SaveTo(const std::string& name) const {
    return "--set=checkpoint.save=\"" + Path(name) + "\"";
  }
  // pretrain_gpt with a tiny configuration, and these arguments.
  Arguments Command(const Arguments& more) const;

  pid_t Start(const Arguments& more, const std::string& log) const {
    return StartProgram(Command(more), log);
  }
  Outcome Run(const Arguments& more) const;

  // Returns when the log says so, or after 60 s, as a failure.
  static void WaitFor(const std::string& text, const std::string& log);

  // Every file of the newest checkpoint, by name.
  std::map<std::string, std::string> Checkpoint(const std::string& name) const;
  // Weights and states, bit for bit; the manifest keeps the configuration, which may differ.
  void ExpectEqualCheckpoints(const std::string& a, const std::string& b) const;

 private:
  std::string directory_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRETRAIN_HARNESS_H_
