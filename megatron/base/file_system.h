// A small interface to files, so that code that must survive a crash can be tested against file
// systems that fail.
//
//   MEGATRON_ASSIGN_OR_RETURN(std::string text, ReadFileToString(PosixFileSystem(), path));
//   MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(PosixFileSystem(), path, text));
//
// Vocabulary. A write is *durable* if it survives a power cut. WritableFile::Sync makes a file's
// data durable; SyncDir makes the names in a directory (created, renamed or removed entries)
// durable. Nothing else makes anything durable; Close in particular does not.
//
// Every error names the operation, the path and the system's text ("write '/a/b': No space left on
// device"), with the code that absl::ErrnoToStatus gives: kNotFound, kPermissionDenied,
// kResourceExhausted for a full disk, and so on.
//
// A FileSystem and a RandomAccessFile may be used by several threads at once; a WritableFile by one
// thread at a time.
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

// A file being written from its start. Writes are not buffered, so append large pieces. The
// destructor closes the file and ignores errors.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  // If it fails, any prefix of `data` may have been written.
  virtual absl::Status Append(absl::string_view data) = 0;
  virtual absl::Status Sync() = 0;
  // Closes the file. It must be the last call, and is called at most once.
  virtual absl::Status Close() = 0;
};

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;

  // The size at the time when the file was opened.
  virtual int64_t size() const = 0;
  // Fills the whole buffer or fails; kOutOfRange if the file ends too early.
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

  // Creates an empty file, or empties an existing one.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Opens a regular file. Anything else, such as a FIFO, is refused at once, without waiting.
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) = 0;
  // Does the same as Open, but refuses a path whose last component is a symbolic link.
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenNoFollow(
      const std::string& path) = 0;
  // Creates the directory and its missing parents. It is no error if the directory exists.
  virtual absl::Status CreateDirs(const std::string& path) = 0;
  // Renames atomically. It replaces a file at `to`, and fails if a non-empty directory is there.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status SyncDir(const std::string& path) = 0;
  // Removes a file, a link (not its target) or an empty directory.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Removes a directory and everything below it, without following links. It is no error if the
  // directory does not exist.
  virtual absl::Status RemoveTree(const std::string& path) = 0;
  // Returns the names in a directory in ascending order, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // Describes the path itself: a link is reported as a link.
  virtual absl::StatusOr<FileInfo> Stat(const std::string& path) = 0;
  // Returns how many bytes this user may still write on the file system that holds `path`.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
};

// The operating system's files. Created files and directories obey the umask.
FileSystem& PosixFileSystem();

// Joins `directory` and `name` with one slash; returns `name` alone if `directory` is empty.
std::string JoinPath(absl::string_view directory, absl::string_view name);

// Returns the directory that holds `path`: "." for a bare name.
std::string ParentPath(absl::string_view path);

// Reads a whole file. A file larger than `max_bytes` is refused with kResourceExhausted before
// memory is allocated.
absl::StatusOr<std::string> ReadFileToString(FileSystem& fs, const std::string& path,
                                             int64_t max_bytes = int64_t{1} << 31);

// Checks that a rename may put a file at `path`. kFailedPrecondition if a device, a pipe, a link or
// a directory is there; kInvalidArgument if `path` is empty.
absl::Status CheckReplaceable(FileSystem& fs, const std::string& path);

// Replaces the file durably: after a crash at any instant, `path` holds either the old contents or
// all of the new ones. The new contents are first written to `path`.tmp, so a path may have only
// one writer at a time. CheckReplaceable must accept the path.
absl::Status WriteFileAtomically(FileSystem& fs, const std::string& path,
                                 absl::string_view contents);

}  // namespace megatron

#endif  // MEGATRON_BASE_FILE_SYSTEM_H_
