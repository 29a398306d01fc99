#include "megatron/comm/launch/children.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/launch/line_prefixer.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/watch/process_activity.h"

namespace megatron {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
constexpr int kErrors = 1;  // index of a child's output of errors
// The conventions of shells.
constexpr int kNoSuchProgram = 127;
constexpr int kSignalCode = 128;  // plus the signal
constexpr absl::Duration kDescriptorPatience = absl::Seconds(30);
// The time for what the last writers of a pipe have left in it.
constexpr absl::Duration kDrainTime = absl::Seconds(1);
// The time between two looks at children that should end.
constexpr absl::Duration kLook = absl::Milliseconds(250);
constexpr absl::Duration kLookForStops = absl::Seconds(1);

absl::Status Errno(const char* what) { return absl::ErrnoToStatus(errno, what); }

// Returns whether two descriptors are of one file, pipe or terminal.
bool AreSame(int a, int b) {
  struct stat first, second;
  return a == b || (fstat(a, &first) == 0 && fstat(b, &second) == 0 &&
                    first.st_dev == second.st_dev && first.st_ino == second.st_ino);
}

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

// Blocks signals as long as it lives, and gives them out as reads of a descriptor.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&mask_);
    sigaddset(&mask_, SIGCHLD);
    for (int signal : kForwarded) sigaddset(&mask_, signal);
    // A signal that is blocked would be queued though it is ignored.
    if (IgnoresHangups()) sigdelset(&mask_, SIGHUP);
    PCHECK(sigprocmask(SIG_BLOCK, &mask_, &old_mask_) == 0);
    // A want of descriptors may pass, as when children that have ended give theirs back.
    const absl::Time patience = SteadyNow() + kDescriptorPatience;
    do {
      fd_ = Socket(signalfd(-1, &mask_, SFD_NONBLOCK | SFD_CLOEXEC));
      if (fd_.valid()) return;
      PCHECK(errno == EMFILE || errno == ENFILE || errno == ENOMEM);
      absl::SleepFor(absl::Milliseconds(50));
    } while (SteadyNow() < patience);
    LOG(FATAL) << "there has been no descriptor for signals for " << kDescriptorPatience;
  }
  ~SignalQueue() { sigprocmask(SIG_SETMASK, &old_mask_, nullptr); }

  int fd() const { return fd_.fd(); }
  const sigset_t& old_mask() const { return old_mask_; }
  // Returns 0 if there is none.
  int Next() const {
    signalfd_siginfo info;
    return read(fd_.fd(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                               : 0;
  }

 private:
  sigset_t mask_, old_mask_;
  Socket fd_;
};

class Runner {
 public:
  Runner(std::vector<Child> children, const ChildrenOptions& options)
      : children_(std::move(children)),
        options_(options),
        output_(options.output),
        errors_(options.errors),
        share_(AreSame(options.output, options.errors)) {}

  absl::StatusOr<LaunchResult> Run() {
    const absl::Status started = StartAll();
    if (!started.ok()) {
      KillAll();
      while (CountRunning() > 0) {
        Reap();
        TellWhoDoesNotEnd();
        absl::SleepFor(absl::Milliseconds(1));
      }
      return started;
    }
    if (options_.stop_limit > absl::ZeroDuration()) next_look_for_stops_ = SteadyNow();
    while (CountRunning() > 0) {
      WaitForSomething(std::min(
          {kill_at_, next_look_, next_look_for_stops_, NextReplacement(), NextKilledToTellOf()}));
      for (int signal = signals_.Next(); signal != 0; signal = signals_.Next()) {
        if (signal != SIGCHLD) Received(signal);
      }
      Reap();
      if (SteadyNow() >= NextReplacement()) Replace();
      if (SteadyNow() >= next_look_) LookForHangs();
      if (SteadyNow() >= next_look_for_stops_) LookForStops();
      if (SteadyNow() >= kill_at_) End();
      TellWhoDoesNotEnd();
    }
    JudgeLost();
    Drain();
    return result_;
  }

 private:
  struct Running {
    pid_t pid = -1;  // -1: not started, or ended
    absl::Time killed_at = absl::InfiniteFuture();
    bool is_told_of = false;  // it does not end although it was killed, which was told
    // When a child takes the place of a lost one, which that is, and how the lost one has ended.
    absl::Time replace_at = absl::InfiniteFuture();
    Child next;
    int lost_code = 0, lost_signal = 0;
    bool is_replacement = false;
    bool is_left_behind = false;  // the others have ended in good order without it
    std::unique_ptr<LinePrefixer> outputs[2];
    Socket control;
    std::string unsent;  // what the child has not read of its input
    // The state at the last look, and when it had changed.
    int64_t ticks = -1;
    absl::Time worked;
    absl::Time stopped_since = absl::InfiniteFuture();
  };

  int CountRunning() const {
    return static_cast<int>(absl::c_count_if(running_, [](const Running& r) { return r.pid > 0; }));
  }

  absl::Status StartAll() {
    running_.resize(children_.size());
    for (size_t i = 0; i < children_.size(); ++i) {
      MEGATRON_RETURN_IF_ERROR(Start(i), _ << "while starting " << children_[i].name);
    }
    return absl::OkStatus();
  }

  absl::Status Start(size_t index) {
    const Child& child = children_[index];
    Running& running = running_[index];
    Socket read_ends[2], write_ends[2], input;
    running.unsent.clear();
    for (int i = 0; i < 2; ++i) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return Errno("pipe");
      read_ends[i] = Socket(ends[0]);
      write_ends[i] = Socket(ends[1]);
      fcntl(ends[0], F_SETFL, O_NONBLOCK);
    }
    if (!child.input.empty()) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Errno("socketpair");
      running.control = Socket(ends[0]);
      input = Socket(ends[1]);
    } else if (options_.control >= 0) {
      input = Socket(open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!input.valid()) return Errno("open /dev/null");
    }
    std::vector<std::string> entries;
    for (const auto& [name, value] : child.environment) {
      entries.push_back(absl::StrCat(name, "=", value));
    }
    CStrings arguments(child.command), variables(std::move(entries));
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid < 0) return Errno("fork");
    if (pid == 0) {
      // The child does only what is safe between fork and exec.
      setpgid(0, 0);  // so that a terminal's signals come through the launcher alone
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);
      sigprocmask(SIG_SETMASK, &signals_.old_mask(), nullptr);
      if (input.valid()) dup2(input.fd(), 0);
      dup2(write_ends[0].fd(), 1);
      dup2(write_ends[1].fd(), 2);
      if (child.inherited >= 0) fcntl(child.inherited, F_SETFD, 0);
      execvpe(arguments.get()[0], arguments.get(), variables.get());
      const char* const why = std::strerror(errno);
      const char* const program = arguments.get()[0];
      (void)!write(2, "cannot start ", 13);
      (void)!write(2, program, std::strlen(program));
      (void)!write(2, ": ", 2);
      (void)!write(2, why, std::strlen(why));
      _exit(kNoSuchProgram);
    }
    setpgid(pid, pid);  // set on both sides, whichever is first
    running.pid = pid;
    running.killed_at = absl::InfiniteFuture();
    running.is_told_of = false;
    LineQueue* const targets[2] = {&output_, errors()};
    for (int i = 0; i < 2; ++i) {
      const bool is_errors = i == kErrors;
      running.outputs[i] = std::make_unique<LinePrefixer>(
          std::move(read_ends[i]), child.prefix, targets[i], is_errors ? child.reason_mark : "",
          is_errors ? options_.takes_line : nullptr);
    }
    SendInput(&running, child.input);
    return absl::OkStatus();
  }

  // A child that does not read must not keep the others waiting; one that has ended never will, and
  // its end is seen elsewhere.
  static void SendInput(Running* running, absl::string_view text) {
    if (!running->control.valid()) return;
    std::string& unsent = running->unsent;
    absl::StrAppend(&unsent, text);
    while (!unsent.empty()) {
      const ssize_t sent =
          send(running->control.fd(), unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      unsent.erase(0, sent < 0 ? unsent.size() : static_cast<size_t>(sent));
    }
  }

  // Waits for output, a signal, or the time.
  void WaitForSomething(absl::Time until) {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}, {control_, POLLIN, 0}};
    std::vector<LinePrefixer*> outputs;
    for (const Running& child : running_) {
      for (const auto& output : child.outputs) {
        if (output == nullptr || output->fd() < 0 || output->waits()) continue;
        entries.push_back({output->fd(), POLLIN, 0});
        outputs.push_back(output.get());
      }
    }
    for (const Running& child : running_) {
      if (!child.unsent.empty()) entries.push_back({child.control.fd(), POLLOUT, 0});
    }
    if (!output_.empty()) entries.push_back({output_.fd(), POLLOUT, 0});
    if (!errors()->empty() || !untold_.empty()) entries.push_back({errors()->fd(), POLLOUT, 0});
    poll(entries.data(), entries.size(), PollMilliseconds(until, absl::Seconds(60)));
    if (entries[1].revents != 0) ReadControl();
    for (size_t i = 0; i < outputs.size(); ++i) {
      // What another child has printed just now may have filled the output.
      if (entries[i + 2].revents != 0 && !outputs[i]->waits()) outputs[i]->Read();
    }
    output_.Write();
    errors()->Write();
    TellWhatWaits();
    for (Running& child : running_) {
      if (!child.unsent.empty()) SendInput(&child, "");
    }
  }

  // Where children print to one place, their lines are in one queue.
  LineQueue* errors() { return share_ ? &output_ : &errors_; }

  // Whoever tells writes to the errors, and must not wait there for a reader.
  void Tell(std::string line) {
    if (!options_.tell) return;
    untold_.push_back(std::move(line));
    TellWhatWaits();
  }
  void TellWhatWaits() {
    while (!untold_.empty() && errors()->empty() && TakesLine(errors()->fd())) {
      const std::string line = std::move(untold_.front());
      untold_.pop_front();
      options_.tell(line);
    }
  }
  bool HasUnwritten() { return !output_.empty() || !errors()->empty() || !untold_.empty(); }

  void Received(int signal) {
    if (!NoteRequest(signal)) return;
    // A second request means it.
    if (requests_to_end_ < 2 || !EndsAtOnce(signal)) return Forward(signal);
    if (result_.child < 0) {
      result_.asked_twice = true;
      result_.signal = signal;
      result_.exit_code = 128 + signal;
    }
    End();
  }

  static bool EndsAtOnce(int signal) { return signal == SIGINT || signal == SIGTERM; }

  // Returns false if the signal belongs to a request that was noted before.
  bool NoteRequest(int signal) {
    const bool ends = EndsAtOnce(signal);
    if (ends && SteadyNow() < asked_at_ + options_.one_request) return false;
    if (result_.asked == 0 && IsRequestToEnd(signal)) result_.asked = signal;
    if (ends && requests_to_end_++ == 0) asked_at_ = SteadyNow();
    return true;
  }

  void Forward(int signal) {
    for (Running& child : running_) {
      if (child.pid <= 0) continue;
      if (child.control.valid()) {
        SendInput(&child, absl::StrCat("signal ", signal, "\n"));
      } else {
        kill(-child.pid, signal);
      }
    }
  }

  // Lines as Forward writes them; the end of them is the end of all.
  void ReadControl() {
    char bytes[256];
    const ssize_t got = read(control_, bytes, sizeof(bytes));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
      control_ = -1;
      return End();
    }
    control_text_.append(bytes, got);
    const size_t end = control_text_.rfind('\n');
    if (end == std::string::npos) return;
    for (absl::string_view line : absl::StrSplit(control_text_.substr(0, end), '\n')) {
      int signal = 0;
      if (absl::ConsumePrefix(&line, "signal ") && absl::SimpleAtoi(line, &signal) &&
          absl::c_linear_search(kForwarded, signal)) {
        Received(signal);
      }
    }
    control_text_.erase(0, end + 1);
  }

  void End() {
    for (size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].pid > 0) result_.killed.push_back(children_[i].name);
    }
    KillAll();
    kill_at_ = absl::InfiniteFuture();
  }

  void KillAll() {
    for (Running& child : running_) {
      if (child.pid > 0) Kill(&child);
    }
  }

  static void Kill(Running* child) {
    kill(-child->pid, SIGKILL);
    child->killed_at = std::min(child->killed_at, SteadyNow());
  }

  absl::Time KilledToTellOf(const Running& child) const {
    return child.pid > 0 && !child.is_told_of ? child.killed_at + options_.kill_patience
                                              : absl::InfiniteFuture();
  }
  absl::Time NextKilledToTellOf() const {
    absl::Time next = absl::InfiniteFuture();
    for (const Running& child : running_) next = std::min(next, KilledToTellOf(child));
    return next;
  }
  void TellWhoDoesNotEnd() {
    const absl::Time now = SteadyNow();
    for (size_t i = 0; i < running_.size(); ++i) {
      Running& child = running_[i];
      if (now < KilledToTellOf(child)) continue;
      child.is_told_of = true;
      Tell(absl::StrCat(
          children_[i].name, " (process ", child.pid, ") was killed and has not ended for ",
          absl::FormatDuration(options_.kill_patience),
          ": it is frozen, or waits in the system, as for a file server that does not "
          "answer; it is waited for"));
    }
  }

  // Processes that a rank has started end with it: while the rank is not waited for, its number is
  // not given to another group.
  void Reap() {
    for (Running& child : running_) {
      if (child.pid <= 0) continue;
      siginfo_t info = {};
      if (waitid(P_PID, child.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
        continue;
      }
      kill(-child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
      child.pid = -1;
      const bool by_signal = info.si_code != CLD_EXITED;
      const int index = static_cast<int>(&child - running_.data());
      const int code = by_signal ? 0 : info.si_status, signal = by_signal ? info.si_status : 0;
      if (child.is_left_behind) continue;
      if (IsLost(child, code, signal)) {
        Lose(index, code, signal);
        continue;
      }
      // A child that was starting, such as one in the place of a lost one, ends at once when all
      // are asked to, and one may be lost just then. The others end in good order, and have their
      // time.
      if (options_.goes_on && result_.asked != 0 && result_.killed.empty() &&
          (MeansLost(code, signal) || code - kSignalCode == result_.asked)) {
        child.lost_code = code;
        child.lost_signal = signal;
        continue;
      }
      // It was cut off from the others, which have not needed it.
      if (options_.goes_on && code == options_.consequence_code && OthersEndedWell()) continue;
      any_ended_ = true;
      if (options_.idle_limit > absl::ZeroDuration()) {
        next_look_ = std::min(next_look_, SteadyNow());
      }
      Judge(index, code, signal);
    }
  }

  bool MayReplace() const {
    return !any_ended_ && result_.asked == 0 && kill_at_ == absl::InfiniteFuture();
  }
  bool MeansLost(int code, int signal) const {
    return signal != 0 || code == options_.hang_code ||
           (options_.is_lost && options_.is_lost(code));
  }
  // Returns whether the others go on without a child that has ended so.
  bool IsLost(const Running& child, int code, int signal) const {
    if (!options_.goes_on || !MayReplace()) return false;
    if (MeansLost(code, signal)) return true;
    // What one lacks that comes later, such as memory, the others may have. They end by themselves
    // if they have failed as it has.
    return child.is_replacement && code != 0 && Weight(code) > 1;
  }

  void Lose(int index, int code, int signal) {
    Running& child = running_[index];
    child.lost_code = code;
    child.lost_signal = signal;
    std::string how =
        signal > 0 ? absl::StrCat("was ended by signal ", signal, " (", strsignal(signal), ")")
                   : absl::StrCat("ended with code ", code);
    const std::string name = children_[index].name;
    child.outputs[kErrors]->Read();
    if (const std::string& reason = child.outputs[kErrors]->marked(); !reason.empty())
      absl::StrAppend(&how, " (", reason, ")");
    const absl::Duration wait = signal == 0 && code == options_.consequence_code
                                    ? std::max(options_.grace, options_.replacement_wait)
                                    : options_.replacement_wait;
    const auto next = [&] {
      return options_.replacement ? options_.replacement(index) : children_[index];
    };
    absl::StrAppend(&how, PlanReplacement(index, next, wait));
    Tell(absl::StrCat(name, " ", how));
  }

  // Returns what comes of a lost child: "; it is started again in 1s (1 of 10)", or "".
  std::string PlanReplacement(int index, absl::FunctionRef<Child()> next, absl::Duration wait) {
    // Where all are lost there is nobody to join.
    if (replacements_ >= options_.replacements || CountRunning() == 0) return "";
    ++replacements_;
    Running& child = running_[index];
    child.replace_at = SteadyNow() + wait;
    child.next = next();
    const std::string& name = child.next.name;
    return absl::StrCat("; ",
                        name == children_[index].name ? "it is started again"
                                                      : absl::StrCat(name, " takes its place"),
                        " in ", absl::FormatDuration(wait), " (", replacements_, " of ",
                        options_.replacements, ")");
  }

  absl::Time NextReplacement() const {
    absl::Time next = absl::InfiniteFuture();
    for (const Running& child : running_) next = std::min(next, child.replace_at);
    return next;
  }

  void Replace() {
    const absl::Time now = SteadyNow();
    for (size_t i = 0; i < running_.size(); ++i) {
      Running& child = running_[i];
      if (now < child.replace_at) continue;
      child.replace_at = absl::InfiniteFuture();
      if (!MayReplace()) continue;
      for (const auto& output : child.outputs) {
        output->Read();
        output->Finish();
      }
      children_[i] = std::move(child.next);
      if (const absl::Status started = Start(i); !started.ok()) {
        // What was missing, such as descriptors, may be there later.
        const std::string then = PlanReplacement(
            static_cast<int>(i), [&] { return children_[i]; }, options_.replacement_wait);
        Tell(absl::StrCat(children_[i].name, " cannot be started: ", started.message(), then));
        continue;
      }
      child.lost_code = child.lost_signal = 0;
      child.is_replacement = true;
      child.ticks = -1;
      child.stopped_since = absl::InfiniteFuture();
    }
  }

  bool OthersEndedWell() const {
    return any_ended_ && (result_.child < 0 || Weight(result_.exit_code) == 0);
  }

  // Lost children are failures, unless others have ended in good order without them.
  void JudgeLost() {
    if (OthersEndedWell()) return;
    for (size_t i = 0; i < running_.size(); ++i) {
      const Running& child = running_[i];
      if (child.lost_code != 0 || child.lost_signal != 0)
        Judge(static_cast<int>(i), child.lost_code, child.lost_signal);
    }
  }

  void Judge(int index, int code, int signal) {
    if ((code == 0 && signal == 0) || result_.asked_twice) return;
    const bool orderly = signal == 0 && absl::c_linear_search(options_.orderly_codes, code);
    if (!orderly && kill_at_ == absl::InfiniteFuture() && CountRunning() > 0 &&
        result_.killed.empty()) {
      kill_at_ = SteadyNow() + options_.grace;
    }
    // Those that we killed are no cause either.
    if (!result_.killed.empty() && result_.child >= 0) return;
    if (result_.child < 0 || Weight(result_.exit_code) < Weight(signal > 0 ? 128 + signal : code)) {
      result_.exit_code = signal > 0 ? 128 + signal : code;
      // Whoever finds that another one hangs ends with the code of hangs, before that one is
      // killed.
      result_.is_consequence =
          signal == 0 && (code == options_.consequence_code || code == options_.hang_code);
      result_.child = index;
      result_.name = children_[index].name;
      result_.signal = signal;
    }
  }

  void LookForHangs() {
    const absl::Time now = SteadyNow();
    // Whoever stopped this process may have stopped the whole job.
    const bool was_away = now > next_look_ + options_.idle_limit / 2;
    next_look_ = now + kLook;
    for (Running& child : running_) {
      if (child.pid <= 0 || kill_at_ != absl::InfiniteFuture()) continue;
      const ProcessActivity activity = ActivityOfGroup(child.pid);
      if (activity.ticks != child.ticks || activity.waits_for_disk || was_away) child.worked = now;
      child.ticks = activity.ticks;
      if (now < child.worked + options_.idle_limit) continue;
      child.is_left_behind = options_.goes_on && result_.child < 0;
      if (!child.is_left_behind) {
        Judge(static_cast<int>(&child - running_.data()), options_.hang_code, 0);
        result_.hang = absl::StrCat("was still there when another one had ended, and has been ",
                                    activity.stopped ? "stopped" : "asleep", " for ",
                                    absl::FormatDuration(options_.idle_limit));
      }
      Kill(&child);
    }
  }

  void LookForStops() {
    const absl::Time now = SteadyNow();
    const bool was_away = now > next_look_for_stops_ + options_.stop_limit / 2;
    next_look_for_stops_ = now + kLookForStops;
    int stopped = 0;
    for (Running& child : running_) {
      const bool stops = child.pid > 0 && IsStopped(child.pid);
      stopped += stops;
      if (!stops) child.stopped_since = absl::InfiniteFuture();
      if (stops && (was_away || child.stopped_since > now)) child.stopped_since = now;
    }
    // Something that stops them all, as a scheduler may, will let them continue.
    if (stopped == CountRunning() && options_.control < 0) return;
    for (Running& child : running_) {
      if (kill_at_ != absl::InfiniteFuture() || now < child.stopped_since + options_.stop_limit) {
        continue;
      }
      if (!IsLost(child, options_.hang_code, 0)) {
        Judge(static_cast<int>(&child - running_.data()), options_.hang_code, 0);
        result_.hang =
            absl::StrCat("has been stopped for ", absl::FormatDuration(options_.stop_limit));
      }
      Kill(&child);
    }
  }

  // Returns how much a code says about the cause.
  int Weight(int code) const {
    if (absl::c_linear_search(options_.orderly_codes, code)) return 0;
    return code == options_.consequence_code ? 1 : 2;
  }

  // A process that left its group may keep a pipe open for ever. A reader has all the time it
  // takes, unless a second request to end comes.
  void Drain() {
    const absl::Time until = SteadyNow() + kDrainTime;
    const auto open = [](const Running& child) {
      return child.outputs[0]->fd() >= 0 || child.outputs[1]->fd() >= 0;
    };
    const auto wait = [this](absl::Time end) {
      WaitForSomething(end);
      for (int signal = signals_.Next(); signal != 0; signal = signals_.Next()) NoteRequest(signal);
    };
    while (SteadyNow() < until && absl::c_any_of(running_, open)) wait(until);
    for (const Running& child : running_) {
      for (const auto& output : child.outputs) {
        output->Read();
        output->Finish();
      }
    }
    // Where the control has ended, whoever reads has gone or is cut off.
    const bool had_control = options_.control >= 0;
    while (HasUnwritten() && requests_to_end_ < 2 && (!had_control || control_ >= 0))
      wait(absl::InfiniteFuture());
    result_.errors_wait = !errors()->empty() || !untold_.empty();
    result_.output_error = output_.error();
    if (result_.child >= 0) result_.reason = running_[result_.child].outputs[kErrors]->marked();
  }

  std::vector<Child> children_;
  const ChildrenOptions& options_;
  const SignalQueue signals_;
  LineQueue output_, errors_;
  const bool share_;                // both are one place
  std::deque<std::string> untold_;  // what `tell` hears once the errors take a line
  std::vector<Running> running_;
  int control_ = options_.control;
  std::string control_text_;  // an unfinished line
  absl::Time kill_at_ = absl::InfiniteFuture();
  absl::Time next_look_ = absl::InfiniteFuture();
  absl::Time next_look_for_stops_ = absl::InfiniteFuture();
  int requests_to_end_ = 0;
  // When the first of these requests came.
  absl::Time asked_at_ = absl::InfinitePast();
  int replacements_ = 0;    // number of children that were started again
  bool any_ended_ = false;  // a child has ended that is not lost
  LaunchResult result_;
};

// Returns "rank 0, rank 3 did not end and were killed".
std::string WereKilled(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 8;
  const size_t shown = std::min(names.size(), kMostNames);
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return absl::StrCat(text, " did not end and ", names.size() == 1 ? "was" : "were", " killed");
}

}  // namespace

std::string LaunchResult::Describe() const {
  if (asked_twice) {
    return absl::StrCat("asked twice to end, at last by signal ", signal, " (", strsignal(signal),
                        ")", killed.empty() ? "" : absl::StrCat(": ", WereKilled(killed)));
  }
  if (child < 0 && asked != 0)
    return absl::StrCat("asked to end by signal ", asked, " (", strsignal(asked), ")");
  if (child < 0) return "";
  const std::string end =
      signal > 0 ? absl::StrCat("ended by signal ", signal, " (", strsignal(signal), ")")
                 : absl::StrCat("ended with code ", exit_code);
  if (is_consequence && hang.empty() && !killed.empty())
    return absl::StrCat(WereKilled(killed), ", after ", name, " had ", end);
  std::string text = absl::StrCat(name, signal > 0 ? " was " : " ", end);
  if (!hang.empty()) text = absl::StrCat(name, " ", hang);
  if (!reason.empty()) absl::StrAppend(&text, " (", reason, ")");
  if (!killed.empty()) absl::StrAppend(&text, "; after that ", WereKilled(killed));
  return text;
}

std::vector<std::string> NamesToBlame(const LaunchResult& result) {
  if (result.is_consequence && result.hang.empty()) return result.killed;
  return {result.name};
}

bool IsRequestToEnd(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

bool IgnoresHangups() {
  struct sigaction action = {};
  PCHECK(sigaction(SIGHUP, nullptr, &action) == 0);
  return action.sa_handler == SIG_IGN;
}

absl::StatusOr<LaunchResult> RunChildren(std::vector<Child> children,
                                         const ChildrenOptions& options) {
  return Runner(std::move(children), options).Run();
}

}  // namespace megatron
