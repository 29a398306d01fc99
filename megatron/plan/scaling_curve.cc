#include "megatron/plan/scaling_curve.h"

#include <cstddef>
#include <utility>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/data_traffic.h"

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
        options_(options) {
    layout_.data_is_outermost = false;
    layout_.ranks_per_host = 0;
    layout_.compression = PlanCompression();
  }

  ScalingCurve Run() {
    for (const int64_t gpus : options_.gpus) {
      for (auto* points : {&curve_.hybrid, &curve_.data, &curve_.shaped, &curve_.coded})
        points->emplace_back();
      for (const int64_t tp : {1, 2, 4, 8}) {
        for (int64_t pp = 1; pp <= model_.layers(); pp *= 2) TryWidths(gpus, tp, pp);
      }
    }
    return std::move(curve_);
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
    const auto plain = Predict(layout);
    if (!plain) return;
    Keep(*plain, &curve_.hybrid.back());
    if (layout.tp == 1 && layout.pp == 1) Keep(*plain, &curve_.data.back());
    Keep(*plain, &curve_.shaped.back());
    if (CanCode()) Keep(*plain, &curve_.coded.back());
    if (layout.dp * layout.cp == 1) return;
    TryCodes(layout);
    if (CanPutDataOutermost(layout)) {
      PlanLayout other = layout;
      other.data_is_outermost = true;
      TryShape(other);
    }
    const PlanGroup copies = DenseCopies(layout);
    const int64_t inside = RanksInDomain(copies, gpu_.domain());
    if (layout.instances == 1 && layout.hosts == 1 && inside > 1 && inside < copies.ranks) {
      PlanLayout other = layout;
      other.ranks_per_host = gpu_.domain();
      TryShape(other);
    }
  }

  void TryShape(const PlanLayout& layout) {
    if (const auto point = Predict(layout)) {
      Keep(*point, &curve_.shaped.back());
      if (CanCode()) Keep(*point, &curve_.coded.back());
    }
    TryCodes(layout);
  }

  void TryCodes(PlanLayout layout) {
    if (!CanCode()) return;
    layout.compression.form = PlanCompression::kCodes;
    if (const auto point = Predict(layout)) Keep(*point, &curve_.coded.back());
  }

  // Pipelines of experts agree with those of the rest where experts take the same ranks of a stage.
  bool CanPutDataOutermost(const PlanLayout& layout) const {
    const int64_t stride = layout.tp * layout.cp;
    return layout.pp > 1 && layout.instances == 1 && layout.hosts == 1 && stride < gpu_.domain() &&
           (model_.experts() == 0 || layout.ep * layout.etp == stride);
  }

  bool CanCode() const { return !layout_.shards_parameters && !layout_.shards_gradients; }

  // Returns nothing where the layout can't be, or doesn't fit.
  absl::optional<ScalingPoint> Predict(const PlanLayout& layout) const {
    const auto step = PredictStep(gpu_, program_, kernels_, model_, layout);
    if (!step.ok()) return absl::nullopt;
    const double memory = gpu_.memory_gib() * (int64_t{1} << 30);
    if (step->memory_bytes > options_.memory_share * memory) return absl::nullopt;
    ScalingPoint point;
    point.layout = layout;
    point.seconds = step->seconds.total;
    const double samples = double(layout.dp * layout.micro_batch * layout.micro_batches);
    point.tokens_per_second = samples * double(layout.sequence) / point.seconds;
    return point;
  }

  static void Keep(const ScalingPoint& point, absl::optional<ScalingPoint>* best) {
    if (!best->has_value() || point.seconds < (*best)->seconds) *best = point;
  }

  const Hardware& gpu_;
  const Implementation& program_;
  const MeasuredKernels& kernels_;
  const PlanModel& model_;
  PlanLayout layout_;
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
