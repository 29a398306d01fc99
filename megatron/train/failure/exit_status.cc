#include "megatron/train/failure/exit_status.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

constexpr char kPayload[] = "megatron/exit_code";

std::optional<int> CarriedCode(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int code = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &code)) return std::nullopt;
  return code;
}

ExitCode CodeOfKind(absl::StatusCode kind) {
  switch (kind) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitConfig;
    case absl::StatusCode::kDataLoss:
      return kExitData;
    case absl::StatusCode::kUnavailable:
      return kExitPeerLost;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitHang;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitIo;
  }
}

}  // namespace

absl::Status WithExitCode(absl::Status status, ExitCode code) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(code))));
  return status;
}

absl::Status WithExitCodeOfRank(const absl::Status& status, ExitCode own) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return WithExitCode(status, kExitHang);
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return WithExitCode(status, kExitPeerLost);
    default:
      return WithExitCode(status, own);
  }
}

bool HasExitCode(const absl::Status& status) { return CarriedCode(status).has_value(); }

ExitCode ExitCodeOf(const absl::Status& status) {
  const std::optional<int> carried = CarriedCode(status);
  return carried.has_value() ? static_cast<ExitCode>(*carried) : CodeOfKind(status.code());
}

}  // namespace megatron
