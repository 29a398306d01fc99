#include "megatron/comm/launch/host_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"

namespace megatron {
namespace {

constexpr char kEnd[] = "signal 15\n";  // as ChildrenOptions::control takes it

void Write(int fd, const char* text, size_t length) {
  while (write(fd, text, length) < 0 && errno == EINTR) {
  }
}

// Returns whether the command ends with 0. Its output goes nowhere.
bool Succeeds(char* const* command) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
    execvp(command[0], command);
    _exit(127);
  }
  int status = -1;
  while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct Question {
  std::string name;
  std::vector<char*> command;
};

// A lock on a file would stay as long as this process has the file.
void CloseOthers(int control, int answer) {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return;
  std::vector<int> others;
  while (const dirent* const entry = readdir(directory)) {
    int fd = -1;
    const bool is_number = absl::SimpleAtoi(entry->d_name, &fd);
    if (is_number && fd > STDERR_FILENO && fd != control && fd != answer && fd != dirfd(directory))
      others.push_back(fd);
  }
  closedir(directory);
  for (const int fd : others) close(fd);
}

// The process: it lives until it is killed.
[[noreturn]] void Ask(const std::vector<Question>& questions, timespec interval, int control,
                      int answer, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  CloseOthers(control, answer);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  while (true) {
    nanosleep(&interval, nullptr);
    for (const Question& question : questions) {
      if (!Succeeds(question.command.data())) continue;
      Write(answer, question.name.data(), question.name.size());
      Write(control, kEnd, sizeof(kEnd) - 1);
      while (true) pause();
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostWatch>> HostWatch::Start(const std::vector<Host>& hosts,
                                                            absl::Duration interval) {
  std::unique_ptr<HostWatch> watch(new HostWatch());
  if (pipe2(watch->control_, O_CLOEXEC) != 0 || pipe2(watch->answer_, O_CLOEXEC | O_NONBLOCK) != 0)
    return absl::ErrnoToStatus(errno, "pipe");
  std::vector<Question> questions;
  for (const Host& host : hosts) {
    Question& question = questions.emplace_back();
    question.name = host.name;
    for (const std::string& word : host.command)
      question.command.push_back(const_cast<char*>(word.c_str()));
    question.command.push_back(nullptr);
  }
  const pid_t self = getpid();
  watch->pid_ = fork();
  if (watch->pid_ < 0) return absl::ErrnoToStatus(errno, "fork");
  if (watch->pid_ == 0)
    Ask(questions, absl::ToTimespec(interval), watch->control_[1], watch->answer_[1], self);
  return watch;
}

HostWatch::~HostWatch() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  for (const int fd : {control_[0], control_[1], answer_[0], answer_[1]}) {
    if (fd >= 0) close(fd);
  }
}

std::string HostWatch::Answered() const {
  std::string name(1024, '\0');
  const ssize_t got = read(answer_[0], name.data(), name.size());
  name.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return name;
}

}  // namespace megatron
