#include "megatron/comm/launch/claim_line.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/host_name.h"

namespace megatron {
namespace {

// It differs from how an agent's reasons begin (host_launcher.h).
constexpr absl::string_view kMark = "megatron claims the directory ";

// "(process 4711 on login1, since ", which is no other process's while this one lives.
std::string ProcessHere() {
  return absl::StrCat("(process ", getpid(), " on ", HostName(), ", since ");
}

bool ClaimsItself() {
  const char* const claimant = getenv(kClaimantVariable);
  return claimant != nullptr && absl::StrContains(claimant, ProcessHere());
}

// A line that can't be written is not heard: the directory is not claimed.
void WriteToErrors(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string DescribeClaimant(absl::string_view program) {
  const size_t slash = program.rfind('/');
  if (slash != absl::string_view::npos) program.remove_prefix(slash + 1);
  return absl::StrCat(program, " ", ProcessHere(),
                      absl::FormatTime("%Y-%m-%d %H:%M:%E3S", absl::Now(), absl::LocalTimeZone()),
                      ")");
}

void AskForClaim(absl::string_view directory) {
  WriteToErrors(absl::StrCat(kMark, absl::CEscape(directory), "\n"));
}

std::optional<std::string> ReadClaimLine(absl::string_view line) {
  std::string directory;
  if (!absl::ConsumePrefix(&line, kMark) || !absl::CUnescape(line, &directory)) return std::nullopt;
  return directory;
}

bool PassClaimLineOn(absl::string_view line) {
  const std::optional<std::string> directory = ReadClaimLine(line);
  if (directory && !ClaimsItself()) AskForClaim(*directory);
  return directory.has_value();
}

}  // namespace megatron
