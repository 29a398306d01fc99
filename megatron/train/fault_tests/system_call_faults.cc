#include "megatron/train/fault_tests/system_call_faults.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

// A system call that changes files, and the argument that has the descriptor or the path of the
// file.
struct Call {
  const char* name;
  int argument;
  bool is_path;
  bool removes;
};
const std::map<uint64_t, Call>& CallsThatChange() {
  static const auto* const calls = new std::map<uint64_t, Call>{
      {SYS_write, {"write", 0, false, false}},
      {SYS_pwrite64, {"pwrite", 0, false, false}},
      {SYS_writev, {"writev", 0, false, false}},
      {SYS_fsync, {"fsync", 0, false, false}},
      {SYS_fdatasync, {"fdatasync", 0, false, false}},
      {SYS_ftruncate, {"ftruncate", 0, false, false}},
      {SYS_fallocate, {"fallocate", 0, false, false}},
      {SYS_openat, {"openat", 1, true, false}},
      {SYS_open, {"open", 0, true, false}},
      {SYS_mkdir, {"mkdir", 0, true, false}},
      {SYS_mkdirat, {"mkdirat", 1, true, false}},
      {SYS_rename, {"rename", 0, true, false}},
      {SYS_renameat, {"renameat", 1, true, false}},
      {SYS_renameat2, {"renameat2", 1, true, false}},
      {SYS_unlink, {"unlink", 0, true, true}},
      {SYS_unlinkat, {"unlinkat", 1, true, true}},
      {SYS_rmdir, {"rmdir", 0, true, true}},
  };
  return *calls;
}

std::string StringOf(pid_t thread, uint64_t address) {
  std::string text(PATH_MAX, '\0');
  // Reads a page at a time: the next page may not be mapped.
  size_t got = 0;
  while (got < text.size()) {
    const size_t chunk = std::min<size_t>(text.size() - got, 4096 - (address + got) % 4096);
    const iovec local = {&text[got], chunk};
    const iovec remote = {reinterpret_cast<void*>(address + got), chunk};
    if (process_vm_readv(thread, &local, 1, &remote, 1, 0) <= 0) break;
    if (std::memchr(&text[got], 0, chunk) != nullptr) break;
    got += chunk;
  }
  return text.c_str();
}

std::string PathOf(pid_t thread, uint64_t descriptor) {
  char path[PATH_MAX];
  const ssize_t length =
      readlink(absl::StrCat("/proc/", thread, "/fd/", descriptor).c_str(), path, sizeof(path));
  return length < 0 ? "" : std::string(path, length);
}

// Returns the path that a system call names. Calls that take a path in their second argument take
// the directory from which it starts in their first.
std::string NamedPath(pid_t thread, const __ptrace_syscall_info& info, int argument) {
  const std::string path = StringOf(thread, info.entry.args[argument]);
  if (argument != 1 || absl::StartsWith(path, "/")) return path;
  const int directory = static_cast<int>(info.entry.args[0]);
  if (directory == AT_FDCWD) return path;
  return absl::StrCat(PathOf(thread, directory), "/", path);
}

std::string Normal(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().string();
}

class Tracer {
 public:
  Tracer(const std::string& directory, const SystemCallFault& fault)
      : directory_(Normal(directory) + "/"), fault_(fault) {}

  // Runs until all traced processes have ended.
  void Run(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, nullptr,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
               PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    known_.insert(child);
    ptrace(PTRACE_SYSCALL, child, nullptr, 0);
    for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
      if (!WIFSTOPPED(status)) {
        known_.erase(thread);  // another thread may get its number
        strikes_.erase(thread);
        if (thread == child) {
          exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        }
        continue;
      }
      ptrace(PTRACE_SYSCALL, thread, nullptr, Stopped(thread, status));
    }
  }

  int exit_code() const { return exit_code_; }
  int calls() const { return calls_; }
  const std::string& what() const { return what_; }

 private:
  enum class Strike { kNone, kFail, kKill };

  // Returns the signal that the thread is to get.
  int Stopped(pid_t thread, int status) {
    const int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
      SystemCall(thread);
      return 0;
    }
    if (status >> 16 != 0) return 0;                                  // an event
    if (known_.insert(thread).second && signal == SIGSTOP) return 0;  // it has just started
    return signal;
  }

  void SystemCall(pid_t thread) {
    __ptrace_syscall_info info = {};
    ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info);
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      strikes_[thread] = Decide(thread, info);
      if (strikes_[thread] == Strike::kFail)
        SetRegisters(thread, [](user_regs_struct* registers) {
          registers->orig_rax = -1;  // no such call: the kernel returns an error
        });
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
      if (strikes_[thread] == Strike::kKill) kill(thread, SIGKILL);
      if (strikes_[thread] == Strike::kFail)
        SetRegisters(
            thread, [this](user_regs_struct* registers) { registers->rax = -fault_.error_number; });
      strikes_[thread] = Strike::kNone;
    }
  }

  Strike Decide(pid_t thread, const __ptrace_syscall_info& info) {
    const auto call = CallsThatChange().find(info.entry.nr);
    if (call == CallsThatChange().end()) return Strike::kNone;
    const bool opens = info.entry.nr == SYS_openat || info.entry.nr == SYS_open;
    if (opens &&
        (info.entry.args[call->second.argument + 1] & (O_CREAT | O_WRONLY | O_RDWR)) == 0) {
      return Strike::kNone;
    }
    const std::string path = call->second.is_path
                                 ? NamedPath(thread, info, call->second.argument)
                                 : PathOf(thread, info.entry.args[call->second.argument]);
    if (!absl::StartsWith(Normal(path) + "/", directory_)) return Strike::kNone;
    const int number = calls_++;
    const bool later = fault_.lasting && number > fault_.at && !call->second.removes;
    if (fault_.at < 0 || (number != fault_.at && !later)) return Strike::kNone;
    if (number == fault_.at) what_ = absl::StrCat(call->second.name, " ", path);
    return fault_.error_number == 0 ? Strike::kKill : Strike::kFail;
  }

  template <typename Fn>
  static void SetRegisters(pid_t thread, const Fn& set) {
    user_regs_struct registers;
    ptrace(PTRACE_GETREGS, thread, nullptr, &registers);
    set(&registers);
    ptrace(PTRACE_SETREGS, thread, nullptr, &registers);
  }

  const std::string directory_;
  const SystemCallFault fault_;
  std::set<pid_t> known_;
  std::map<pid_t, Strike> strikes_;
  int calls_ = 0;
  int exit_code_ = -1;
  std::string what_;
};

}  // namespace

FaultedRun RunWithFault(const Arguments& command, const std::string& log,
                        const std::string& directory, const SystemCallFault& fault) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(&argument[0]));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    dup2(output, 1);
    dup2(output, 2);
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  Tracer tracer(directory, fault);
  tracer.Run(child);
  return {{tracer.exit_code(), ReadTextFile(log)}, tracer.calls(), tracer.what()};
}

}  // namespace megatron
