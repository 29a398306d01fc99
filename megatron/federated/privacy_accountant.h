// What rounds with Gaussian noise reveal: epsilon at a delta, by Rényi differential privacy.
//
//   PrivacyAccountant accountant;
//   accountant.AddRounds(noise_multiplier, 1.0, 1);
//   accountant.Epsilon(1e-5);
//
// A round publishes a sum of vectors of an L2 norm of at most C, plus noise with a standard
// deviation of noise_multiplier * C per element. Two inputs are neighbours if one island's update
// is zero in the one and not in the other. The Rényi divergence of the order a is at most
// a / (2 noise_multiplier^2) then (Mironov 2017), for the discrete Gaussian too (Canonne, Kamath
// and Steinke 2020); rounds add up. With a sampling rate q < 1 each island is in a round with the
// probability q, independently and unknown to others (Mironov, Talwar and Zhang 2019). Islands that
// happen to be away are no sample: their rate is 1.
#ifndef MEGATRON_FEDERATED_PRIVACY_ACCOUNTANT_H_
#define MEGATRON_FEDERATED_PRIVACY_ACCOUNTANT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace megatron {

// Returns a bound of the Rényi divergence of one round, of the order `order` > 1. With a rate below
// 1, an order that is no whole number has the bound of the next whole one, which is larger.
// noise_multiplier > 0, 0 <= sampling_rate <= 1.
double GaussianRdp(double noise_multiplier, double sampling_rate, double order);

// Returns the least delta for which `rounds` rounds with all islands are (epsilon, delta)-private,
// exactly (Balle and Wang 2018). It holds for continuous noise.
double ExactGaussianDelta(double noise_multiplier, int64_t rounds, double epsilon);

class PrivacyAccountant {
 public:
  PrivacyAccountant();

  void AddRounds(double noise_multiplier, double sampling_rate, int64_t rounds);
  // Returns the least epsilon that some order proves at this delta; 0 < delta < 1.
  double Epsilon(double delta) const;

 private:
  std::vector<double> rdp_;  // the divergences of all rounds, by order
};

// Rounds that end when the privacy that they may cost is spent. All have the same noise, so that
// their number is all that a file has to keep.
class PrivacyBudget {
 public:
  // `rounds` were taken already.
  PrivacyBudget(double noise_multiplier, double delta, double max_epsilon, int64_t rounds = 0);

  // Returns kResourceExhausted, with figures, if one round more would cost more than max_epsilon.
  absl::Status MayTakeRound() const;
  void TakeRound() { ++rounds_; }
  double epsilon() const { return EpsilonAfter(rounds_); }
  int64_t rounds() const { return rounds_; }

 private:
  double EpsilonAfter(int64_t rounds) const;

  double noise_multiplier_, delta_, max_epsilon_;
  int64_t rounds_;
};

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_PRIVACY_ACCOUNTANT_H_
