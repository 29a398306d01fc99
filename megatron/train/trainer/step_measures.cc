#include "megatron/train/trainer/step_measures.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/trainer/grid_groups.h"

namespace megatron {
namespace {

// A row for each balance loss (RouterState::Layer::losses_B2).
Shape RouterShape(const TransformerOptions& model) {
  return {static_cast<int64_t>(model.moe.balances().size()), 2};
}

// Each measure and each source has two sums: that of weighted values and that of weights. The
// routers' losses lie behind them.
Shape WholeReport(const ModelStage& stage, int64_t sources, const TransformerOptions& model) {
  const auto measures = static_cast<int64_t>(stage.measures().size());
  return {2 * (measures + sources) + RouterShape(model).numel()};
}

const char* NameOf(BalanceUnit unit) {
  return unit == BalanceUnit::kSample ? "seq_load_balancing_loss"
         : unit == BalanceUnit::kStep ? "global_load_balancing_loss"
                                      : "load_balancing_loss";
}

}  // namespace

StepMeasures::StepMeasures(ModelStage* stage, const TransformerOptions& model,
                           const StagePlacement& placement, const ProcessGroups& groups,
                           const Sources& sources, const Stream& stream, MemoryLedger* ledger)
    : stage_(stage),
      model_(model),
      placement_(placement),
      groups_(groups),
      sources_(sources),
      stream_(stream),
      report_(stream.device(),
              WholeReport(*stage, sources.count, model).numel() * SizeOf(DType::kFloat32), "loss",
              ledger),
      host_report_(report_.At(0, DType::kFloat32, WholeReport(*stage, sources.count, model)),
                   "loss") {}

int64_t StepMeasures::MoeLayers() const {
  const TransformerOptions& options = model_;
  int64_t count = 0;
  for (int64_t layer = 0; layer < options.num_layers; ++layer)
    count += options.moe.IsMoeLayer(layer);
  // Layers of multi-token prediction are like the last.
  if (!options.moe.IsMoeLayer(options.num_layers - 1)) return count;
  return count + absl::c_count_if(stage_->measures(), [](const megatron::Measure& measure) {
           return measure.kind == MeasureKind::kMtpLoss;
         });
}

int64_t StepMeasures::NumMeasures() const {
  return static_cast<int64_t>(stage_->measures().size());
}

void StepMeasures::Start(bool training) {
  const TraceSpan span(stream_, TimeCategory::kCompute, "measure");
  const int64_t measures = NumMeasures(), rows = measures + (training ? sources_.count : 0);
  const Tensor sums = report_.At(0, DType::kFloat32, {rows, 2});
  if (placement_.last()) {
    ops::Copy(stream_, stage_->loss_sums(), sums.Slice(0, 0, measures));
    if (rows > measures) ops::Copy(stream_, sources_.sums_S2, sums.Slice(0, measures, rows));
    groups_.data_context.AllReduce(sums, ReduceOp::kSum, stream_);
    SumOverGrid(sums);
  }
  groups_.pipeline.Broadcast(sums, placement_.last_stage(), stream_);
  if (training && MoeLayers() > 0) SumRouterLosses();
  host_report_.StartFetch(stream_);
}

// The ranks of a cube's row, on all levels, have the samples of the inner layout.
void StepMeasures::SumOverGrid(const Tensor& sums) {
  const TensorGridGroups grid = GridOf(groups_);
  if (!grid.is_grid()) return;
  if (!grid.is_cube) return grid.columns.AllReduce(sums, ReduceOp::kSum, stream_);
  grid.depth.AllReduce(sums, ReduceOp::kSum, stream_);
  grid.row.AllReduce(sums, ReduceOp::kSum, stream_);
}

// Every rank has summed over the rows that it routes, in its stage's layers.
void StepMeasures::SumRouterLosses() {
  const Tensor sums_B2 =
      report_.At(NumSums() * SizeOf(DType::kFloat32), DType::kFloat32, RouterShape(model_));
  if (stage_->router_state().empty()) {
    ops::Zero(stream_, sums_B2);
  } else {
    ops::Copy(stream_, stage_->router_state().losses_B2(), sums_B2);
  }
  groups_.world.AllReduce(sums_B2, ReduceOp::kSum, stream_);
}

Measured StepMeasures::Finish() {
  host_report_.Finish();
  Measured measured;
  const float* sum = host_report_.host().data<float>();
  for (const megatron::Measure& measure : stage_->measures()) {
    const double mean = sum[1] == 0 ? 0 : double{sum[0]} / sum[1];
    measured.values.emplace_back(measure, mean);
    if (sum[1] == 0) measured.undefined_means.push_back(measure.name);
    if (measure.is_loss) measured.loss += measure.factor * mean;
    sum += 2;
  }
  return measured;
}

void StepMeasures::ReportSources(StepReport* report) const {
  const float* sum = host_report_.host().data<float>() + 2 * NumMeasures();
  for (int source = 0; source < sources_.count; ++source, sum += 2) {
    if (sum[1] != 0) report->sources.push_back({source, sum[0], sum[1]});
  }
}

void StepMeasures::ReportRouterLosses(StepReport* report) const {
  const int64_t layers = MoeLayers();
  if (layers == 0) return;
  const double count = static_cast<double>(report->global_batch_size * layers);
  const float* const sums = host_report_.host().data<float>() + NumSums();
  report->load_balancing_loss = sums[0] / count;
  report->z_loss = sums[1] / count;
  const MoeOptions& moe = model_.moe;
  const auto add = [&](MeasureKind kind, const char* name, double value) {
    report->values.emplace_back(megatron::Measure{kind, name, /*is_loss=*/true}, value);
  };
  const std::vector<BalanceLoss> balances = moe.balances();
  for (size_t i = 0; i < balances.size(); ++i) {
    if (balances[i].unit != BalanceUnit::kNone)
      add(MeasureKind::kLoadBalancingLoss, NameOf(balances[i].unit), sums[2 * i] / count);
  }
  if (moe.z_loss_coeff != 0) add(MeasureKind::kRouterZLoss, "z_loss", report->z_loss);
}

}  // namespace megatron
