#include "megatron/data/io/byte_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

constexpr int kPollMilliseconds = 100;

class MemorySource : public ByteSource {
 public:
  MemorySource(std::string contents, size_t piece)
      : contents_(std::move(contents)), piece_(piece) {}

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    const size_t count = std::min({buffer.size(), piece_, contents_.size() - position_});
    std::memcpy(buffer.data(), contents_.data() + position_, count);
    position_ += count;
    return count;
  }

  int64_t stored_bytes_read() const override { return static_cast<int64_t>(position_); }

 private:
  const std::string contents_;
  const size_t piece_;
  size_t position_ = 0;
};

class FileSource : public ByteSource {
 public:
  FileSource(std::string path, int fd, bool owns_fd, const std::atomic<bool>* stop)
      : path_(std::move(path)), fd_(fd), owns_fd_(owns_fd), stop_(*stop) {
    struct stat info;
    may_wait_ = fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode);
  }
  ~FileSource() override {
    if (owns_fd_) close(fd_);
  }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    while (true) {
      if (stop_) return absl::CancelledError(absl::StrCat("read '", path_, "': stopped"));
      if (may_wait_ && !IsReady()) continue;
      const ssize_t count = read(fd_, buffer.data(), buffer.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat("read '", path_, "'"));
      bytes_read_ += count;
      return static_cast<size_t>(count);
    }
  }

  int64_t stored_bytes_read() const override { return bytes_read_; }

 private:
  // Returns whether a read would return without waiting; the end and errors count as ready.
  bool IsReady() const {
    pollfd entry = {fd_, POLLIN, 0};
    return poll(&entry, 1, kPollMilliseconds) > 0;
  }

  const std::string path_;
  const int fd_;
  const bool owns_fd_;
  const std::atomic<bool>& stop_;
  bool may_wait_ = false;
  int64_t bytes_read_ = 0;
};

}  // namespace

std::unique_ptr<ByteSource> MakeMemorySource(std::string contents, size_t piece) {
  return std::make_unique<MemorySource>(std::move(contents), piece);
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path,
                                                           const std::atomic<bool>* stop) {
  if (path == "-") return std::make_unique<FileSource>("stdin", STDIN_FILENO, false, stop);
  // O_NONBLOCK keeps open() of a pipe from waiting for its writer. Reads do wait, and can be
  // stopped.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open '", path, "'"));
  auto source = std::make_unique<FileSource>(path, fd, true, stop);
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("open '", path, "': it is a directory"));
  }
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return source;
}

}  // namespace megatron
