#include "megatron/base/thread_stacks.h"

#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <mutex>

#include "absl/debugging/symbolize.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

constexpr int kMostFrames = 48;
// Frames to drop: the handler's own, and the one that the system makes for it.
constexpr int kFramesOfHandler = 2;

// A signal handler can reach nothing but a global. One thread at a time is asked: `asked` is its
// id, the negative of its id while it answers, and 0 after it has answered or has been given up.
struct Question {
  std::atomic<int> asked{0};
  std::atomic<bool> answered{false};
  int count = 0;
  void* frames[kMostFrames];
};
Question question;
static_assert(std::atomic<int>::is_always_lock_free, "a handler may touch it");

// The first and the last real-time signals are left to programs.
int QuestionSignal() { return SIGRTMIN + 7; }

int OwnId() { return static_cast<int>(syscall(SYS_gettid)); }

void Answer(int) {
  const int error = errno;
  int id = OwnId();
  if (question.asked.compare_exchange_strong(id, -id)) {
    // absl::GetStackTrace needs frame pointers, which optimized code has not.
    question.count = backtrace(question.frames, kMostFrames);
    question.answered.store(true, std::memory_order_release);
    question.asked.store(0);
  }
  errno = error;
}

std::vector<int> ThreadIds() {
  std::vector<int> ids;
  DIR* const directory = opendir("/proc/self/task");
  if (directory == nullptr) return ids;
  while (const dirent* entry = readdir(directory)) {
    int id = 0;
    if (absl::SimpleAtoi(entry->d_name, &id)) ids.push_back(id);
  }
  closedir(directory);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string FrameText(void* address) {
  char name[1024];
  // A call may be a function's last instruction, and then the return address belongs to the next
  // function; hence the - 1.
  const bool known = absl::Symbolize(static_cast<char*>(address) - 1, name, sizeof(name));
  return known ? name : absl::StrFormat("%p", address);
}

std::vector<std::string> OwnFrames() {
  void* addresses[kMostFrames];
  const int count = backtrace(addresses, kMostFrames);
  std::vector<std::string> frames;
  for (int i = 0; i < count; ++i) frames.push_back(FrameText(addresses[i]));
  return frames;
}

std::vector<std::string> Ask(int id, absl::Duration patience) {
  // The thread asked by an earlier call is still answering.
  if (question.asked.load() != 0) return {};
  question.answered.store(false);
  question.asked.store(id);
  if (syscall(SYS_tgkill, getpid(), id, QuestionSignal()) != 0) {
    question.asked.store(0);
    return {};
  }
  const absl::Time until = SteadyNow() + patience;
  while (!question.answered.load(std::memory_order_acquire)) {
    int expected = id;
    if (SteadyNow() >= until && question.asked.compare_exchange_strong(expected, 0)) return {};
    // The thread began to answer and was then stopped: the question stays taken forever.
    if (SteadyNow() >= until + patience) return {};
    absl::SleepFor(absl::Microseconds(200));
  }
  std::vector<std::string> frames;
  for (int i = kFramesOfHandler; i < question.count; ++i) {
    frames.push_back(FrameText(question.frames[i]));
  }
  return frames;
}

}  // namespace

std::vector<ThreadStack> AllThreadStacks(absl::Duration patience) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  void* unused[1];
  backtrace(unused, 1);  // the first call of backtrace allocates memory, which a handler may not do
  struct sigaction action = {};
  action.sa_handler = Answer;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(QuestionSignal(), &action, nullptr);
  std::vector<ThreadStack> stacks;
  for (const int id : ThreadIds()) {
    ThreadStack stack;
    stack.id = id;
    std::ifstream name(absl::StrCat("/proc/self/task/", id, "/comm"));
    std::getline(name, stack.name);
    stack.frames = id == OwnId() ? OwnFrames() : Ask(id, patience);
    stacks.push_back(std::move(stack));
  }
  return stacks;
}

}  // namespace megatron
