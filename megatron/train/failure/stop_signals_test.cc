#include "megatron/train/failure/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr int kStopped = 7;

// Gets the signals one after another, and exits with kStopped if the first one is the stop signal.
[[noreturn]] void Get(int first, int second, absl::Duration one_request = absl::ZeroDuration()) {
  signal(SIGHUP, SIG_DFL);
  ListenForStopSignals(/*answer=*/false, one_request);
  raise(first);
  raise(second);
  std::_Exit(StopSignal() == first ? kStopped : 1);
}

TEST(StopSignalsDeathTest, AHangupStopsTheRunHoweverOftenItComes) {
  EXPECT_EXIT(Get(SIGHUP, SIGHUP), ::testing::ExitedWithCode(kStopped), "");
  EXPECT_EXIT(Get(SIGTERM, SIGHUP), ::testing::ExitedWithCode(kStopped), "");
}

TEST(StopSignalsDeathTest, ASecondSignalOfAnotherKindEndsTheProcess) {
  EXPECT_EXIT(Get(SIGHUP, SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(Get(SIGTERM, SIGINT), ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignalsDeathTest, SignalsThatComeSoonAfterTheFirstBelongToTheSameRequest) {
  const absl::Duration soon = absl::Hours(1);
  EXPECT_EXIT(Get(SIGTERM, SIGTERM, soon), ::testing::ExitedWithCode(kStopped), "");
  EXPECT_EXIT(Get(SIGTERM, SIGINT, soon), ::testing::ExitedWithCode(kStopped), "");
  EXPECT_EXIT(Get(SIGHUP, SIGTERM, soon), ::testing::ExitedWithCode(kStopped), "");
}

TEST(StopSignalsDeathTest, AHangupThatWasIgnoredAtTheStartIsIgnored) {
  const auto get = [] {
    signal(SIGHUP, SIG_IGN);
    ListenForStopSignals(/*answer=*/false);
    raise(SIGHUP);
    std::_Exit(StopSignal() == 0 ? kStopped : 1);
  };
  EXPECT_EXIT(get(), ::testing::ExitedWithCode(kStopped), "");
}

TEST(StopSignalsDeathTest, WhatASignalInterruptsFindsItsErrorNumber) {
  const auto get = [] {
    ListenForStopSignals(/*answer=*/true);
    close(STDERR_FILENO);  // so that the answer fails
    errno = EAGAIN;
    raise(SIGTERM);
    std::_Exit(errno == EAGAIN ? kStopped : 1);
  };
  EXPECT_EXIT(get(), ::testing::ExitedWithCode(kStopped), "");
}

}  // namespace
}  // namespace megatron
