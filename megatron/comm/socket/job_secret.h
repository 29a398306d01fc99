// The secret that the processes of one job share, and by which they know each other.
//
// 256 random bits, written as 64 hexadecimal digits. It goes from the launcher to the ranks in the
// environment (MEGATRON_JOB_SECRET) or in a file that only its owner may read
// (MEGATRON_JOB_SECRET_FILE), never on a command line, which everybody on the machine can see.
#ifndef MEGATRON_COMM_SOCKET_JOB_SECRET_H_
#define MEGATRON_COMM_SOCKET_JOB_SECRET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

constexpr char kJobSecretVariable[] = "MEGATRON_JOB_SECRET";
constexpr char kJobSecretFileVariable[] = "MEGATRON_JOB_SECRET_FILE";

class JobSecret {
 public:
  static JobSecret Random();
  static absl::StatusOr<JobSecret> FromHex(absl::string_view hex);
  // White space around the digits is ignored. Refuses a file that others than its owner may read.
  static absl::StatusOr<JobSecret> FromFile(const std::string& path);

  std::string ToHex() const;
  absl::string_view bytes() const { return bytes_; }

 private:
  explicit JobSecret(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_JOB_SECRET_H_
