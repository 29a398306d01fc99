// One output of a process, passed on line by line with a prefix.
#ifndef MEGATRON_COMM_LAUNCH_LINE_PREFIXER_H_
#define MEGATRON_COMM_LAUNCH_LINE_PREFIXER_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "megatron/comm/socket/socket.h"

namespace megatron {

// Each line goes on in one write, so that those of several processes do not mix.
class LinePrefixer {
 public:
  // Reads from a descriptor that does not block. Lines that begin with `mark` are remembered,
  // unless it is empty. Lines for which `takes_line` returns true are not passed on; null: all are.
  LinePrefixer(Socket from, std::string prefix, int to, std::string mark = "",
               std::function<bool(absl::string_view line)> takes_line = nullptr)
      : from_(std::move(from)),
        prefix_(std::move(prefix)),
        to_(to),
        mark_(std::move(mark)),
        takes_line_(std::move(takes_line)) {}

  // -1 after the end.
  int fd() const { return from_.fd(); }

  // Returns the error number of the first line that could not be written, or 0. The lines after it
  // are read and tried all the same: the process goes on.
  int error() const { return error_; }

  // Returns what follows the mark in the last line that begins with it, or an empty string.
  const std::string& marked() const { return marked_; }

  // Passes on what there is, up to a bound; the end closes it.
  void Read();
  // Passes on a line that has no end yet.
  void Finish();

 private:
  void Append(absl::string_view bytes);
  void Print();

  Socket from_;
  const std::string prefix_;
  const int to_;
  const std::string mark_;
  const std::function<bool(absl::string_view line)> takes_line_;
  std::string line_, marked_;
  int error_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_LINE_PREFIXER_H_
