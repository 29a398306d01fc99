// Writes the event files of one run, and survives whatever a folder may do: it may be unwritable,
// full, or hold other files.
//
//   EventWriter writer(fs, options);
//   writer.CutEarlierFiles([](const Event& event) { return event.step() <= 100; });
//   writer.Write(absl::MakeSpan(&event, 1));
//
// A folder is a run of TensorBoard, which reads the files in it in the order of their names. The
// writer makes one file, events.out.tfevents.<seconds>.<host>.<process>.<n>, whose name comes after
// those of all files that are there.
//
// No reader goes beyond a damaged record. So after a write that failed the writer begins another
// file, and then cuts the damaged one.
#ifndef MEGATRON_TENSORBOARD_EVENT_WRITER_H_
#define MEGATRON_TENSORBOARD_EVENT_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/tensorboard/event.pb.h"

namespace megatron::tensorboard {

struct EventWriterOptions {
  std::string directory;
  // The name that each file has in its first event. Files with another name are left as they are.
  std::string writer;
  std::function<absl::Time()> now = absl::Now;
};

// A writer that one thread uses.
class EventWriter {
 public:
  using Keep = std::function<bool(const Event&)>;

  // Does nothing with files. `fs` must outlive this.
  EventWriter(FileSystem& fs, EventWriterOptions options);

  // Removes all events for which `keep` returns false from the files that this writer's name is in,
  // and everything from a damaged record on. It asks in the order in which TensorBoard reads. A
  // file without any event goes. Each file is replaced atomically. The first error is returned, and
  // the other files are cut nevertheless.
  absl::Status CutEarlierFiles(const Keep& keep);

  // Appends the events by one write to the operating system, so that a program that is killed loses
  // none. A time that is not finite, or is earlier than that of the event before it, becomes that
  // time. After an error the events are kept in memory, up to kMaxPendingBytes, and written later:
  // the writer tries again at the 2nd, 6th, 14th, ... call after it, and then at each 128th.
  // Returns the last error until it has succeeded.
  absl::Status Write(absl::Span<Event> events);

  // Makes durable what was written. Tries again after an error.
  absl::Status Sync();

  static constexpr size_t kMaxPendingBytes = size_t{64} << 20;

 private:
  absl::Status Flush();
  absl::Status AppendPending();
  absl::StatusOr<std::string> NewPath();
  void NoteStamps(const std::vector<std::string>& names);

  FileSystem& fs_;
  const EventWriterOptions options_;
  const std::string host_;
  std::unique_ptr<WritableFile> file_;  // null: the next write begins a file
  std::string path_;                    // path of `file_`
  bool name_is_durable_ = true;
  std::string damaged_path_;  // a file that ends with a part of a record; empty: there is none
  std::string pending_;       // records that are not written yet
  absl::Status status_;       // the last error
  int failures_ = 0;          // number of failures since the last success
  int writes_to_wait_ = 0;    // number of calls before the next try
  double last_time_ = 0;
  int64_t newest_stamp_ = -1;  // the last one in the names of files, removed ones included
};

}  // namespace megatron::tensorboard

#endif  // MEGATRON_TENSORBOARD_EVENT_WRITER_H_
