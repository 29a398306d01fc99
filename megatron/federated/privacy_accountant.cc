#include "megatron/federated/privacy_accountant.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "glog/logging.h"

namespace megatron {
namespace {

// Small orders serve large epsilons, large orders small ones.
const std::vector<double>& Orders() {
  static const std::vector<double>& orders = *[] {
    auto* list = new std::vector<double>;
    for (int i = 1; i < 90; ++i) list->push_back(1 + i / 10.0);
    for (int order = 10; order < 64; ++order) list->push_back(order);
    for (double order = 64; order <= 65536; order *= 1.125) list->push_back(std::floor(order));
    return list;
  }();
  return orders;
}

double LogAdd(double a, double b) {
  const double most = std::max(a, b), least = std::min(a, b);
  return std::isinf(most) ? most : most + std::log1p(std::exp(least - most));
}

double LogBinomial(int64_t n, int64_t k) {
  return std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0);
}

double NormalProbability(double below) { return 0.5 * std::erfc(-below / std::sqrt(2.0)); }

}  // namespace

double GaussianRdp(double noise_multiplier, double sampling_rate, double order) {
  CHECK_GT(noise_multiplier, 0);
  CHECK_GT(order, 1);
  CHECK(sampling_rate >= 0 && sampling_rate <= 1) << sampling_rate;
  const double inverse = 1 / (2 * noise_multiplier * noise_multiplier);
  if (sampling_rate == 0) return 0;
  if (sampling_rate == 1) return order * inverse;
  // The moment of a whole order is a finite sum over how often the island is drawn.
  const int64_t whole = static_cast<int64_t>(std::ceil(order));
  double log_moment = -std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k <= whole; ++k) {
    log_moment = LogAdd(log_moment, LogBinomial(whole, k) + k * std::log(sampling_rate) +
                                        (whole - k) * std::log1p(-sampling_rate) +
                                        (static_cast<double>(k) * k - k) * inverse);
  }
  return std::max(0.0, log_moment / (whole - 1));
}

double ExactGaussianDelta(double noise_multiplier, int64_t rounds, double epsilon) {
  CHECK_GT(noise_multiplier, 0);
  // Rounds together are one round with the distance of both means grown by their root.
  const double distance = std::sqrt(static_cast<double>(rounds)) / noise_multiplier;
  return NormalProbability(distance / 2 - epsilon / distance) -
         std::exp(epsilon) * NormalProbability(-distance / 2 - epsilon / distance);
}

PrivacyAccountant::PrivacyAccountant() : rdp_(Orders().size(), 0.0) {}

void PrivacyAccountant::AddRounds(double noise_multiplier, double sampling_rate, int64_t rounds) {
  CHECK_GE(rounds, 0);
  for (size_t i = 0; i < rdp_.size(); ++i) {
    rdp_[i] += rounds * GaussianRdp(noise_multiplier, sampling_rate, Orders()[i]);
  }
}

double PrivacyAccountant::Epsilon(double delta) const {
  CHECK(0 < delta && delta < 1) << delta;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < rdp_.size(); ++i) {
    const double order = Orders()[i];
    // Canonne, Kamath and Steinke 2020, proposition 12.
    const double epsilon =
        rdp_[i] + std::log1p(-1 / order) - (std::log(delta) + std::log(order)) / (order - 1);
    least = std::min(least, epsilon);
  }
  return std::max(0.0, least);
}

PrivacyBudget::PrivacyBudget(double noise_multiplier, double delta, double max_epsilon,
                             int64_t rounds)
    : noise_multiplier_(noise_multiplier),
      delta_(delta),
      max_epsilon_(max_epsilon),
      rounds_(rounds) {}

double PrivacyBudget::EpsilonAfter(int64_t rounds) const {
  if (rounds == 0) return 0;
  PrivacyAccountant accountant;
  accountant.AddRounds(noise_multiplier_, 1, rounds);
  return accountant.Epsilon(delta_);
}

absl::Status PrivacyBudget::MayTakeRound() const {
  const double next = EpsilonAfter(rounds_ + 1);
  if (next <= max_epsilon_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the privacy budget is spent: epsilon is %.4g at delta %.3g after %d rounds, and one round "
      "more would make it %.4g, above the largest allowed, %.4g",
      epsilon(), delta_, rounds_, next, max_epsilon_));
}

}  // namespace megatron
