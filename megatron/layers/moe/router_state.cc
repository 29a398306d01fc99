#include "megatron/layers/moe/router_state.h"

#include "megatron/layers/moe/quantile_bias.h"
#include "megatron/ops/elementwise.h"

namespace megatron {

RouterState::RouterState(const MoeOptions& options, const std::vector<std::string>& routers,
                         Device device, MemoryLedger* ledger)
    : options_(options), names_(routers) {
  if (names_.empty()) return;
  const int64_t layers = num_layers(), experts = options.num_experts;
  const Shape losses{static_cast<int64_t>(options.balances().size()), 2};
  const int64_t chosen_at = losses.numel() * SizeOf(DType::kFloat32);
  const int64_t entries = options.expert_bias ? layers * experts : 0;
  const Shape counted_shape = options.quantile_bins > 0
                                  ? Shape{layers, experts, options.quantile_bins}
                                  : Shape{layers, experts};
  const int64_t counts = options.expert_bias ? counted_shape.numel() : 0;
  const int64_t counted = balances_steps() ? layers * experts : 0;
  const int64_t so_far_at = chosen_at + counts * SizeOf(DType::kInt64);
  const int64_t bias_at = so_far_at + counted * SizeOf(DType::kInt64);
  buffer_ = Buffer(device, bias_at + entries * SizeOf(DType::kFloat32), "router state", ledger);
  losses_B2_ = buffer_.At(0, DType::kFloat32, losses);
  if (balances_steps()) {
    so_far_LE_ = buffer_.At(so_far_at, DType::kInt64, {layers, experts});
    micro_batches_ = std::make_shared<std::vector<int64_t>>(layers);
  }
  if (!options.expert_bias) return;
  counted_ = buffer_.At(chosen_at, DType::kInt64, counted_shape);
  bias_LE_ = buffer_.At(bias_at, DType::kFloat32, {layers, experts});
  host_bias_ = HostMirror(bias_LE_, "expert biases");
  host_counted_ = HostMirror(counted_, "expert counts");
}

RouterState::Layer RouterState::layer(int64_t index) const {
  Layer layer;
  layer.losses_B2 = losses_B2_;
  if (!load_L2E_.empty()) layer.load_2E = load_L2E_.Select(0, index);
  if (balances_steps()) {
    layer.so_far_E = so_far_LE_.Select(0, index);
    layer.micro_batches = &(*micro_batches_)[index];
  }
  if (!options_.expert_bias) return layer;
  layer.bias_E = bias_LE_.Select(0, index);
  (options_.quantile_bins > 0 ? layer.margins_EQ : layer.chosen_E) = counted_.Select(0, index);
  return layer;
}

std::vector<RouterState::Named> RouterState::Tensors() const {
  std::vector<Named> tensors;
  if (!options_.expert_bias) return tensors;
  for (int64_t i = 0; i < num_layers(); ++i)
    tensors.push_back({names_[i] + ".expert_bias", host_bias_.host().Select(0, i)});
  return tensors;
}

void RouterState::SendTensors(const Stream& stream) const {
  if (!empty() && options_.expert_bias) host_bias_.Send(stream);
}

void RouterState::StartStep(const Stream& stream) {
  if (empty()) return;
  ops::Zero(stream, losses_B2_);
  if (!load_L2E_.empty()) ops::Zero(stream, load_L2E_);
  if (balances_steps()) {
    ops::Zero(stream, so_far_LE_);
    micro_batches_->assign(micro_batches_->size(), 0);
  }
  if (options_.expert_bias) ops::Zero(stream, counted_);
}

void RouterState::UpdateBiases(absl::Span<const ProcessGroup> groups, const Stream& stream) {
  if (empty() || !options_.expert_bias) return;
  for (const ProcessGroup& group : groups) group.AllReduce(counted_, ReduceOp::kSum, stream);
  if (stream.is_meta()) return;
  host_counted_.Fetch(stream);  // the biases on the host were sent together with these
  const int64_t experts = options_.num_experts;
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    const Tensor counts = host_counted_.host().Select(0, layer);
    const int64_t* chosen = counts.data<int64_t>();
    float* bias = host_bias_.host().data<float>() + layer * experts;
    if (options_.quantile_bins > 0) {
      FindQuantileBiases({chosen, static_cast<size_t>(counts.numel())}, options_.router.topk,
                         absl::MakeSpan(bias, static_cast<size_t>(experts)));
      continue;
    }
    int64_t total = 0;
    for (int64_t e = 0; e < experts; ++e) total += chosen[e];
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t missing = total - chosen[e] * experts;  // distance from the mean, times experts
      if (missing != 0)
        bias[e] +=
            missing > 0 ? options_.expert_bias_update_rate : -options_.expert_bias_update_rate;
    }
  }
  host_bias_.StartSend(stream);
}

}  // namespace megatron
