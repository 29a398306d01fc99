#include "megatron/federated/federated_options.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/federated/shamir.h"

namespace megatron {
namespace {

// A larger one's variance in units leaves the sampler's range (discrete_gaussian.h).
constexpr double kMostNoiseMultiplier = 32;

}  // namespace

absl::Status CheckFederated(const FederatedOptions& options) {
  // Each range is written so that it holds for no NaN.
  if (!(options.clip_norm > 0 && options.clip_norm <= 1e9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("clip_norm is ", options.clip_norm, "; it is above 0 and at most 1e9"));
  }
  if (options.secure_sum_threshold < 2 || options.secure_sum_threshold > kMostShares) {
    return absl::InvalidArgumentError(absl::StrCat(
        "secure_sum_threshold is ", options.secure_sum_threshold, "; it is 2 to ", kMostShares));
  }
  if (!(options.noise_multiplier >= 0 && options.noise_multiplier <= kMostNoiseMultiplier)) {
    return absl::InvalidArgumentError(absl::StrCat("noise_multiplier is ", options.noise_multiplier,
                                                   "; it is 0 to ", kMostNoiseMultiplier));
  }
  if (!(options.delta > 0 && options.delta < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("delta is ", options.delta, "; it is between 0 and 1"));
  }
  if (!(options.max_epsilon >= 0 && options.max_epsilon <= 1e6)) {
    return absl::InvalidArgumentError(absl::StrCat("max_epsilon is ", options.max_epsilon,
                                                   "; it is 0, for no limit, or at most 1e6"));
  }
  return absl::OkStatus();
}

std::string FederatedDifference(const FederatedOptions& server, const FederatedOptions& island) {
  const auto differ = [](const char* name, double ours, double theirs) -> std::string {
    if (ours == theirs) return "";
    return absl::StrCat("the server has federated.", name, " = ", ours, ", and the island ",
                        theirs);
  };
  if (!server.enabled() && !island.enabled()) return "";
  if (!server.enabled()) return "the server has no --clip_norm, and the island is a federated one";
  if (!island.enabled()) {
    return absl::StrCat("the server is a federated one, with federated.clip_norm = ",
                        server.clip_norm, ", which the island has not");
  }
  for (const std::string& text :
       {differ("clip_norm", server.clip_norm, island.clip_norm),
        differ("secure_sum_threshold", server.secure_sum_threshold, island.secure_sum_threshold),
        differ("noise_multiplier", server.noise_multiplier, island.noise_multiplier),
        differ("delta", server.delta, island.delta),
        differ("max_epsilon", server.max_epsilon, island.max_epsilon)}) {
    if (!text.empty()) return text;
  }
  return "";
}

PrivacyBudget BudgetAfter(const FederatedOptions& options, int64_t rounds) {
  CHECK(options.has_noise());
  const double most =
      options.max_epsilon > 0 ? options.max_epsilon : std::numeric_limits<double>::infinity();
  return PrivacyBudget(options.noise_multiplier, options.delta, most, rounds);
}

}  // namespace megatron
