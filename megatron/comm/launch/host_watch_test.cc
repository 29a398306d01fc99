#include "megatron/comm/launch/host_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

// Returns what comes within the time, in milliseconds.
std::string ReadFrom(int fd, int patience) {
  pollfd waits = {fd, POLLIN, 0};
  if (poll(&waits, 1, patience) != 1) return "";
  char bytes[64];
  const ssize_t got = read(fd, bytes, sizeof(bytes));
  return std::string(bytes, got > 0 ? static_cast<size_t>(got) : 0);
}

TEST(HostWatchTest, AMachineThatAnswersEndsTheJob) {
  const std::string file = ::testing::TempDir() + "/is_back";
  PosixFileSystem().Remove(file).IgnoreError();
  const auto watch = HostWatch::Start({{"gone", {"false"}},
                                       {"nowhere", {"no_such_program"}},
                                       {"back", {"sh", "-c", absl::StrCat("test -e ", file)}}},
                                      absl::Milliseconds(20));
  ASSERT_TRUE(watch.ok()) << watch.status();
  EXPECT_EQ(ReadFrom((*watch)->control(), 300), "");
  EXPECT_EQ((*watch)->Answered(), "");
  ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), file, "x").ok());
  EXPECT_EQ(ReadFrom((*watch)->control(), 30000), "signal 15\n");
  EXPECT_EQ((*watch)->Answered(), "back");
}

// A launcher that claims a directory anew finds its own claim gone.
TEST(HostWatchTest, LocksOfTheProgramAreNotKept) {
  const std::string file = ::testing::TempDir() + "/lock";
  const int lock = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  const auto watch = HostWatch::Start({{"gone", {"false"}}}, absl::Hours(1));
  ASSERT_TRUE(watch.ok()) << watch.status();
  close(lock);
  const int again = open(file.c_str(), O_RDWR | O_CLOEXEC);
  const absl::Time until = SteadyNow() + absl::Seconds(30);
  bool is_free = false;
  while (!is_free && SteadyNow() < until) {
    is_free = flock(again, LOCK_EX | LOCK_NB) == 0;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(is_free);
  close(again);
}

}  // namespace
}  // namespace megatron
