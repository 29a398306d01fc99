#include "megatron/comm/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/job_secret.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/socket.h"

namespace megatron {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
constexpr size_t kLongestLine = 1 << 16;
constexpr int kNoSuchProgram = 127;  // as shells say it
// For what the last writers of a pipe have left in it.
constexpr absl::Duration kDrainTime = absl::Seconds(1);

absl::Status Errno(const char* what) { return absl::ErrnoToStatus(errno, what); }

// Strings as execve takes them.
class CStrings {
 public:
  explicit CStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
    for (std::string& text : strings_) pointers_.push_back(&text[0]);
    pointers_.push_back(nullptr);
  }
  char* const* get() { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

void WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // nobody reads any more; the ranks go on
    text.remove_prefix(written);
  }
}

// One output of one rank: whole lines of it go on, each in one write.
class LinePrefixer {
 public:
  LinePrefixer(Socket from, std::string prefix, int to)
      : from_(std::move(from)), prefix_(std::move(prefix)), to_(to) {}

  int fd() const { return from_.fd(); }

  // Reads what there is; the end closes it.
  void Read() {
    char bytes[1 << 14];
    while (from_.valid()) {
      const ssize_t got = read(from_.fd(), bytes, sizeof(bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return Finish();
      Append({bytes, static_cast<size_t>(got)});
    }
  }

  void Finish() {
    if (!line_.empty()) Print();
    from_.Close();
  }

 private:
  void Append(absl::string_view bytes) {
    for (char c : bytes) {
      if (c != '\n') line_.push_back(c);
      if (c == '\n' || line_.size() >= kLongestLine) Print();
    }
  }

  void Print() {
    WriteAll(to_, absl::StrCat(prefix_, line_, "\n"));
    line_.clear();
  }

  Socket from_;
  const std::string prefix_;
  const int to_;
  std::string line_;
};

// Blocks signals as long as it lives, and gives them out as reads of a descriptor.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&mask_);
    sigaddset(&mask_, SIGCHLD);
    for (int signal : kForwarded) sigaddset(&mask_, signal);
    PCHECK(sigprocmask(SIG_BLOCK, &mask_, &old_mask_) == 0);
    fd_ = Socket(signalfd(-1, &mask_, SFD_NONBLOCK | SFD_CLOEXEC));
    PCHECK(fd_.valid());
  }
  ~SignalQueue() { sigprocmask(SIG_SETMASK, &old_mask_, nullptr); }

  int fd() const { return fd_.fd(); }
  const sigset_t& old_mask() const { return old_mask_; }
  // 0 if there is none.
  int Next() const {
    signalfd_siginfo info;
    return read(fd_.fd(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                               : 0;
  }

 private:
  sigset_t mask_, old_mask_;
  Socket fd_;
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}

  absl::StatusOr<LaunchResult> Run() {
    const absl::Status started = StartAll();
    if (!started.ok()) {
      KillAll();
      while (RunningRanks() > 0) {
        Reap();
        absl::SleepFor(absl::Milliseconds(1));
      }
      return started;
    }
    while (RunningRanks() > 0) {
      WaitForSomething(kill_at_);
      for (int signal = signals_.Next(); signal != 0; signal = signals_.Next()) {
        if (signal == SIGCHLD) continue;
        // Who asks a second time means it.
        const bool again = (signal == SIGINT || signal == SIGTERM) && ++requests_to_end_ > 1;
        again ? End() : Forward(signal);
      }
      Reap();
      if (absl::Now() >= kill_at_) End();
    }
    Drain();
    return result_;
  }

 private:
  struct Rank {
    pid_t pid = -1;  // -1: not started, or ended
    std::unique_ptr<LinePrefixer> outputs[2];
  };

  int RunningRanks() const {
    return static_cast<int>(absl::c_count_if(ranks_, [](const Rank& r) { return r.pid > 0; }));
  }

  absl::Status StartAll() {
    if (options_.ranks < 1 || options_.command.empty()) {
      return absl::InvalidArgumentError("nothing to launch");
    }
    MEGATRON_ASSIGN_OR_RETURN(const Socket listener, ListenTcp({"127.0.0.1", 0}));
    MEGATRON_ASSIGN_OR_RETURN(const Endpoint master, LocalEndpoint(listener));
    const JobSecret secret = JobSecret::Random();
    ranks_.resize(options_.ranks);
    for (int rank = 0; rank < options_.ranks; ++rank) {
      EnvironmentMap environment = ProcessEnvironment();
      for (const auto& [name, value] : options_.environment) environment[name] = value;
      environment["MEGATRON_LAUNCH"] = Name(LaunchSource::kExplicit);
      environment["MEGATRON_RANK"] = environment["MEGATRON_LOCAL_RANK"] = absl::StrCat(rank);
      environment["MEGATRON_WORLD_SIZE"] = environment["MEGATRON_LOCAL_WORLD_SIZE"] =
          absl::StrCat(options_.ranks);
      environment["MASTER_ADDR"] = master.host;
      environment["MASTER_PORT"] = absl::StrCat(master.port);
      environment[kJobSecretVariable] = secret.ToHex();
      environment.erase(kStoreListenerVariable);
      if (rank == 0) environment[kStoreListenerVariable] = absl::StrCat(listener.fd());
      MEGATRON_RETURN_IF_ERROR(Start(rank, environment, rank == 0 ? listener.fd() : -1),
                               _ << "while starting rank " << rank);
    }
    return absl::OkStatus();
  }

  // `inherited` is a descriptor that the rank gets too.
  absl::Status Start(int rank, const EnvironmentMap& environment, int inherited) {
    Socket read_ends[2], write_ends[2];
    for (int i = 0; i < 2; ++i) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return Errno("pipe");
      read_ends[i] = Socket(ends[0]);
      write_ends[i] = Socket(ends[1]);
      fcntl(ends[0], F_SETFL, O_NONBLOCK);
    }
    std::vector<std::string> entries;
    for (const auto& [name, value] : environment) entries.push_back(absl::StrCat(name, "=", value));
    CStrings arguments(options_.command), variables(std::move(entries));
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid < 0) return Errno("fork");
    if (pid == 0) {
      // Only what is safe between fork and exec.
      setpgid(0, 0);  // so that a terminal's signals come through the launcher alone
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);
      sigprocmask(SIG_SETMASK, &signals_.old_mask(), nullptr);
      dup2(write_ends[0].fd(), 1);
      dup2(write_ends[1].fd(), 2);
      if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
      execvpe(arguments.get()[0], arguments.get(), variables.get());
      const char* const why = std::strerror(errno);
      const char* const program = arguments.get()[0];
      (void)!write(2, "cannot start ", 13);
      (void)!write(2, program, std::strlen(program));
      (void)!write(2, ": ", 2);
      (void)!write(2, why, std::strlen(why));
      _exit(kNoSuchProgram);
    }
    setpgid(pid, pid);  // in both: whoever is first
    ranks_[rank].pid = pid;
    const std::string prefix = absl::StrCat("[rank ", rank, "] ");
    const int targets[2] = {options_.output, options_.errors};
    for (int i = 0; i < 2; ++i) {
      ranks_[rank].outputs[i] =
          std::make_unique<LinePrefixer>(std::move(read_ends[i]), prefix, targets[i]);
    }
    return absl::OkStatus();
  }

  // For output, a signal, or the time.
  void WaitForSomething(absl::Time until) {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}};
    std::vector<LinePrefixer*> outputs;
    for (const Rank& rank : ranks_) {
      for (const auto& output : rank.outputs) {
        if (output == nullptr || output->fd() < 0) continue;
        entries.push_back({output->fd(), POLLIN, 0});
        outputs.push_back(output.get());
      }
    }
    poll(entries.data(), entries.size(), PollMilliseconds(until, absl::Seconds(60)));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (entries[i + 1].revents != 0) outputs[i]->Read();
    }
  }

  void Forward(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) kill(-rank.pid, signal);
    }
  }

  void End() {
    result_.killed += RunningRanks();
    KillAll();
    kill_at_ = absl::InfiniteFuture();
  }

  void KillAll() {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) kill(-rank.pid, SIGKILL);
    }
  }

  // What a rank has started ends with it: while the rank is not waited for, its number is not given
  // to another group.
  void Reap() {
    for (Rank& rank : ranks_) {
      if (rank.pid <= 0) continue;
      siginfo_t info = {};
      if (waitid(P_PID, rank.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
        continue;
      }
      kill(-rank.pid, SIGKILL);
      waitpid(rank.pid, nullptr, 0);
      rank.pid = -1;
      const bool by_signal = info.si_code != CLD_EXITED;
      Judge(static_cast<int>(&rank - ranks_.data()), by_signal ? 0 : info.si_status,
            by_signal ? info.si_status : 0);
    }
  }

  void Judge(int rank, int code, int signal) {
    if (code == 0 && signal == 0) return;
    const bool orderly = signal == 0 && absl::c_linear_search(options_.orderly_codes, code);
    if (!orderly && kill_at_ == absl::InfiniteFuture() && RunningRanks() > 0 &&
        result_.killed == 0) {
      kill_at_ = absl::Now() + options_.grace;
    }
    // Those that we killed are no cause either.
    if (result_.killed > 0 && result_.rank >= 0) return;
    if (result_.rank < 0 || Weight(result_.exit_code) < Weight(signal > 0 ? 128 + signal : code)) {
      result_.exit_code = signal > 0 ? 128 + signal : code;
      result_.rank = rank;
      result_.signal = signal;
    }
  }

  // How much a code says about the cause.
  int Weight(int code) const {
    if (absl::c_linear_search(options_.orderly_codes, code)) return 0;
    return code == options_.consequence_code ? 1 : 2;
  }

  // A process that left its group may keep a pipe open for ever.
  void Drain() {
    const absl::Time until = absl::Now() + kDrainTime;
    const auto open = [](const Rank& rank) {
      return rank.outputs[0]->fd() >= 0 || rank.outputs[1]->fd() >= 0;
    };
    while (absl::Now() < until && absl::c_any_of(ranks_, open)) {
      WaitForSomething(until);
      while (signals_.Next() != 0) {
      }
    }
    for (const Rank& rank : ranks_) {
      for (const auto& output : rank.outputs) output->Finish();
    }
  }

  const LaunchOptions& options_;
  const SignalQueue signals_;
  std::vector<Rank> ranks_;
  absl::Time kill_at_ = absl::InfiniteFuture();
  int requests_to_end_ = 0;
  LaunchResult result_;
};

}  // namespace

std::string LaunchResult::Describe() const {
  if (rank < 0) return "";
  std::string text = signal > 0 ? absl::StrCat("rank ", rank, " was ended by signal ", signal, " (",
                                               strsignal(signal), ")")
                                : absl::StrCat("rank ", rank, " ended with code ", exit_code);
  if (killed > 0) absl::StrAppend(&text, "; ", killed, " that did not end then were killed");
  return text;
}

absl::StatusOr<LaunchResult> LaunchRanks(const LaunchOptions& options) {
  return Launcher(options).Run();
}

}  // namespace megatron
