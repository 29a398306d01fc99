#include "megatron/comm/socket/job_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/socket/hmac_sha256.h"

namespace megatron {
namespace {

constexpr int kSecretBytes = 32;
constexpr size_t kMaxFileBytes = 256;

absl::StatusOr<std::string> ReadPrivateFile(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, "stat");
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError("others may read it; make it private (chmod 600)");
  }
  std::string text(kMaxFileBytes, '\0');
  const ssize_t got = read(fd, &text[0], text.size());
  if (got < 0) return absl::ErrnoToStatus(errno, "read");
  text.resize(got);
  return text;
}

}  // namespace

JobSecret JobSecret::Random() { return JobSecret(RandomBytes(kSecretBytes)); }

absl::StatusOr<JobSecret> JobSecret::FromHex(absl::string_view hex) {
  std::string bytes;
  if (hex.size() != 2 * kSecretBytes || !absl::HexStringToBytes(hex, &bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job's secret has ", 2 * kSecretBytes, " hexadecimal digits"));
  }
  return JobSecret(std::move(bytes));
}

absl::StatusOr<JobSecret> JobSecret::FromFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open the job's secret ", path));
  const absl::StatusOr<std::string> text = ReadPrivateFile(fd);
  close(fd);
  MEGATRON_RETURN_IF_ERROR(text.status(), _ << "in the job's secret " << path);
  absl::StatusOr<JobSecret> secret = FromHex(absl::StripAsciiWhitespace(*text));
  MEGATRON_RETURN_IF_ERROR(secret.status(), _ << "in " << path);
  return secret;
}

std::string JobSecret::ToHex() const { return absl::BytesToHexString(bytes_); }

}  // namespace megatron
