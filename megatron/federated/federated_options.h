// What the islands of a federated run and their server agree on (docs/federated.md).
#ifndef MEGATRON_FEDERATED_FEDERATED_OPTIONS_H_
#define MEGATRON_FEDERATED_FEDERATED_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "megatron/federated/privacy_accountant.h"

namespace megatron {

struct FederatedOptions {
  double clip_norm = 0;  // 0: updates are sent as they are, and all else has no meaning
  // The fewest islands in a sum; with more than twice as many, more than half of them are needed
  // (secure_sum.h).
  int secure_sum_threshold = 2;
  double noise_multiplier = 0;  // 0: there is no noise, and no budget
  double delta = 1e-5;
  double max_epsilon = 0;  // 0: epsilon ends no rounds

  bool enabled() const { return clip_norm > 0; }
  bool has_noise() const { return enabled() && noise_multiplier > 0; }
};

// Returns kInvalidArgument, with the name and the range, for a number out of its range.
absl::Status CheckFederated(const FederatedOptions& options);

// Returns the first difference, for a message: "the server has federated.clip_norm = 1, and the
// island 2"; empty if there is none.
std::string FederatedDifference(const FederatedOptions& server, const FederatedOptions& island);

// Returns the budget after so many rounds. The options have noise.
PrivacyBudget BudgetAfter(const FederatedOptions& options, int64_t rounds);

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_FEDERATED_OPTIONS_H_
