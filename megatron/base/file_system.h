// Files behind one small interface, so that what must survive a crash can be tested against file
// systems that fail.
//
// Vocabulary. A write is *durable* when it survives a power cut. Data becomes durable by
// WritableFile::Sync; a name (a created, renamed or removed entry) becomes durable by SyncDir of
// the directory that holds it. Nothing else makes anything durable, and Close in particular does
// not.
//
// Every error names the operation, the path and the system's text ("write '/a/b': No space left on
// device"), with the code that absl::ErrnoToStatus gives: kNotFound, kPermissionDenied,
// kResourceExhausted for a full disk, and so on.
//
// A FileSystem may be used by several threads at once; a WritableFile by one at a time; a
// RandomAccessFile by several.
//
//   MEGATRON_ASSIGN_OR_RETURN(std::string text, ReadFileToString(PosixFileSystem(), path));
//   MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(PosixFileSystem(), path, text));
#ifndef MEGATRON_BASE_FILE_SYSTEM_H_
#define MEGATRON_BASE_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megatron {

// A file being written from its start. Unbuffered: append large pieces. Destruction closes without
// a word.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  // After a failed Append any prefix of `data` may have been written.
  virtual absl::Status Append(absl::string_view data) = 0;
  virtual absl::Status Sync() = 0;
  // At most once, and the last call.
  virtual absl::Status Close() = 0;
};

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;

  // The size when the file was opened.
  virtual int64_t size() const = 0;
  // Fills the whole buffer, or fails; kOutOfRange where the file ends too early.
  virtual absl::Status ReadAt(int64_t offset, absl::Span<char> buffer) const = 0;
};

enum class FileType { kRegular, kDirectory, kSymbolicLink, kOther };

struct FileInfo {
  FileType type = FileType::kOther;
  int64_t size = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates an empty file, or empties the one that is there.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Opens a regular file. Anything else, a FIFO say, is refused at once and never waited for.
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) = 0;
  // As Open, but refuses a path whose last component is a symbolic link.
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenNoFollow(
      const std::string& path) = 0;
  // Creates the directory and its missing parents; fine if it is there already.
  virtual absl::Status CreateDirs(const std::string& path) = 0;
  // Atomic; replaces a file at `to`, fails on a non-empty directory there.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status SyncDir(const std::string& path) = 0;
  // Removes a file, a link (not its target) or an empty directory.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Removes a directory and all below it, following no link. Fine if it isn't there.
  virtual absl::Status RemoveTree(const std::string& path) = 0;
  // The names in a directory, ascending, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // Describes the path itself: a link is reported as a link.
  virtual absl::StatusOr<FileInfo> Stat(const std::string& path) = 0;
  // Bytes that this user may still write on the file system that holds `path`.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
};

// The operating system's files. Created files and directories obey the umask.
FileSystem& PosixFileSystem();

// `directory` and `name` with one slash between; `name` alone where the directory is empty.
std::string JoinPath(absl::string_view directory, absl::string_view name);

// The directory that holds `path`: "." for a bare name.
std::string ParentPath(absl::string_view path);

// Refuses files larger than `max_bytes` with kResourceExhausted, before allocating.
absl::StatusOr<std::string> ReadFileToString(FileSystem& fs, const std::string& path,
                                             int64_t max_bytes = int64_t{1} << 31);

// kFailedPrecondition where something is at `path` that a rename should not replace with a file: a
// device, a pipe, a link, a directory. kInvalidArgument for the empty path.
absl::Status CheckReplaceable(FileSystem& fs, const std::string& path);

// Replaces the file durably: after a crash at any instant `path` holds the old contents or all of
// the new ones. Goes through `path`.tmp, so a path has one writer at a time. Only what is
// CheckReplaceable is replaced.
absl::Status WriteFileAtomically(FileSystem& fs, const std::string& path,
                                 absl::string_view contents);

}  // namespace megatron

#endif  // MEGATRON_BASE_FILE_SYSTEM_H_
