#include "megatron/train/diagnostics/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/metrics/metric_table.h"

namespace megatron {
namespace {

constexpr int64_t kFloat = sizeof(float);

std::vector<int> RowsOfParameters(const ModelLayers& layers, const ParameterBuffers& buffers) {
  std::vector<int> rows;
  for (const FlatParameter& flat : buffers.parameters())
    rows.push_back(layers.RowOf(flat.parameter->name));
  return rows;
}

// Where all tensor-parallel ranks have all rows of the residual stream, the first one counts them.
bool AddsActivations(const ModelOptions& model, const ProcessGroups& groups) {
  return model.transformer.sequence_parallel || groups.tensor.rank() == 0;
}

// Returns the entropy of the shares of `counts`, over that of equal shares.
double RelativeEntropy(const std::vector<int64_t>& counts, double total) {
  double entropy = 0;
  for (int64_t count : counts) {
    const double share = static_cast<double>(count) / total;
    if (count > 0) entropy -= share * std::log(share);
  }
  return counts.size() > 1 ? entropy / std::log(static_cast<double>(counts.size())) : 1;
}

}  // namespace

Diagnostics::Places Diagnostics::PlacesOf(int layers, int64_t experts, int64_t passes) {
  Places places;
  int64_t end = 0;
  const auto add = [&end](int64_t bytes) { return std::exchange(end, end + bytes); };
  places.load = add(layers * 2 * experts * SizeOf(DType::kInt64));
  places.rows = add(layers * SizeOf(DType::kInt64));
  places.norms = add((layers + 2) * ParameterNorms::kNumKinds * 2 * kFloat);
  places.parts = add(4 * kFloat);
  places.squares = add(layers * 2 * kFloat);
  places.largest = add(layers * passes * kFloat);
  places.scores = add(layers * passes * kFloat);
  places.end = end;
  return places;
}

Diagnostics::Diagnostics(const ModelOptions& model, const DiagnosticsOptions& options,
                         const ProcessGroups& groups, const ParameterBuffers& buffers,
                         ModelStage* stage, const Stream& stream, MemoryLedger* ledger)
    : layers_(model),
      options_(options),
      experts_(model.transformer.moe.num_experts),
      hidden_size_(model.transformer.hidden_size),
      groups_(groups),
      stream_(stream),
      stage_(stage),
      places_(PlacesOf(layers_.num_transformer_layers(), experts_, options.max_micro_batches)),
      buffer_(stream.device(), places_.end, "diagnostics", ledger),
      host_(buffer_.At(0, DType::kFloat32, {places_.end / kFloat}), "diagnostics"),
      norms_(buffers, groups, RowsOfParameters(layers_, buffers), Norms(), ledger),
      parts_(buffers, groups, Parts()),
      activations_({Rows(), Squares(), Largest(), Scores()}, AddsActivations(model, groups),
                   ledger) {
  const auto moe_layers = static_cast<int64_t>(stage->moe_layers().size());
  if (moe_layers == 0) return;
  own_load_ = Buffer(stream.device(), moe_layers * 2 * experts_ * SizeOf(DType::kInt64),
                     "diagnostics", ledger);
  own_load_L2E_ = own_load_.At(0, DType::kInt64, {moe_layers, 2, experts_});
  stage->CountExpertLoad(own_load_L2E_);
}

Tensor Diagnostics::Load() const {
  if (experts_ == 0) return Tensor();
  return buffer_.At(places_.load, DType::kInt64, {layers_.num_transformer_layers(), 2, experts_});
}
Tensor Diagnostics::Norms() const {
  return buffer_.At(places_.norms, DType::kFloat32,
                    {layers_.count(), ParameterNorms::kNumKinds, 2});
}
Tensor Diagnostics::Parts() const { return buffer_.At(places_.parts, DType::kFloat32, {2, 2}); }
Tensor Diagnostics::Squares() const {
  return buffer_.At(places_.squares, DType::kFloat32, {layers_.num_transformer_layers(), 2});
}
Tensor Diagnostics::Largest() const {
  return buffer_.At(places_.largest, DType::kFloat32,
                    {layers_.num_transformer_layers(), options_.max_micro_batches});
}
Tensor Diagnostics::Scores() const {
  return buffer_.At(places_.scores, DType::kFloat32,
                    {layers_.num_transformer_layers(), options_.max_micro_batches});
}
Tensor Diagnostics::Rows() const {
  return buffer_.At(places_.rows, DType::kInt64, {layers_.num_transformer_layers()});
}
Tensor Diagnostics::Counts() const {
  return buffer_.At(places_.load, DType::kInt64,
                    {(places_.norms - places_.load) / SizeOf(DType::kInt64)});
}
Tensor Diagnostics::Sums() const {
  return buffer_.At(places_.norms, DType::kFloat32, {(places_.largest - places_.norms) / kFloat});
}
Tensor Diagnostics::Maxima() const {
  return buffer_.At(places_.largest, DType::kFloat32, {(places_.end - places_.largest) / kFloat});
}

void Diagnostics::StartStep(int64_t micro_batches, double loss_scale) {
  const TraceSpan span(stream_, TimeCategory::kOptimizer, "diagnostics");
  ops::Zero(stream_, buffer_.At(0, DType::kFloat32, {places_.end / kFloat}));
  loss_scale_ = loss_scale;
  parts_.StartStep(micro_batches, static_cast<float>(1 / loss_scale), options_.gradients_in_order);
  activations_.StartStep(stream_);
}

void Diagnostics::AddGradients() {
  const TraceSpan span(stream_, TimeCategory::kOptimizer, "diagnostics");
  norms_.AddGradients(static_cast<float>(1 / loss_scale_), stream_);
  parts_.AddWhole(norms_.scratch(), stream_);
}

void Diagnostics::SumOverRanks() {
  for (size_t i = 0; i < stage_->moe_layers().size(); ++i) {
    const int row = layers_.RowOf(stage_->moe_layers()[i]->router_name());
    ops::Copy(stream_, own_load_L2E_.Select(0, static_cast<int64_t>(i)),
              Load().Select(0, row - ModelLayers::RowOfLayer(0)));
  }
  groups_.world.AllReduce(Counts(), ReduceOp::kSum, stream_);
  groups_.world.AllReduce(Sums(), ReduceOp::kSum, stream_);
  groups_.world.AllReduce(Maxima(), ReduceOp::kMax, stream_);
}

DiagnosticValues Diagnostics::Finish(bool updated, int64_t global_batch_size) {
  const TraceSpan span(stream_, TimeCategory::kOptimizer, "diagnostics");
  norms_.AddWeights(stream_);
  SumOverRanks();
  host_.Fetch(stream_);
  DiagnosticValues values;
  AddNorms(updated, &values);
  AddActivations(&values);
  AddExperts(&values);
  AddNoise(global_batch_size, &values);
  parts_.FinishStep();
  return values;
}

void Diagnostics::AddNorms(bool updated, DiagnosticValues* values) const {
  const Tensor sums = host_.Of(Norms());
  const auto norm = [&](int row, ParameterNorms::Kind kind) {
    return std::sqrt(double{sums.data<float>()[2 * (row * ParameterNorms::kNumKinds + kind)]});
  };
  const auto add = [&](const Metric& metric, const auto& value_of) {
    for (int row = 0; row < layers_.count(); ++row)
      values->layers.push_back({LayerMetricName(metric, layers_.names()[row]), value_of(row)});
  };
  add(metric::kLayerGradNorm, [&](int row) { return norm(row, ParameterNorms::kGradients); });
  add(metric::kLayerParamsNorm, [&](int row) { return norm(row, ParameterNorms::kWeights); });
  if (!updated) return;
  add(metric::kLayerUpdateNorm, [&](int row) { return norm(row, ParameterNorms::kUpdates); });
  add(metric::kLayerUpdateRatio, [&](int row) {
    return norm(row, ParameterNorms::kUpdates) / norm(row, ParameterNorms::kWeights);
  });
}

void Diagnostics::AddActivations(DiagnosticValues* values) const {
  const float* const squares = host_.Of(Squares()).data<float>();
  const int64_t* const rows = host_.Of(Rows()).data<int64_t>();
  const float* const largest = host_.Of(Largest()).data<float>();
  const float* const scores = host_.Of(Scores()).data<float>();
  const auto passes = options_.max_micro_batches;
  const int layers = layers_.num_transformer_layers();
  const auto name = [&](int layer) { return layers_.names()[ModelLayers::RowOfLayer(layer)]; };
  for (int layer = 0; layer < layers; ++layer) {
    values->layers.push_back(
        {LayerMetricName(metric::kLayerOutputRms, name(layer)),
         std::sqrt(double{squares[2 * layer]} / static_cast<double>(rows[layer] * hidden_size_))});
  }
  const auto add_largest = [&](const Metric& metric, const float* numbers, double factor) {
    for (int layer = 0; layer < layers; ++layer) {
      const float* const first = numbers + layer * passes;
      values->layers.push_back({LayerMetricName(metric, name(layer)),
                                *std::max_element(first, first + passes) * factor});
    }
  };
  add_largest(metric::kLayerOutputMax, largest, 1);
  add_largest(metric::kLayerAttentionLogit, scores, 1 / double{ActivationMeter::kSharpness});
  values->max_attention_logit =
      *std::max_element(scores, scores + layers * passes) / double{ActivationMeter::kSharpness};
}

void Diagnostics::AddExperts(DiagnosticValues* values) const {
  if (experts_ == 0) return;
  const int64_t* const load = host_.Of(Load()).data<int64_t>();
  for (int layer = 0; layer < layers_.num_transformer_layers(); ++layer) {
    const int64_t* const chosen = load + 2 * layer * experts_;
    ExpertLoad experts;
    experts.layer = layers_.names()[ModelLayers::RowOfLayer(layer)];
    experts.choices.assign(chosen, chosen + experts_);
    const auto total = static_cast<double>(std::accumulate(chosen, chosen + experts_, int64_t{0}));
    if (total == 0) continue;  // a layer without experts
    const int64_t* const kept = chosen + experts_;
    const auto [least, most] = std::minmax_element(chosen, chosen + experts_);
    const double mean = total / static_cast<double>(experts_);
    const auto add = [&](const Metric& metric, double value) {
      values->layers.push_back({LayerMetricName(metric, experts.layer), value});
    };
    add(metric::kLayerMostLoaded, static_cast<double>(*most) / mean);
    add(metric::kLayerLeastLoaded, static_cast<double>(*least) / mean);
    add(metric::kLayerDropped,
        1 - static_cast<double>(std::accumulate(kept, kept + experts_, int64_t{0})) / total);
    add(metric::kLayerExpertEntropy, RelativeEntropy(experts.choices, total));
    values->experts.push_back(std::move(experts));
  }
}

void Diagnostics::AddNoise(int64_t global_batch_size, DiagnosticValues* values) {
  if (!parts_.has_parts()) return;
  const float* const sums = host_.Of(Parts()).data<float>();
  const auto batch = static_cast<double>(global_batch_size);
  noise_.Add(sums[0] * parts_.part_factor(), parts_.part_share() * batch, sums[2], batch);
  values->noise_scale = noise_.samples();
}

}  // namespace megatron
