// Cuts inputs into lines, many at a time, in memory that no line can exhaust.
#ifndef MEGATRON_DATA_IO_LINE_BATCHES_H_
#define MEGATRON_DATA_IO_LINE_BATCHES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/io/byte_source.h"

namespace megatron {

// Lines of one input that follow each other.
struct LineBatch {
  struct Line {
    absl::string_view text;  // without its end; into `buffer`
    bool too_long = false;   // it has more than max_line_bytes; `text` is empty then
  };

  std::string path;
  int64_t first_line = 1;  // the number of lines[0] in its input, from 1
  std::vector<Line> lines;
  std::string buffer;
  int64_t stored_bytes_read = 0;  // of all inputs, as they lie on disk, up to this batch's end
};

// One thread at a time, but for Stop.
class LineBatchReader {
 public:
  // Called with a path and the flag that ends its waiting, as OpenTextInput is.
  using Opener = std::function<absl::StatusOr<std::unique_ptr<ByteSource>>(
      const std::string& path, const std::atomic<bool>* stop)>;

  struct Options {
    size_t max_line_bytes = size_t{128} << 20;
    size_t batch_bytes = size_t{1} << 20;
    // Becoming true ends a Next with kCancelled, as Stop does; for a reader in a thread that nobody
    // watches. Must outlive the reader.
    const std::atomic<bool>* stop = nullptr;
  };

  LineBatchReader(std::vector<std::string> paths, Opener open, const Options& options);

  // The next lines: about batch_bytes of them, fewer at the end of an input, never none. False at
  // the end of all. A line ends with '\n' or where its input does. A byte order mark before the
  // first line of an input is dropped. A line is known to be too long, and given, before its end is
  // looked for. A batch takes twice the memory of max_line_bytes and batch_bytes together at most.
  absl::StatusOr<bool> Next(LineBatch* batch);

  // Ends Next, also one that is under way, with kCancelled. Any thread may call it.
  void Stop() { stopped_ = true; }

 private:
  // Reads up to batch_bytes behind what the buffer holds; false at the end of the input.
  absl::StatusOr<bool> ReadMore(std::string* buffer);
  absl::Status OpenNext();
  absl::Status CheckStop() const;
  // Forgets what the buffer holds of a line that was given as too long.
  void PassOver(std::string* buffer);
  // Finds the lines in the buffer, from byte `search_from` on.
  void Cut(size_t search_from, LineBatch* batch);
  void AddLine(absl::string_view text, LineBatch* batch);

  const std::vector<std::string> paths_;
  const Opener open_;
  const Options options_;
  std::atomic<bool> stopped_{false};
  size_t next_path_ = 0;
  std::unique_ptr<ByteSource> source_;
  int64_t next_line_ = 1;
  int64_t stored_bytes_before_ = 0;  // of inputs that are done
  std::string carry_;                // the beginning of a line
  size_t line_begin_ = 0;            // of the line not yet ended, in the buffer
  bool passing_over_ = false;        // the line not yet ended was given as too long
};

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_LINE_BATCHES_H_
