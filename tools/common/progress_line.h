// Tells on stderr how far a program is: on a terminal in one line that renews itself five times a
// second, elsewhere in a plain line every ten seconds.
#ifndef MEGATRON_TOOLS_COMMON_PROGRESS_LINE_H_
#define MEGATRON_TOOLS_COMMON_PROGRESS_LINE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace megatron {

class ProgressLine {
 public:
  ProgressLine();

  double seconds() const;  // count since the beginning

  // Prints what `line` returns, where it is time to.
  void Update(absl::FunctionRef<std::string()> line);
  // The last line; it stays.
  void Finish(absl::string_view line);
  // Removes an unfinished line from a terminal, before something else is printed.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  const Clock::time_point start_;
  Clock::time_point last_;
};

// "1:02:03", or "0:42", of seconds.
std::string FormatDuration(double seconds);

// "12.3 k", "4.56 G": a number of at least 0 in three digits and a unit's prefix.
std::string FormatCount(double count);

// ", 37 %, 0:42 left" where `total` is known, "" where it is not positive.
std::string FormatRemaining(int64_t done, int64_t total, double seconds);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_PROGRESS_LINE_H_
