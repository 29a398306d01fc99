// One output of a process, passed on line by line with a prefix.
#ifndef MEGATRON_COMM_LAUNCH_LINE_PREFIXER_H_
#define MEGATRON_COMM_LAUNCH_LINE_PREFIXER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "megatron/comm/socket/socket.h"

namespace megatron {

// Returns whether a line of up to PIPE_BUF bytes can be written without waiting for a reader.
bool TakesLine(int fd);

// Lines on their way to a descriptor, in order. Whoever adds them is not kept waiting by a pipe
// that nobody reads.
class LineQueue {
 public:
  explicit LineQueue(int to);

  int fd() const { return to_; }
  bool empty() const { return lines_.empty(); }
  // Adds a line with its end, and writes what the descriptor takes.
  void Add(std::string line);
  // Writes what the descriptor takes now. A line goes on in one write, so that those of several
  // processes do not mix; in pipes a line of more than PIPE_BUF bytes takes several.
  void Write();

  // Returns the error number of the first line that could not be written, or 0. The lines after it
  // are tried all the same.
  int error() const { return error_; }

 private:
  const int to_;
  const size_t most_;  // the most bytes of one write
  std::deque<std::string> lines_;
  size_t written_ = 0;  // bytes of the first line
  int error_ = 0;
};

class LinePrefixer {
 public:
  // Reads from a descriptor that does not block. Lines that begin with `mark` are remembered,
  // unless it is empty. Lines for which `takes_line` returns true are not passed on; null: all are.
  LinePrefixer(Socket from, std::string prefix, LineQueue* to, std::string mark = "",
               std::function<bool(absl::string_view line)> takes_line = nullptr)
      : from_(std::move(from)),
        prefix_(std::move(prefix)),
        to_(to),
        mark_(std::move(mark)),
        takes_line_(std::move(takes_line)) {}

  // -1 after the end.
  int fd() const { return from_.fd(); }
  // Returns whether lines wait to be written where this one's go. Whoever does not read meanwhile
  // makes the process wait for the reader, too.
  bool waits() const { return !to_->empty(); }

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
  LineQueue* const to_;
  const std::string mark_;
  const std::function<bool(absl::string_view line)> takes_line_;
  std::string line_, marked_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_LINE_PREFIXER_H_
