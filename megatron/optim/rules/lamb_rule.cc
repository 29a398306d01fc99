#include "megatron/optim/rules/lamb_rule.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/rules/matrix_block.h"

namespace megatron {
namespace {

constexpr char kMemory[] = "optimizer step";

}  // namespace

LambRule::LambRule(double beta1, double beta2, double epsilon, double min_coeff, double max_coeff)
    : min_coeff_(min_coeff), max_coeff_(max_coeff) {
  adamw_.beta1 = beta1;
  adamw_.beta2 = beta2;
  adamw_.epsilon = static_cast<float>(epsilon);
}

void LambRule::Update(const UpdateRange& range, const Stream& stream) const {
  const Parameter& parameter = *range.parameter;
  const Shape& shape = parameter.sharding.local_shape;
  CHECK_EQ(range.segments.size(), 1u);
  CHECK_EQ(range.gradients.numel(), shape.numel()) << parameter.name;
  const ops::OptimizerSegment& segment = range.segments[0];
  const Arena::Scope scope(range.scratch);
  const Tensor step = range.scratch->Allocate(DType::kFloat32, shape, kMemory),
               decay = range.scratch->Allocate(DType::kFloat32, shape, kMemory);
  // With a rate of 1 and no decay, AdamW takes its step from weights of 0: step = -m / ...
  ops::Zero(stream, step.Flatten());
  ops::AdamWOptions options = adamw_;
  options.step = range.step;
  options.grad_scale = range.grad_scale;
  const ops::OptimizerSegment all = {segment.begin, segment.end, /*lr=*/1, /*weight_decay=*/0};
  ops::AdamWUpdate(stream, options, {&all, 1}, range.gradients, range.states[0], range.states[1],
                   step.Flatten(), /*out_N=*/{});
  ops::Copy(stream, range.masters, decay.Flatten());
  ops::Scale(stream, -segment.weight_decay, decay);
  ops::Add(stream, decay, step);
  if (parameter.matrix.has_value()) {
    const Tensor masters = range.masters.View(shape);
    for (const MatrixBlock& block : MatrixBlocksOf(parameter, /*splits_parts=*/true)) {
      const Arena::Scope matrix_scope(range.scratch);
      const Tensor elements = block.Of(step);
      const auto allocate = [&] {
        return range.scratch->Allocate(DType::kFloat32, elements.shape(), kMemory);
      };
      const Tensor w = allocate(), u = allocate();
      ops::Copy(stream, block.Of(masters), w);
      ops::Copy(stream, elements, u);
      Stretch(range, block.cut != MatrixBlock::Cut::kNone, block.replicas, w.Flatten(), u.Flatten(),
              stream);
      ops::Copy(stream, u, elements);
    }
  } else {
    // An expert may lie on any rank, so no ratio is that of several experts.
    const Sharding& sharding = parameter.sharding;
    const int64_t vectors = sharding.sharded.contains(Axis::kExpert) ? shape[0] : 1;
    const Shape stacked = {vectors, shape.numel() / vectors};
    const Tensor w = range.masters.View(stacked), u = step.View(stacked);
    for (int64_t i = 0; i < vectors; ++i) {
      Stretch(range, sharding.sharded.contains(Axis::kTensor), sharding.tensor_replicas,
              w.Select(0, i), u.Select(0, i), stream);
    }
  }
  ops::Scale(stream, segment.lr, step);
  ops::Add(stream, step.Flatten(), range.masters);
  if (!range.weights.empty()) ops::Copy(stream, range.masters, range.weights);
}

void LambRule::Stretch(const UpdateRange& range, bool is_cut, int replicas, const Tensor& w,
                       const Tensor& step, const Stream& stream) const {
  const ProcessGroup group = is_cut ? range.tensor_group : ProcessGroup();
  const int copies = is_cut ? replicas : 1;
  const double weights = range.norm->Of(w, group, copies, stream);
  const double steps = range.norm->Of(step, group, copies, stream);
  if (weights == 0 || steps == 0) return;
  const double ratio = std::clamp(weights / steps, min_coeff_, max_coeff_);
  ops::Scale(stream, static_cast<float>(ratio), step);
}

}  // namespace megatron
