#include "megatron/base/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

absl::StatusOr<std::string> ReadPrivate(int fd, size_t max_bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, "stat");
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError("others may read it; make it private (chmod 600)");
  }
  std::string text(max_bytes + 1, '\0');
  const ssize_t got = read(fd, &text[0], text.size());
  if (got < 0) return absl::ErrnoToStatus(errno, "read");
  if (static_cast<size_t>(got) > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("it has more than ", max_bytes, " bytes"));
  }
  text.resize(got);
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  absl::StatusOr<std::string> text = ReadPrivate(fd, max_bytes);
  close(fd);
  return text;
}

}  // namespace megatron
