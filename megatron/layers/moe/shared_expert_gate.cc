#include "megatron/layers/moe/shared_expert_gate.h"

#include "megatron/layers/linear_gradients.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/moe/permute.h"

namespace megatron {
namespace {

// Returns the places of rows that stay where they are, in scratch memory.
Tensor OwnPlaces(const LayerContext& ctx, int64_t rows) {
  const Tensor expert_T1 = ctx.scratch->Allocate(DType::kInt32, {rows, 1}, "shared expert gate");
  const Tensor place_T11 = ctx.scratch->Allocate(DType::kInt32, {rows, 1, 1}, "shared expert gate");
  const Tensor count_111 = ctx.scratch->Allocate(DType::kInt64, {1, 1, 1}, "shared expert gate");
  ops::Zero(ctx.stream, expert_T1);
  ops::PlaceByExpert(ctx.stream, expert_T1, place_T11, count_111);
  return place_T11;
}

// Returns the gates, in scratch memory.
Tensor Gates(const LayerContext& ctx, const Tensor& logits_T1) {
  const Tensor gate_T1 =
      ctx.scratch->Allocate(DType::kFloat32, logits_T1.shape(), "shared expert gate");
  ops::ActivationForward(ctx.stream, ops::Activation::kSigmoid, logits_T1, gate_T1);
  return gate_T1;
}

}  // namespace

// With sequence parallelism each tensor-parallel rank has other rows.
SharedExpertGate::SharedExpertGate(const TransformerOptions& options, const std::string& name,
                                   const ProcessGroup& tensor_group) {
  weight_1H_.name = name + ".gate_weight";
  const bool has_part = options.sequence_parallel && tensor_group.size() > 1;
  weight_1H_.sharding =
      Replicated({1, options.hidden_size}, has_part ? AxisSet{Axis::kTensor} : AxisSet{});
  weight_1H_.initializer = Initializer::Normal(options.init_std);
}

Tensor SharedExpertGate::InFloat(const LayerContext& ctx, const Tensor& x) {
  if (x.dtype() == DType::kFloat32) return x;
  const Tensor copy = ctx.scratch->Allocate(DType::kFloat32, x.shape(), "shared expert gate input");
  ops::Copy(ctx.stream, x, copy);
  return copy;
}

void SharedExpertGate::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& shared_TH,
                               const Tensor& y_TH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  saved->shared_TH = shared_TH;
  saved->logits_T1 =
      ctx.saved->Allocate(DType::kFloat32, {x_TH.dim(0), 1}, "shared expert gate logits");
  ops::LinearForward(ctx.stream, InFloat(ctx, x_TH), InFloat(ctx, weight_1H_.data), Tensor(),
                     saved->logits_T1);
  const Tensor gated_TH = ctx.scratch->Allocate(y_TH.dtype(), y_TH.shape(), "gated shared expert");
  ops::Unpermute(ctx.stream, shared_TH, OwnPlaces(ctx, x_TH.dim(0)), Gates(ctx, saved->logits_T1),
                 gated_TH);
  ops::Add(ctx.stream, gated_TH, y_TH);
}

Tensor SharedExpertGate::BackwardOutput(const LayerContext& ctx, const Tensor& dy_TH,
                                        const Tensor& dshared_TH, const Saved& saved) const {
  const Tensor dlogits_T1 = ctx.scratch->Allocate(DType::kFloat32, saved.logits_T1.shape(),
                                                  "shared expert gate gradient");
  Arena::Scope scope(ctx.scratch);
  ops::UnpermuteBackward(ctx.stream, dy_TH, saved.shared_TH, OwnPlaces(ctx, dy_TH.dim(0)),
                         Gates(ctx, saved.logits_T1), dshared_TH, dlogits_T1);
  ops::ActivationBackward(ctx.stream, ops::Activation::kSigmoid, dlogits_T1, saved.logits_T1,
                          dlogits_T1);
  return dlogits_T1;
}

void SharedExpertGate::BackwardInput(const LayerContext& ctx, const Tensor& dlogits_T1,
                                     const Tensor& x_TH, const Tensor& dx_TH) {
  Arena::Scope scope(ctx.scratch);
  AddLinearGradients(ctx.stream, dlogits_T1, InFloat(ctx, x_TH), weight_1H_, Tensor());
  const Tensor dgate_TH =
      ctx.scratch->Allocate(DType::kFloat32, dx_TH.shape(), "shared expert gate gradient");
  ops::LinearBackwardInput(ctx.stream, dlogits_T1, InFloat(ctx, weight_1H_.data), dgate_TH);
  Tensor added_TH = dgate_TH;
  if (dx_TH.dtype() != DType::kFloat32) {
    added_TH = ctx.scratch->Allocate(dx_TH.dtype(), dx_TH.shape(), "shared expert gate gradient");
    ops::Copy(ctx.stream, dgate_TH, added_TH);
  }
  ops::Add(ctx.stream, added_TH, dx_TH);
}

}  // namespace megatron
