#include "megatron/base/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/steady_now.h"

extern char** environ;

namespace megatron {
namespace {

// How often it is looked whether the command has ended.
constexpr int kLookMilliseconds = 20;
// The most that is kept of what the command prints.
constexpr size_t kMostOutput = 200;
// A pipe's capacity in reads, so that one who prints without end does not hold the reader.
constexpr int kMostReads = 16;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status Errno(int error, const char* what) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot start it: ", what));
}

// A file in memory, unlike a pipe, takes all of the input whether the command reads it or not.
absl::Status FillInput(const Descriptor& file, absl::string_view input) {
  if (file.get() < 0) return Errno(errno, "memfd_create");
  while (!input.empty()) {
    const ssize_t written = write(file.get(), input.data(), input.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Errno(errno, "write");
    input.remove_prefix(written);
  }
  return lseek(file.get(), 0, SEEK_SET) == 0 ? absl::OkStatus() : Errno(errno, "lseek");
}

// Returns 0 or the error's number.
int Spawn(const std::string& command, int input, int output, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string shell = "/bin/sh", dash_c = "-c", text = command;
  char* const arguments[] = {shell.data(), dash_c.data(), text.data(), nullptr};
  const int error = posix_spawn(pid, shell.c_str(), &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Reads what is there without waiting, a pipe's capacity at most, and keeps the beginning. Returns
// false at the end.
bool Drain(int fd, std::string* output) {
  char buffer[4096];
  for (int reads = 0; reads < kMostReads; ++reads) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 && errno == EAGAIN;
    if (output->size() < kMostOutput)
      output->append(buffer, std::min<size_t>(got, kMostOutput - output->size()));
  }
  return true;
}

std::string FirstLine(const std::string& output) {
  const absl::string_view text = absl::StripAsciiWhitespace(output);
  const absl::string_view line = text.substr(0, text.find('\n'));
  return line.empty() ? "" : absl::StrCat(": ", line);
}

absl::Status Judge(int status, const std::string& output) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  const std::string how = WIFEXITED(status)
                              ? absl::StrCat("it ended with code ", WEXITSTATUS(status))
                              : absl::StrCat("signal ", WTERMSIG(status), " ended it");
  return absl::AbortedError(how + FirstLine(output));
}

}  // namespace

absl::Status RunCommand(const std::string& command, absl::string_view input, absl::Duration limit) {
  const Descriptor file(memfd_create("input", MFD_CLOEXEC));
  const absl::Status filled = FillInput(file, input);
  if (!filled.ok()) return filled;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Errno(errno, "pipe2");
  const Descriptor read_end(ends[0]);
  pid_t pid = -1;
  {
    const Descriptor write_end(ends[1]);
    const int error = Spawn(command, file.get(), write_end.get(), &pid);
    if (error != 0) return Errno(error, "/bin/sh");
  }
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const absl::Time deadline = SteadyNow() + limit;
  std::string output;
  bool may_print = true;
  int status = 0;
  for (;;) {
    pollfd entry = {may_print ? read_end.get() : -1, POLLIN, 0};
    poll(&entry, 1, kLookMilliseconds);
    may_print = may_print && Drain(read_end.get(), &output);
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) break;
    if (ended < 0 && errno != EINTR) return Errno(errno, "waitpid");
    if (SteadyNow() < deadline) continue;
    kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return absl::DeadlineExceededError(
        absl::StrCat("it was killed after ", absl::FormatDuration(limit)));
  }
  Drain(read_end.get(), &output);
  return Judge(status, output);
}

}  // namespace megatron
