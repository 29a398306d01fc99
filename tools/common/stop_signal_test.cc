#include "tools/common/stop_signal.h"

#include <unistd.h>

#include <csignal>

#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"

namespace megatron {
namespace {

// Each test has a process of its own, whose signals are not those of the others.
TEST(StopSignalTest, ASignalEndsAProcessThatStarts) {
  for (const int signal : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          StopSignal stop("the model was being loaded");
          kill(getpid(), signal);
          for (;;) pause();
        },
        ::testing::ExitedWithCode(kExitInterrupted),
        "error: interrupted; the model was being loaded");
  }
}

TEST(StopSignalTest, LaterASignalIsWaitedForAndTheNextEndsTheProcess) {
  EXPECT_EXIT(
      {
        StopSignal stop("a");
        stop.Started();
        kill(getpid(), SIGTERM);
        stop.Await();
        _exit(7);
      },
      ::testing::ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        StopSignal stop("a");
        stop.Started();
        kill(getpid(), SIGTERM);
        stop.Await();
        kill(getpid(), SIGTERM);
        for (;;) pause();
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace megatron
