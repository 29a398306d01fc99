#include "megatron/layers/low_rank_adapter.h"

#include <cmath>

#include "glog/logging.h"
#include "megatron/base/crc32c.h"
#include "megatron/layers/dropout_site.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

// Returns `shape` with another last dim.
Shape WithLast(const Shape& shape, int64_t last) {
  std::vector<int64_t> dims = shape.dims();
  dims.back() = last;
  return Shape(dims);
}

// The sharding of A: [dim, I].
Sharding OfA(int64_t dim, const Sharding& weight, bool by_input) {
  const int last = weight.global_shape.rank() - 1;
  Sharding sharding = Replicated({dim, weight.global_shape[last]});
  if (by_input) {
    sharding.offset = {0, weight.offset[last]};
    sharding.local_shape = {dim, weight.local_shape[last]};
    sharding.sharded = weight.sharded;
  } else {
    sharding.partial = {Axis::kTensor};
  }
  return sharding;
}

// The sharding of B, which has the weight's dims of outputs.
Sharding OfB(int64_t dim, const Sharding& weight, bool by_input) {
  Sharding sharding = weight;
  sharding.global_shape = WithLast(weight.global_shape, dim);
  sharding.offset = WithLast(weight.offset, 0);
  sharding.local_shape = WithLast(weight.local_shape, dim);
  if (by_input) {
    sharding.sharded = {};
    sharding.partial = {Axis::kTensor};
  }
  return sharding;
}

}  // namespace

LowRankAdapter::LowRankAdapter(const LowRankOptions& options, const std::string& name,
                               const Sharding& weight, bool by_input)
    : options_(options) {
  if (empty()) return;
  const int64_t inputs = weight.global_shape[weight.global_shape.rank() - 1];
  a_.name = name + kAdapterName + "linear_in.weight";
  a_.sharding = OfA(options.dim, weight, by_input);
  a_.initializer =
      Initializer::Uniform(static_cast<float>(1 / std::sqrt(static_cast<double>(inputs))));
  dropout_stream_ = ExtendCrc32c(0, name);
  b_.name = name + kAdapterName + "linear_out.weight";
  b_.sharding = OfB(options.dim, weight, by_input);
}

Tensor LowRankAdapter::b_OR() const {
  return b_.data.View({b_.data.numel() / options_.dim, options_.dim});
}

ops::Dropout LowRankAdapter::DropoutOf(const LayerContext& ctx, const Tensor& x_TI) const {
  ops::Dropout dropout;
  if (!ctx.training || options_.dropout == 0) return dropout;
  CHECK_EQ(x_TI.dim(0), ctx.batch->num_tokens()) << a_.name;
  dropout.probability = options_.dropout;
  dropout.key = DeriveKey(ctx.seed, kPhiloxDropout, dropout_stream_,
                          static_cast<uint32_t>(DropoutSite::kAdapterInput));
  dropout.sample_T = ctx.batch->sample_T;
  dropout.position_T = ctx.batch->sample_position_T;
  dropout.first_column = a_.sharding.offset[1];
  return dropout;
}

Tensor LowRankAdapter::Dropped(const LayerContext& ctx, const Tensor& x_TI) const {
  const ops::Dropout dropout = DropoutOf(ctx, x_TI);
  if (dropout.probability == 0) return x_TI;
  const Tensor dropped_TI = ctx.scratch->Allocate(x_TI.dtype(), x_TI.shape(), "adapter input");
  ops::BiasDropoutAdd(ctx.stream, dropout, x_TI, Tensor(), Tensor(), dropped_TI);
  return dropped_TI;
}

Tensor LowRankAdapter::Hidden(const LayerContext& ctx, const Tensor& x_TI) const {
  const Tensor hidden_TR =
      ctx.scratch->Allocate(x_TI.dtype(), {x_TI.dim(0), options_.dim}, "adapter");
  ops::LinearForward(ctx.stream, Dropped(ctx, x_TI), a_.data, Tensor(), hidden_TR);
  ops::Scale(ctx.stream, options_.scale, hidden_TR);
  return hidden_TR;
}

Tensor LowRankAdapter::HiddenGradient(const LayerContext& ctx, const Tensor& dy_TO) const {
  const Tensor dhidden_TR =
      ctx.scratch->Allocate(dy_TO.dtype(), {dy_TO.dim(0), options_.dim}, "adapter gradient");
  ops::LinearBackwardInput(ctx.stream, dy_TO, b_OR(), dhidden_TR);
  ops::Scale(ctx.stream, options_.scale, dhidden_TR);
  return dhidden_TR;
}

void LowRankAdapter::AddForward(const LayerContext& ctx, const Tensor& x_TI,
                                const Tensor& y_TO) const {
  if (empty()) return;
  Arena::Scope scope(ctx.scratch);
  const Tensor hidden_TR = Hidden(ctx, x_TI);
  const Tensor output_TO = ctx.scratch->Allocate(y_TO.dtype(), y_TO.shape(), "adapter output");
  ops::LinearForward(ctx.stream, hidden_TR, b_OR(), Tensor(), output_TO);
  ops::Add(ctx.stream, output_TO, y_TO);
}

void LowRankAdapter::AddBackwardInput(const LayerContext& ctx, const Tensor& dy_TO,
                                      const Tensor& dx_TI) const {
  if (empty()) return;
  Arena::Scope scope(ctx.scratch);
  const Tensor dhidden_TR = HiddenGradient(ctx, dy_TO);
  const Tensor through_TI = ctx.scratch->Allocate(dx_TI.dtype(), dx_TI.shape(), "adapter gradient");
  ops::LinearBackwardInput(ctx.stream, dhidden_TR, a_.data, through_TI);
  if (const ops::Dropout dropout = DropoutOf(ctx, through_TI); dropout.probability > 0)
    ops::DropoutBackward(ctx.stream, dropout, through_TI, through_TI, Tensor());
  ops::Add(ctx.stream, through_TI, dx_TI);
}

void LowRankAdapter::BackwardWeight(const LayerContext& ctx, const Tensor& dy_TO,
                                    const Tensor& x_TI) {
  if (empty()) return;
  Arena::Scope scope(ctx.scratch);
  if (!b_.frozen) {
    ops::LinearBackwardWeight(ctx.stream, dy_TO, Hidden(ctx, x_TI),
                              b_.grad.View({b_.grad.numel() / options_.dim, options_.dim}),
                              Tensor());
  }
  if (!a_.frozen) {
    ops::LinearBackwardWeight(ctx.stream, HiddenGradient(ctx, dy_TO), Dropped(ctx, x_TI), a_.grad,
                              Tensor());
  }
}

void LowRankAdapter::AppendParameters(std::vector<Parameter*>* out) {
  if (empty()) return;
  out->push_back(&a_);
  out->push_back(&b_);
}

}  // namespace megatron
