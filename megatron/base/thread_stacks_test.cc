#include "megatron/base/thread_stacks.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {

// This function is not in an unnamed namespace, so that it has a symbol, and not inlined, so that
// it has a frame.
__attribute__((noinline)) void WaitsForTheEndOfTheTest(absl::Notification* here,
                                                       absl::Notification* end) {
  here->Notify();
  end->WaitForNotification();
  // Some work after the call keeps the compiler from making it a jump.
  EXPECT_TRUE(end->HasBeenNotified());
}

namespace {

TEST(ThreadStacksTest, EveryThreadIsListedWithTheFunctionsOnItsStack) {
  constexpr int kThreads = 3;
  absl::Notification here[kThreads], end;
  std::vector<std::thread> threads;
  for (absl::Notification& it : here) {
    threads.emplace_back([&] { WaitsForTheEndOfTheTest(&it, &end); });
  }
  for (absl::Notification& it : here) it.WaitForNotification();
  for (int again = 0; again < 20; ++again) {
    const std::vector<ThreadStack> stacks = AllThreadStacks(absl::Seconds(60));
    ASSERT_EQ(stacks.size(), size_t{kThreads + 1});
    for (const ThreadStack& stack : stacks) {
      const bool own = stack.id == static_cast<int>(getpid());
      EXPECT_TRUE(absl::StrContains(absl::StrJoin(stack.frames, "\n"),
                                    own ? "main" : "WaitsForTheEndOfTheTest"))
          << absl::StrJoin(stack.frames, "\n");
      EXPECT_FALSE(stack.name.empty());
    }
  }
  end.Notify();
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadStacksTest, AThreadThatDoesNotAnswerHasNoFrames) {
  absl::Notification here, end;
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    WaitsForTheEndOfTheTest(&here, &end);
  });
  here.WaitForNotification();
  const std::vector<ThreadStack> stacks = AllThreadStacks(absl::Milliseconds(20));
  ASSERT_EQ(stacks.size(), 2u);
  EXPECT_THAT(stacks[1].frames, ::testing::IsEmpty());
  end.Notify();
  deaf.join();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  absl::InitializeSymbolizer(argv[0]);
  return RUN_ALL_TESTS();
}
