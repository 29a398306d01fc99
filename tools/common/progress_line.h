// Prints a program's progress to stderr: on a terminal in one line that is redrawn five times a
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

  // Prints the result of `line` if it is time to.
  void Update(absl::FunctionRef<std::string()> line);
  // Prints the last line, which stays.
  void Finish(absl::string_view line);
  // Removes an unfinished line from a terminal, before something else is printed.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  const Clock::time_point start_;
  Clock::time_point last_;
};

// Returns seconds as "1:02:03" or "0:42".
std::string FormatDuration(double seconds);

// Returns a number of at least 0 with three digits and a unit's prefix: "12.3 k", "4.56 G".
std::string FormatCount(double count);

// Returns ", 37 %, 0:42 left", or "" if `total` is unknown (not positive).
std::string FormatRemaining(int64_t done, int64_t total, double seconds);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_PROGRESS_LINE_H_
