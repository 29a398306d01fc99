#include "megatron/comm/launch/line_prefixer.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

constexpr size_t kLongestLine = 1 << 16;
// The most bytes that one call reads, so that one process does not keep the others waiting.
constexpr size_t kReadAtOnce = 1 << 18;

// Returns the error of a write, or 0.
int WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(written);
  }
  return 0;
}

}  // namespace

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
  if (!takes_line_ || !takes_line_(line_)) {
    const int error = WriteAll(to_, absl::StrCat(prefix_, line_, "\n"));
    if (error_ == 0) error_ = error;
  }
  line_.clear();
}

}  // namespace megatron
