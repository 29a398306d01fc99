// Which of cuBLASLt's kernels computes a product: the one that a plan names, else the fastest if
// products are to be timed, else the library's own first choice.
//
// Different kernels round differently. So without timing the choice depends on the plans and the
// library alone, and a run repeats bit for bit; with it two runs may choose differently. Ranks of
// one process share their choices.
//
// Plans are hints: the planner only ever chooses among the candidates that the library offers for
// the product, and says so where a plan names none of them.
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

  // The library's best guess first; at least one.
  virtual absl::Span<const GemmKernel> kernels() const = 0;
  // How long a run of a kernel takes now; infinity where it fails.
  virtual double Seconds(int candidate) = 0;
};

// What became of timing them all.
struct GemmTiming {
  int fastest = 0;
  double seconds = 0, first_seconds = 0;  // of it and of the library's first choice
};

// The medians of several runs, taken in turns so that a change of clocks touches all alike. Those
// that are far behind after one run are not run again. The first candidate keeps its place unless
// another is faster by more than noise.
GemmTiming TimeCandidates(GemmCandidates* candidates);

struct GemmPlanning {
  std::vector<GemmPlan> plans;
  bool time_products = false;  // those without a plan
  // Whether the product of a weight's gradient gives the bias's gradient, too.
  bool fuse_bias_gradients = false;
  // Called with all plans when timing has added one; one call at a time.
  std::function<void(absl::Span<const GemmPlan>)> on_new_plan;
};

// Threads: any.
class GemmPlanner {
 public:
  // A product timed costs some milliseconds: programs whose shapes never come again must not spend
  // their time with it.
  static constexpr int kMostTimed = 256;

  // Before the first choice.
  void Use(GemmPlanning planning);

  bool fuses_bias_gradients() const { return fuse_bias_gradients_; }

  // The number of a candidate: for one place and product always that of the same kernel. `may_time`
  // is false where a device can't be waited for.
  int Choose(const GemmPlace& place, const Gemm& gemm, bool may_time, GemmCandidates* candidates);

 private:
  using Key = std::pair<GemmPlace, Gemm>;

  // The kernel chosen or planned before, as the number of a candidate, or -1.
  int Known(const Key& key, absl::Span<const GemmKernel> kernels) const;
  // Of several threads that choose for one product the first decides.
  int Decide(const Key& key, absl::Span<const GemmKernel> kernels, const GemmTiming& timing);

  mutable std::mutex mutex_;
  std::map<Key, GemmPlan> plans_;
  std::map<Key, GemmKernel> decided_;
  bool time_products_ = false, fuse_bias_gradients_ = false;
  int timed_ = 0;
  std::function<void(absl::Span<const GemmPlan>)> on_new_plan_;
};

// The planner of this process.
GemmPlanner& ProcessGemmPlanner();

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_GEMM_PLANNER_H_
