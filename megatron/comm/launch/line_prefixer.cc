#include "megatron/comm/launch/line_prefixer.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

constexpr size_t kLongestLine = 1 << 16;
// The most bytes that one call reads, so that one process does not keep the others waiting.
constexpr size_t kReadAtOnce = 1 << 18;

// A pipe that takes a line takes PIPE_BUF bytes; a file takes all.
size_t MostBytesOfAWrite(int fd) {
  struct stat status;
  const bool is_file = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  return is_file ? std::string::npos : PIPE_BUF;
}

}  // namespace

bool TakesLine(int fd) {
  pollfd entry = {fd, POLLOUT, 0};
  return poll(&entry, 1, 0) != 0;  // what can't be waited for is tried
}

LineQueue::LineQueue(int to) : to_(to), most_(MostBytesOfAWrite(to)) {}

void LineQueue::Add(std::string line) {
  lines_.push_back(std::move(line));
  Write();
}

void LineQueue::Write() {
  while (!lines_.empty() && TakesLine(to_)) {
    const std::string& line = lines_.front();
    const ssize_t written =
        write(to_, line.data() + written_, std::min(line.size() - written_, most_));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0 && error_ == 0) error_ = errno;
    if (written >= 0) written_ += static_cast<size_t>(written);
    if (written >= 0 && written_ < line.size()) continue;
    lines_.pop_front();
    written_ = 0;
  }
}

void LinePrefixer::Read() {
  char bytes[1 << 14];
  for (size_t total = 0; from_.valid() && total < kReadAtOnce;) {
    const ssize_t got = read(from_.fd(), bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return Finish();
    Append({bytes, static_cast<size_t>(got)});
    total += static_cast<size_t>(got);
  }
}

void LinePrefixer::Finish() {
  if (!line_.empty()) Print();
  from_.Close();
}

void LinePrefixer::Append(absl::string_view bytes) {
  for (char c : bytes) {
    if (c != '\n') line_.push_back(c);
    if (c == '\n' || line_.size() >= kLongestLine) Print();
  }
}

void LinePrefixer::Print() {
  if (!mark_.empty() && absl::StartsWith(line_, mark_)) marked_ = line_.substr(mark_.size());
  if (!takes_line_ || !takes_line_(line_)) to_->Add(absl::StrCat(prefix_, line_, "\n"));
  line_.clear();
}

}  // namespace megatron
