// GradientNoise: the scale of the noise in gradients, as a number of samples (S. McCandlish et al.,
// "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A.1).
//
// A batch much smaller than it gives gradients that are mostly noise, so that twice the batch
// trains about twice as fast per step; with a batch much larger than it most samples are wasted.
//
// The expected square norm of the mean gradient of b samples is |G|^2 + tr(S) / b, where G is the
// gradient of all data and S the covariance of single samples' gradients. Two batch sizes give
// unbiased estimates of both terms; each is averaged over steps before the one is divided by the
// other, since the quotient of one step's estimates is neither unbiased nor steady.
#ifndef MEGATRON_OPTIM_GRADIENT_NOISE_H_
#define MEGATRON_OPTIM_GRADIENT_NOISE_H_

#include <optional>

namespace megatron {

class GradientNoise {
 public:
  // The weight of the past in the averages: about 20 steps count.
  static constexpr double kDecay = 0.95;

  // Adds a step: the mean square norm of the gradients of parts of `part` samples, and the square
  // norm of that of all `batch` samples, which is more. Values that are not finite are passed over.
  void Add(double part_squares, double part, double batch_squares, double batch);

  // The noise scale tr(S) / |G|^2; nothing before the first step, while noise hides the gradient,
  // so that the estimate of |G|^2 is not positive, and while that of tr(S) is negative.
  std::optional<double> samples() const;
  // The averages of the two estimates. Their common factor, 1 - kDecay^steps, cancels in samples();
  // it is divided out here.
  double trace() const { return trace_ / weight_; }
  double gradient_squares() const { return squares_ / weight_; }

 private:
  double trace_ = 0, squares_ = 0, weight_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_GRADIENT_NOISE_H_
