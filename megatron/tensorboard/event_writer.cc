#include "megatron/tensorboard/event_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "megatron/base/host_name.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensorboard/event_records.h"

namespace megatron::tensorboard {
namespace {

constexpr absl::string_view kPrefix = "events.out.tfevents.";
// TensorBoard reads every file with "tfevents" in its name, so a temporary one has another.
constexpr char kTemporary[] = "events.tmp";
constexpr char kVersion[] = "brain.Event:2";
constexpr int64_t kLastStamp = 9999999999;  // one more digit would sort before it

// Returns the host's name as it may stand in the name of a file.
std::string HostOfFile() {
  std::string host = HostName();
  std::replace_if(
      host.begin(), host.end(),
      [](char c) { return !absl::ascii_isalnum(c) && c != '.' && c != '-'; }, '-');
  return host;
}

// Returns the seconds in the name of an event file.
std::optional<int64_t> StampOf(absl::string_view name) {
  int64_t stamp;
  if (!absl::ConsumePrefix(&name, kPrefix) ||
      !absl::SimpleAtoi(name.substr(0, name.find('.')), &stamp) || stamp < 0 || stamp > kLastStamp)
    return std::nullopt;
  return stamp;
}

Event FirstEvent(const std::string& writer, double time) {
  Event event;
  event.set_wall_time(time);
  event.set_file_version(kVersion);
  event.mutable_source_metadata()->set_writer(writer);
  return event;
}

std::optional<Event> TakeEvent(absl::string_view* bytes) {
  const std::optional<absl::string_view> record = TakeRecord(bytes);
  Event event;
  if (!record || record->size() > std::numeric_limits<int>::max() ||
      !event.ParseFromArray(record->data(), static_cast<int>(record->size())))
    return std::nullopt;
  return event;
}

// Returns whether the file at `path` begins as `writer`'s do. Reads no more than that.
absl::StatusOr<bool> IsOf(FileSystem& fs, const std::string& path, const std::string& writer) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs.Open(path));
  const size_t most = FirstEvent(writer, 1).ByteSizeLong() + 64;
  std::string start(std::min<int64_t>(most, file->size()), '\0');
  MEGATRON_RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(start)));
  absl::string_view rest = start;
  const std::optional<Event> first = TakeEvent(&rest);
  return first && first->file_version() == kVersion && first->source_metadata().writer() == writer;
}

absl::Status ReplaceFile(FileSystem& fs, const std::string& path, absl::string_view contents) {
  const std::string temporary = JoinPath(ParentPath(path), kTemporary);
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs.Create(temporary));
  absl::Status status = file->Append(contents);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = fs.Rename(temporary, path);
  if (!status.ok()) fs.Remove(temporary).IgnoreError();
  MEGATRON_RETURN_IF_ERROR(status);
  return fs.SyncDir(ParentPath(path));
}

// Cuts one of the writer's files. A record that is whole but no event ends it, as for readers.
absl::Status CutFile(FileSystem& fs, const std::string& path, const EventWriter::Keep& keep) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string contents, ReadFileToString(fs, path));
  absl::string_view rest = contents;
  if (!TakeEvent(&rest)) return absl::OkStatus();  // the writer's own first event
  std::string kept = contents.substr(0, contents.size() - rest.size());
  const size_t first = kept.size();
  for (absl::string_view before = rest; const std::optional<Event> event = TakeEvent(&rest);
       before = rest) {
    if (keep(*event)) absl::StrAppend(&kept, before.substr(0, before.size() - rest.size()));
  }
  if (kept.size() == contents.size()) return absl::OkStatus();
  return kept.size() == first ? fs.Remove(path) : ReplaceFile(fs, path, kept);
}

}  // namespace

EventWriter::EventWriter(FileSystem& fs, EventWriterOptions options)
    : fs_(fs), options_(std::move(options)), host_(HostOfFile()) {}

absl::Status EventWriter::CutEarlierFiles(const Keep& keep) {
  const absl::StatusOr<std::vector<std::string>> names = fs_.List(options_.directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(names.status());
  NoteStamps(*names);
  absl::Status first_error;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kPrefix)) continue;
    const std::string path = JoinPath(options_.directory, name);
    const absl::StatusOr<bool> ours = IsOf(fs_, path, options_.writer);
    // A file that can't be opened is another's: a folder, or one without permission.
    if (ours.ok() && *ours) first_error.Update(CutFile(fs_, path, keep));
  }
  return first_error;
}

void EventWriter::NoteStamps(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (const std::optional<int64_t> stamp = StampOf(name))
      newest_stamp_ = std::max(newest_stamp_, *stamp);
  }
}

absl::StatusOr<std::string> EventWriter::NewPath() {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.List(options_.directory));
  NoteStamps(names);
  const int64_t stamp = std::max(absl::ToUnixSeconds(options_.now()), newest_stamp_ + 1);
  const std::string start = absl::StrFormat("%s%010d.%s.%d.", kPrefix, std::min(stamp, kLastStamp),
                                            host_, static_cast<int64_t>(getpid()));
  int number = 0;
  while (std::binary_search(names.begin(), names.end(), absl::StrCat(start, number))) ++number;
  return JoinPath(options_.directory, absl::StrCat(start, number));
}

absl::Status EventWriter::Write(absl::Span<Event> events) {
  const size_t before = pending_.size();
  for (Event& event : events) {
    if (std::isfinite(event.wall_time())) last_time_ = std::max(last_time_, event.wall_time());
    event.set_wall_time(last_time_);
    AppendRecord(event.SerializeAsString(), &pending_);
  }
  if (failures_ == 0) return Flush();
  if (pending_.size() > kMaxPendingBytes) pending_.resize(before);
  return --writes_to_wait_ > 0 ? status_ : Flush();
}

absl::Status EventWriter::AppendPending() {
  std::string first;
  if (file_ == nullptr) {
    MEGATRON_RETURN_IF_ERROR(fs_.CreateDirs(options_.directory));
    MEGATRON_ASSIGN_OR_RETURN(path_, NewPath());
    MEGATRON_ASSIGN_OR_RETURN(file_, fs_.Create(path_));
    name_is_durable_ = false;
    AppendRecord(FirstEvent(options_.writer, last_time_).SerializeAsString(), &first);
  }
  const absl::Status appended = file_->Append(first.empty() ? pending_ : first + pending_);
  if (appended.ok()) {
    pending_.clear();
    return absl::OkStatus();
  }
  file_ = nullptr;
  if (first.empty()) {
    damaged_path_ = path_;
  } else {
    fs_.Remove(path_).IgnoreError();
  }
  return appended;
}

absl::Status EventWriter::Flush() {
  status_ = AppendPending();
  if (!status_.ok()) {
    failures_ = std::min(failures_ + 1, 7);
    writes_to_wait_ = 1 << failures_;
    return status_;
  }
  failures_ = 0;
  if (damaged_path_.empty()) return absl::OkStatus();
  return CutFile(fs_, std::exchange(damaged_path_, std::string()),
                 [](const Event&) { return true; });
}

absl::Status EventWriter::Sync() {
  if (!pending_.empty()) {
    MEGATRON_RETURN_IF_ERROR(Flush());
  }
  if (file_ == nullptr) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(file_->Sync());
  if (!name_is_durable_) {
    MEGATRON_RETURN_IF_ERROR(fs_.SyncDir(options_.directory));
    MEGATRON_RETURN_IF_ERROR(fs_.SyncDir(ParentPath(options_.directory)));
  }
  name_is_durable_ = true;
  return absl::OkStatus();
}

}  // namespace megatron::tensorboard
