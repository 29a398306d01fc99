#include "tools/common/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megatron {

ProgressLine::ProgressLine()
    : terminal_(isatty(STDERR_FILENO) != 0), start_(Clock::now()), last_(start_) {}

double ProgressLine::seconds() const {
  return std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-9);
}

void ProgressLine::Update(absl::FunctionRef<std::string()> line) {
  const Clock::time_point now = Clock::now();
  const auto interval = terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10);
  if (now - last_ < interval) return;
  last_ = now;
  std::cerr << (terminal_ ? "\r\x1b[K" : "") << line() << (terminal_ ? "" : "\n") << std::flush;
}

void ProgressLine::Finish(absl::string_view line) {
  Clear();
  std::cerr << line << std::endl;
}

void ProgressLine::Clear() {
  if (terminal_) std::cerr << "\r\x1b[K" << std::flush;
}

std::string FormatDuration(double seconds) {
  const int64_t whole = static_cast<int64_t>(std::min(std::max(seconds, 0.0), 1e12));
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string FormatCount(double count) {
  constexpr absl::string_view kPrefixes[] = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < std::size(kPrefixes)) {
    count /= 1000;
    ++unit;
  }
  const bool whole = unit == 0 && count == std::floor(count);
  const int decimals = whole || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2;
  return absl::StrCat(absl::StrFormat("%.*f", decimals, count), kPrefixes[unit]);
}

std::string FormatRemaining(int64_t done, int64_t total, double seconds) {
  if (total <= 0 || done <= 0) return "";
  const double share = std::min(static_cast<double>(done) / static_cast<double>(total), 1.0);
  return absl::StrFormat(", %d %%, %s left", static_cast<int>(share * 100),
                         FormatDuration(seconds * (1 - share) / share));
}

}  // namespace megatron
