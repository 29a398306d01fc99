// Tests faults at every system call by which saving changes files: kill -9, a full disk, an error.
// The last good checkpoint stays whole, and the same command again ends with the bytes of the run
// that nobody disturbed. --all tests more layouts, and each error at each call; --every=10
// --first=3 tests every tenth call, beginning with call 3.

#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/fault_tests/system_call_faults.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

bool all_of_them = false;
// One of `every` calls is struck, beginning with call `first`.
int every = 1, first = 0;

struct Layout {
  std::string name;
  Arguments arguments;
};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts = {{"alone", {}}};
  if (!all_of_them) return layouts;
  layouts.push_back({"async", {"--set=checkpoint.async_save=true"}});
  layouts.push_back({"processes",
                     {"--set=parallel.data_parallel_size=2", "--set=parallel.ranks_as=processes",
                      "--set=parallel.use_distributed_optimizer=true"}});
  return layouts;
}

class PretrainSaveFaultsTest : public PretrainProgramTest {
 protected:
  // Two saves, of which the second replaces the first.
  Arguments ArgumentsFor(const Layout& layout, const std::string& save) const {
    return Joined({SaveTo(save), "--set=train.train_iters=2", "--set=checkpoint.save_interval=1",
                   "--set=checkpoint.keep_last=1", "--set=train.micro_batch_size=1",
                   "--set=train.eval_interval=0", "--set=optimizer.lr_warmup_iters=1",
                   "--set=data.stories.num_bytes=20000"},
                  layout.arguments);
  }

  FaultedRun RunStruck(const Layout& layout, const std::string& save,
                       const SystemCallFault& fault) const {
    return RunWithFault(Command(ArgumentsFor(layout, save)), Path("log.txt"), Path(save), fault);
  }

  // Returns the number of system calls that a whole run makes.
  int RunUndisturbed(const Layout& layout) const {
    const FaultedRun run = RunStruck(layout, layout.name, SystemCallFault());
    EXPECT_EQ(run.outcome.exit_code, kExitDone) << run.outcome.output;
    EXPECT_GT(run.calls, 20) << layout.name;
    return run.calls;
  }

  // Expects that a checkpoint, if there is one, is whole, and that the run continues from what is
  // there.
  void ExpectToRecover(const Layout& layout, const FaultedRun& struck) const {
    const auto found = FindLatestCheckpoint(PosixFileSystem(), Path("struck"), Check::kContents);
    EXPECT_TRUE(found.ok() || found.status().code() == absl::StatusCode::kNotFound)
        << found.status();
    if (absl::StrContains(struck.outcome.output, "saved checkpoint of iteration")) {
      EXPECT_TRUE(found.ok()) << found.status() << "\n" << struck.outcome.output;
    }
    const Outcome again = Run(ArgumentsFor(layout, "struck"));
    ASSERT_EQ(again.exit_code, kExitDone) << again.output;
    ExpectEqualCheckpoints(layout.name, "struck");
  }

  void Forget() const { ASSERT_TRUE(PosixFileSystem().RemoveTree(Path("struck")).ok()); }
};

TEST_F(PretrainSaveFaultsTest, AKillBehindAnySystemCallLosesNothing) {
  for (const Layout& layout : Layouts()) {
    const int calls = RunUndisturbed(layout);
    for (int at = first; at < calls; at += every) {
      Forget();
      const FaultedRun struck = RunStruck(layout, "struck", {at});
      SCOPED_TRACE(absl::StrCat(layout.name, ", call ", at, " of ", calls, ": ", struck.what));
      const int code = struck.outcome.exit_code;
      // Ranks that are processes interleave their calls differently each time.
      const bool unhurt = struck.what.empty() && code == kExitDone;
      EXPECT_TRUE(code == -SIGKILL || code == kExitPeerLost || unhurt) << struck.outcome.output;
      ExpectToRecover(layout, struck);
      if (HasFailure()) return;
    }
    std::printf("%s: a kill behind every %d of %d calls\n", layout.name.c_str(), every, calls);
  }
}

TEST_F(PretrainSaveFaultsTest, AnErrorAtAnySystemCallLeavesTheLastGoodCheckpoint) {
  for (const Layout& layout : Layouts()) {
    const int calls = RunUndisturbed(layout);
    int went_on = 0, left = 0;
    for (int at = first; at < calls; at += every) {
      std::vector<SystemCallFault> faults = {
          {at, ENOSPC, true}, {at, ENOSPC, false}, {at, EIO, false}};
      if (!all_of_them) faults = {faults[at % 3]};
      for (const SystemCallFault& fault : faults) {
        Forget();
        const FaultedRun struck = RunStruck(layout, "struck", fault);
        SCOPED_TRACE(absl::StrCat(layout.name, ", error ", fault.error_number,
                                  fault.lasting ? ", lasting," : "", " at call ", at, " of ", calls,
                                  ": ", struck.what));
        const int code = struck.outcome.exit_code;
        ++(code == kExitDone ? went_on : left);
        EXPECT_TRUE(code == kExitDone || code == kExitIo) << code << "\n" << struck.outcome.output;
        if (code == kExitDone && fault.lasting) {
          // The run wrote nothing after the fault.
          EXPECT_GE(at, calls - 1) << struck.outcome.output;
        }
        ExpectToRecover(layout, struck);
        if (HasFailure()) return;
      }
    }
    std::printf("%s: %d runs went on, %d left with code %d\n", layout.name.c_str(), went_on, left,
                kExitIo);
    EXPECT_GT(went_on, 0);
    EXPECT_GT(left, 0);
  }
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    megatron::all_of_them |= arg == "--all";
    if (absl::StartsWith(arg, "--every=")) megatron::every = std::atoi(arg.c_str() + 8);
    if (absl::StartsWith(arg, "--first=")) megatron::first = std::atoi(arg.c_str() + 8);
  }
  return RUN_ALL_TESTS();
}
