// How a rank asks the launcher of its job to claim the directory that the run saves to, so that no
// other run begins there before the job is started again.
//
// The rank writes a line to its errors, which launchers take out of what they pass on. So it comes
// from other machines too, through ssh. A launcher that listens tells its ranks by a variable what
// it is called in the claim.
#ifndef MEGATRON_COMM_LAUNCH_CLAIM_LINE_H_
#define MEGATRON_COMM_LAUNCH_CLAIM_LINE_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

constexpr char kClaimantVariable[] = "MEGATRON_CLAIMANT";
// The variable by which it tells them the directory that it has claimed before this start, so that
// they notice if it has vanished.
constexpr char kClaimedVariable[] = "MEGATRON_CLAIMED_DIRECTORY";

// Describes this process, which is the program of this name or path, in words that are no other's:
// "launch (process 4711 on login1, since 2026-11-29 15:02:11.532)".
std::string DescribeClaimant(absl::string_view program);

// Asks for a claim on the directory.
void AskForClaim(absl::string_view directory);

// Returns the directory that a line asks for, without its end; nothing if it is another line.
std::optional<std::string> ReadClaimLine(absl::string_view line);

// For a launcher that does not listen: passes such a line on to the launcher above it, unless the
// claimant is this process, which has nobody above it. Returns whether it is one.
bool PassClaimLineOn(absl::string_view line);

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_CLAIM_LINE_H_
