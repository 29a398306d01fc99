// The choice of a cuBLASLt kernel for a product: the one that a plan names, else the fastest if
// products are timed, else the library's own first choice.
//
// Different kernels round differently. Without timing, the choice depends only on the plans and the
// library, and a run repeats bit for bit; with timing, two runs may choose differently. Ranks of
// one process share their choices.
//
// Plans are hints: the planner only chooses among the candidates that the library offers for the
// product, and reports a plan that names none of them.
#ifndef MEGATRON_OPS_CUDA_GEMM_GEMM_PLANNER_H_
#define MEGATRON_OPS_CUDA_GEMM_GEMM_PLANNER_H_

#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "megatron/ops/cuda/gemm/gemm.h"

namespace megatron::ops::cuda {

// The kernels for one product on one device.
class GemmCandidates {
 public:
  virtual ~GemmCandidates() = default;

  // The library's first choice comes first. It may have none.
  virtual absl::Span<const GemmKernel> kernels() const = 0;
  // Returns how long a run of a kernel takes now, or infinity if it fails.
  virtual double Seconds(int candidate) = 0;
};

// The result of timing all kernels.
struct GemmTiming {
  int fastest = 0;
  double seconds = 0, first_seconds = 0;  // times of the fastest and of the library's first choice
};

// Takes the medians of several runs. Runs of the candidates alternate, so that a change of clocks
// affects all alike. Candidates that are far behind after one run are not run again. The first
// candidate wins unless another is faster by more than noise.
GemmTiming TimeCandidates(GemmCandidates* candidates);

// The products that have the GELU beside them as an epilogue. Each value includes those before it.
enum class FuseGelu {
  kNone,
  kBackward,  // the product that computes the gradient behind a GELU
  kBoth,      // and the product in front of a GELU
};

struct GemmPlanning {
  std::vector<GemmPlan> plans;
  bool time_products = false;  // time products without a plan
  // True if the product that computes the gradient of a weight also computes that of the bias.
  bool fuse_bias_gradients = false;
  FuseGelu fuse_gelu = FuseGelu::kNone;
  // A function that is called with all plans when timing has added one; there is one call at a
  // time.
  std::function<void(absl::Span<const GemmPlan>)> on_new_plan;
};

// Threads: any.
class GemmPlanner {
 public:
  // Timing a product takes some milliseconds, so programs whose shapes do not repeat should not do
  // it.
  static constexpr int kMostTimed = 256;

  // Sets how products are planned; called before the first choice.
  void Use(GemmPlanning planning);

  bool fuses_bias_gradients() const { return fuse_bias_gradients_; }
  FuseGelu fuse_gelu() const { return fuse_gelu_; }

  static constexpr int kNoKernel = -1;

  // Returns the index of a candidate: the same kernel for one place and product in all calls;
  // kNoKernel if there is none. `may_time` is false if the device cannot be waited for.
  int Choose(const GemmPlace& place, const Gemm& gemm, bool may_time, GemmCandidates* candidates);

 private:
  using Key = std::pair<GemmPlace, Gemm>;

  // Returns the kernel that was chosen or planned before, as the index of a candidate, or -1.
  int Known(const Key& key, absl::Span<const GemmKernel> kernels) const;
  // Stores and returns the choice. If several threads choose for one product, the first one
  // decides.
  int Decide(const Key& key, absl::Span<const GemmKernel> kernels, const GemmTiming& timing);

  mutable std::mutex mutex_;
  std::map<Key, GemmPlan> plans_;
  std::map<Key, GemmKernel> decided_;
  bool time_products_ = false, fuse_bias_gradients_ = false;
  FuseGelu fuse_gelu_ = FuseGelu::kNone;
  int timed_ = 0;
  std::function<void(absl::Span<const GemmPlan>)> on_new_plan_;
};

// The planner of this process.
GemmPlanner& ProcessGemmPlanner();

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_GEMM_PLANNER_H_
