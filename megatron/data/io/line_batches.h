// Cuts inputs into batches of lines, in bounded memory however long a line is.
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

// Consecutive lines of one input.
struct LineBatch {
  struct Line {
    absl::string_view text;  // points into `buffer`; excludes the line's end
    bool too_long = false;   // the line has more than max_line_bytes; `text` is empty
  };

  std::string path;
  int64_t first_line = 1;  // number of lines[0] in its input, from 1
  std::vector<Line> lines;
  std::string buffer;
  int64_t stored_bytes_read = 0;  // bytes read from storage up to this batch's end, of all inputs
};

// One thread at a time may use a reader; any thread may call Stop.
class LineBatchReader {
 public:
  // Opens a path, as OpenTextInput does; the flag ends its waiting.
  using Opener = std::function<absl::StatusOr<std::unique_ptr<ByteSource>>(
      const std::string& path, const std::atomic<bool>* stop)>;

  struct Options {
    size_t max_line_bytes = size_t{128} << 20;
    size_t batch_bytes = size_t{1} << 20;
    // Next ends with kCancelled when it becomes true, as after Stop; meant for a reader in a thread
    // that nobody can call Stop for. Must outlive the reader.
    const std::atomic<bool>* stop = nullptr;
  };

  LineBatchReader(std::vector<std::string> paths, Opener open, const Options& options);

  // Reads the next lines: about batch_bytes of them, fewer at the end of an input, at least one.
  // Returns false at the end of all inputs. A line ends with '\n' or with its input. A byte order
  // mark before the first line of an input is dropped. A line that is too long is returned as such
  // before its end has been found. A batch takes at most twice the memory of max_line_bytes plus
  // batch_bytes.
  absl::StatusOr<bool> Next(LineBatch* batch);

  // Makes Next, also one that is running, end with kCancelled. Any thread may call it.
  void Stop() { stopped_ = true; }

 private:
  // Appends up to batch_bytes to the buffer; returns false at the end of the input.
  absl::StatusOr<bool> ReadMore(std::string* buffer);
  absl::Status OpenNext();
  absl::Status CheckStop() const;
  // Drops the part of the buffer that belongs to a line already returned as too long.
  void DropLongLine(std::string* buffer);
  // Finds the lines in the buffer from byte `search_from` on.
  void Cut(size_t search_from, LineBatch* batch);
  void AddLine(absl::string_view text, LineBatch* batch);

  const std::vector<std::string> paths_;
  const Opener open_;
  const Options options_;
  std::atomic<bool> stopped_{false};
  size_t next_path_ = 0;
  std::unique_ptr<ByteSource> source_;
  int64_t next_line_ = 1;
  int64_t stored_bytes_before_ = 0;  // bytes of the inputs that are finished
  std::string carry_;                // the beginning of a line
  size_t line_begin_ = 0;            // beginning of the unfinished line in the buffer
  bool dropping_line_ = false;       // the unfinished line was returned as too long
};

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_LINE_BATCHES_H_
