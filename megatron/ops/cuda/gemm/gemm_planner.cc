#include "megatron/ops/cuda/gemm/gemm_planner.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
#include "megatron/base/median.h"

namespace megatron::ops::cuda {
namespace {

constexpr int kRounds = 7;
constexpr double kFarBehind = 1.5;
constexpr double kNoise = 0.01;

}  // namespace

GemmTiming TimeCandidates(GemmCandidates* candidates) {
  const size_t count = candidates->kernels().size();
  std::vector<double> once(count);
  for (size_t i = 0; i < count; ++i) {
    candidates->Seconds(static_cast<int>(i));  // loads the kernel
    once[i] = candidates->Seconds(static_cast<int>(i));
  }
  const double limit = kFarBehind * *std::min_element(once.begin(), once.end());
  std::vector<std::vector<double>> times(count);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      if (std::isfinite(once[i]) && once[i] <= limit)
        times[i].push_back(candidates->Seconds(static_cast<int>(i)));
    }
  }
  std::vector<double> medians(count);
  for (size_t i = 0; i < count; ++i) medians[i] = times[i].empty() ? once[i] : Median(times[i]);
  const auto fastest = std::min_element(medians.begin(), medians.end()) - medians.begin();
  const bool first_will_do = !(medians[fastest] < (1 - kNoise) * medians[0]);
  const int chosen = first_will_do ? 0 : static_cast<int>(fastest);
  return {chosen, medians[chosen], medians[0]};
}

void GemmPlanner::Use(GemmPlanning planning) {
  std::lock_guard<std::mutex> lock(mutex_);
  plans_.clear();
  for (GemmPlan& plan : planning.plans) {
    Key key = {plan.place, plan.gemm};
    plans_[std::move(key)] = std::move(plan);
  }
  decided_.clear();
  time_products_ = planning.time_products;
  fuse_bias_gradients_ = planning.fuse_bias_gradients;
  fuse_gelu_ = planning.fuse_gelu;
  timed_ = 0;
  on_new_plan_ = std::move(planning.on_new_plan);
}

int GemmPlanner::Known(const Key& key, absl::Span<const GemmKernel> kernels) const {
  const auto decided = decided_.find(key);
  const auto plan = plans_.find(key);
  if (decided == decided_.end() && plan == plans_.end()) return -1;
  const GemmKernel& wanted = decided != decided_.end() ? decided->second : plan->second.kernel;
  const auto kernel = std::find(kernels.begin(), kernels.end(), wanted);
  return kernel == kernels.end() ? -1 : static_cast<int>(kernel - kernels.begin());
}

int GemmPlanner::Choose(const GemmPlace& place, const Gemm& gemm, bool may_time,
                        GemmCandidates* candidates) {
  const Key key = {place, gemm};
  const absl::Span<const GemmKernel> kernels = candidates->kernels();
  if (kernels.empty()) return kNoKernel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const int known = Known(key, kernels); known >= 0) return known;
    const bool time = time_products_ && may_time && kernels.size() > 1 && timed_ < kMostTimed;
    LOG_IF(WARNING, plans_.count(key) > 0)
        << "the plan of the " << gemm << " names a kernel that cuBLASLt does not offer for it: "
        << (time ? "timing its kernels anew" : "taking cuBLASLt's first choice");
    if (!time) {
      decided_[key] = kernels[0];
      return 0;
    }
    LOG_IF(WARNING, ++timed_ == kMostTimed)
        << kMostTimed << " products have been timed; all others take cuBLASLt's first choice";
  }
  // Timing does not hold the lock: a rank that waits for its device may be waiting for another
  // rank.
  return Decide(key, kernels, TimeCandidates(candidates));
}

int GemmPlanner::Decide(const Key& key, absl::Span<const GemmKernel> kernels,
                        const GemmTiming& timing) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (decided_.count(key) > 0) return std::max(0, Known(key, kernels));
  const GemmKernel& kernel = kernels[static_cast<size_t>(timing.fastest)];
  decided_[key] = kernel;
  if (!std::isfinite(timing.seconds)) return timing.fastest;
  plans_[key] = {key.first, key.second, kernel, timing.seconds * 1e6, timing.first_seconds * 1e6};
  if (on_new_plan_ == nullptr) return timing.fastest;
  std::vector<GemmPlan> all;
  for (const auto& plan : plans_) all.push_back(plan.second);
  on_new_plan_(all);
  return timing.fastest;
}

GemmPlanner& ProcessGemmPlanner() {
  static GemmPlanner& planner = *new GemmPlanner;
  return planner;
}

}  // namespace megatron::ops::cuda
