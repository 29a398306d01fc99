#include "megatron/plan/scaling_curve.h"

#include <cstddef>

namespace megatron {
namespace {

class Sweep {
 public:
  Sweep(const Hardware& gpu, const Implementation& program, const MeasuredKernels& kernels,
        const PlanModel& model, const PlanLayout& layout, const ScalingOptions& options)
      : gpu_(gpu),
        program_(program),
        kernels_(kernels),
        model_(model),
        layout_(layout),
        options_(options) {}

  ScalingCurve Run() {
    for (const int64_t gpus : options_.gpus) {
      curve_.hybrid.emplace_back();
      curve_.data.emplace_back();
      for (const int64_t tp : {1, 2, 4, 8}) {
        for (int64_t pp = 1; pp <= model_.layers(); pp *= 2) TryWidths(gpus, tp, pp);
      }
    }
    return curve_;
  }

 private:
  void TryWidths(int64_t gpus, int64_t tp, int64_t pp) {
    const int64_t width = tp * pp * layout_.cp;
    if (width > gpus || gpus % width != 0 || model_.layers() % pp != 0) return;
    for (const int64_t vpp : {1, 2, 4}) {
      if (vpp > 1 && (pp == 1 || model_.layers() % (pp * vpp) != 0)) continue;
      for (const int64_t micro_batch : {1, 2, 4}) {
        for (const PlanRecompute recompute : {PlanRecompute::kNone, PlanRecompute::kFull}) {
          PlanLayout layout = layout_;
          layout.tp = tp;
          layout.grid = PlanGrid();
          layout.pp = pp;
          layout.vpp = vpp;
          layout.first_layers = layout.last_layers = PlanLayout::kAsOthers;
          layout.encoder_stages = 0;
          if (vpp > 1 || layout.schedule == PlanSchedule::kZeroBubbleV)
            layout.schedule = PlanSchedule::kOneForwardOneBackward;
          layout.dp = gpus / width;
          layout.micro_batch = micro_batch;
          layout.recompute = recompute;
          layout.is_sequence_parallel = tp > 1;
          Try(gpus, layout);
        }
      }
    }
  }

  void Try(int64_t gpus, PlanLayout layout) {
    const int64_t batch = options_.batch * (options_.is_weak ? gpus : 1);
    const int64_t samples = layout.dp * layout.micro_batch;
    if (batch % samples != 0) return;
    layout.micro_batches = batch / samples;
    // Interleaved micro-batches go in groups of as many as there are stages.
    if (layout.vpp > 1 && layout.micro_batches % layout.pp != 0) return;
    if (layout.ep > layout.dp * layout.cp * layout.tp) return;
    const auto step = PredictStep(gpu_, program_, kernels_, model_, layout);
    if (!step.ok()) return;
    const double memory = gpu_.memory_gib() * (int64_t{1} << 30);
    if (step->memory_bytes > options_.memory_share * memory) return;
    ScalingPoint point;
    point.layout = layout;
    point.seconds = step->seconds.total;
    point.tokens_per_second = double(batch) * double(layout.sequence) / point.seconds;
    Keep(point, &curve_.hybrid.back());
    if (layout.tp == 1 && layout.pp == 1) Keep(point, &curve_.data.back());
  }

  static void Keep(const ScalingPoint& point, absl::optional<ScalingPoint>* best) {
    if (!best->has_value() || point.seconds < (*best)->seconds) *best = point;
  }

  const Hardware& gpu_;
  const Implementation& program_;
  const MeasuredKernels& kernels_;
  const PlanModel& model_;
  const PlanLayout& layout_;
  const ScalingOptions& options_;
  ScalingCurve curve_;
};

}  // namespace

ScalingCurve MakeScalingCurve(const Hardware& gpu, const Implementation& program,
                              const MeasuredKernels& kernels, const PlanModel& model,
                              const PlanLayout& layout, const ScalingOptions& options) {
  return Sweep(gpu, program, kernels, model, layout, options).Run();
}

}  // namespace megatron
