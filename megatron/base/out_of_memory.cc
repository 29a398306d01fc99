#include "megatron/base/out_of_memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

namespace megatron {
namespace {

std::atomic<int> exit_code_of_want{kAbortForWantOfMemory};
std::terminate_handler other_exceptions = nullptr;

constexpr double kMebibyte = 1 << 20;

// A line of text that takes no memory but its own.
class Line {
 public:
  __attribute__((format(printf, 2, 3))) void Add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int added = std::vsnprintf(text_ + used_, sizeof(text_) - used_, format, arguments);
    va_end(arguments);
    if (added > 0) used_ += static_cast<size_t>(added);
    if (used_ >= sizeof(text_)) used_ = sizeof(text_) - 1;
  }
  void Print() {
    Add("\n");
    // Nothing is left to do where standard error takes nothing.
    static_cast<void>(!write(STDERR_FILENO, text_, used_));
  }

 private:
  char text_[1024];
  size_t used_ = 0;
};

// Returns 0 if the system does not tell. A stream would need memory.
double AddressBytesInUse() {
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[64] = {};
  const ssize_t read_bytes = read(file, text, sizeof(text) - 1);
  close(file);
  if (read_bytes <= 0) return 0;
  return std::strtod(text, nullptr) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void AddFigures(Line* line) {
  if (const double used = AddressBytesInUse(); used > 0)
    line->Add("; this process has %.2f MiB of addresses", used / kMebibyte);
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return;
  if (limit.rlim_cur == RLIM_INFINITY) {
    line->Add(", which are not limited (ulimit -v): the machine or a control group gives no more");
  } else {
    line->Add(", of at most %.2f MiB (ulimit -v); raise the limit",
              static_cast<double>(limit.rlim_cur) / kMebibyte);
  }
}

// The first thread that comes prints its line; the others wait for the end.
[[noreturn]] void End(Line* line) {
  static std::atomic_flag ends = ATOMIC_FLAG_INIT;
  while (ends.test_and_set()) pause();
  AddFigures(line);
  line->Print();
  const int code = exit_code_of_want.load();
  if (code == kAbortForWantOfMemory) std::abort();
  // Neither destructors nor functions at the exit may run: they would wait for threads that go on.
  _exit(code);
}

[[noreturn]] void OnTerminate() {
  Line line;
  try {
    if (const std::exception_ptr exception = std::current_exception())
      std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    line.Add("error: the system gives this program no more memory");
    End(&line);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      line.Add(
          "error: the system starts no more threads for this program: their stacks lack addresses "
          "(ulimit -v), or there are too many (ulimit -u)");
      End(&line);
    }
  } catch (...) {
    // It is for the other handler.
  }
  other_exceptions();
  std::abort();
}

}  // namespace

void SetExitCodeForWantOfMemory(int exit_code) {
  exit_code_of_want.store(exit_code);
  const std::terminate_handler before = std::set_terminate(OnTerminate);
  if (before != OnTerminate) other_exceptions = before;
}

void EndForWantOfMemory(int64_t bytes, const char* use) {
  Line line;
  line.Add("error: out of memory: the system does not give %lld bytes (%.2f MiB) for %s",
           static_cast<long long>(bytes), static_cast<double>(bytes) / kMebibyte, use);
  End(&line);
}

}  // namespace megatron
