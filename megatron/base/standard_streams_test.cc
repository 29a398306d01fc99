#include "megatron/base/standard_streams.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

#include "gtest/gtest.h"

namespace megatron {
namespace {

// Runs `body` in a process of its own; returns its exit code.
template <typename Body>
int ExitCodeInChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreamsTest, AFileDoesNotGetTheNumberOfAStreamThatWasClosed) {
  for (const int closed : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    EXPECT_GT(ExitCodeInChild([&] {
                close(closed);
                KeepStandardStreams();
                return open("/dev/null", O_RDWR);
              }),
              STDERR_FILENO);
  }
}

TEST(StandardStreamsTest, WritingToAStreamThatWasClosedStillFails) {
  EXPECT_EQ(ExitCodeInChild([] {
              close(STDOUT_FILENO);
              KeepStandardStreams();
              return write(STDOUT_FILENO, "x", 1) == -1 && errno == EBADF ? 0 : 1;
            }),
            0);
}

TEST(StandardStreamsTest, StreamsThatAreOpenStayAsTheyAre) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(ExitCodeInChild([&] {
              dup2(ends[1], STDOUT_FILENO);
              KeepStandardStreams();
              return write(STDOUT_FILENO, "x", 1) == 1 ? 0 : 1;
            }),
            0);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace megatron
