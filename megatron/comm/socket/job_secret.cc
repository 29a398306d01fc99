#include "megatron/comm/socket/job_secret.h"

#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/private_file.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/socket/hmac_sha256.h"

namespace megatron {
namespace {

constexpr int kSecretBytes = 32;
constexpr size_t kMaxFileBytes = 256;

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
  const absl::StatusOr<std::string> text = ReadPrivateFile(path, kMaxFileBytes);
  MEGATRON_RETURN_IF_ERROR(text.status(), _ << "in the job's secret " << path);
  absl::StatusOr<JobSecret> secret = FromHex(absl::StripAsciiWhitespace(*text));
  MEGATRON_RETURN_IF_ERROR(secret.status(), _ << "in " << path);
  return secret;
}

std::string JobSecret::ToHex() const { return absl::BytesToHexString(bytes_); }

}  // namespace megatron
