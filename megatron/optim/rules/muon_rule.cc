#include "megatron/optim/rules/muon_rule.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/rules/newton_schulz.h"

namespace megatron {
namespace {

constexpr double kLeastNorm = 1e-7;  // the least norm that a matrix is divided by
constexpr char kMemory[] = "orthogonalization";

// The iteration with the smaller Gram matrix.
GramSide ShorterSide(const Tensor& x_RC) {
  return x_RC.dim(0) <= x_RC.dim(1) ? GramSide::kRows : GramSide::kColumns;
}

}  // namespace

double MuonScale(MuonScaleMode mode, int64_t rows, int64_t columns) {
  const double out = static_cast<double>(rows), in = static_cast<double>(columns);
  switch (mode) {
    case MuonScaleMode::kSpectral:
      return std::sqrt(std::max(out, in));
    case MuonScaleMode::kUnitRmsNorm:
      return std::sqrt(out / in);
    case MuonScaleMode::kShapeScaling:
      return std::sqrt(std::max(1.0, out / in));
  }
  LOG(FATAL) << "scale mode " << static_cast<int>(mode);
  return 0;
}

std::vector<OptimizerState> MuonRule::states() const {
  std::vector<OptimizerState> states = adamw_.states();
  for (OptimizerState& state : states) state.owners = StateOwners::kOthers;
  OptimizerState momentum;
  momentum.name = "momentum_buffer";
  momentum.owners = StateOwners::kMatrices;
  states.push_back(momentum);
  return states;
}

void MuonRule::Update(const UpdateRange& range, const Stream& stream) const {
  const Parameter& parameter = *range.parameter;
  if (!parameter.matrix.has_value()) return adamw_.Update(range, stream);
  CHECK_EQ(range.segments.size(), 1u);
  CHECK_EQ(range.gradients.numel(), parameter.sharding.local_shape.numel()) << parameter.name;
  const ops::OptimizerSegment& segment = range.segments[0];
  const Tensor& momentum = range.states.back();
  const float beta = static_cast<float>(options_.momentum);
  const Arena::Scope scope(range.scratch);
  const Shape& shape = parameter.sharding.local_shape;
  const Tensor step = range.scratch->Allocate(DType::kFloat32, shape, kMemory);
  const Tensor flat = step.Flatten();

  ops::Copy(stream, range.gradients, flat);
  ops::Scale(stream, static_cast<float>((1 - options_.momentum) * range.grad_scale), flat);
  ops::Scale(stream, beta, momentum);
  ops::Add(stream, flat, momentum);
  if (options_.nesterov) {
    const Arena::Scope mean_scope(range.scratch);
    const Tensor mean = range.scratch->Allocate(DType::kFloat32, flat.shape(), kMemory);
    ops::Copy(stream, momentum, mean);
    ops::Scale(stream, beta, mean);
    ops::Add(stream, mean, flat);
  } else {
    ops::Copy(stream, momentum, flat);
  }
  for (const MatrixBlock& block : MatrixBlocksOf(parameter, options_.split_qkv)) {
    const Arena::Scope matrix_scope(range.scratch);
    const Tensor elements = block.Of(step);
    const Tensor matrix =
        range.scratch->Allocate(DType::kFloat32, {block.rows, block.columns}, kMemory);
    ops::Copy(stream, elements, matrix.View(elements.shape()));
    Orthogonalize(range, block, matrix, stream);
    ops::Copy(stream, matrix.View(elements.shape()), elements);
  }
  ops::Scale(stream, -segment.lr, flat);
  ops::Scale(stream, 1 - segment.lr * segment.weight_decay, range.masters);
  ops::Add(stream, flat, range.masters);
  if (!range.weights.empty()) ops::Copy(stream, range.masters, range.weights);
}

void MuonRule::Orthogonalize(const UpdateRange& range, const MatrixBlock& block, const Tensor& u_RC,
                             const Stream& stream) const {
  const bool is_whole =
      options_.tensor_mode == MuonTensorMode::kBlockwise || block.cut == MatrixBlock::Cut::kNone;
  const ProcessGroup group = is_whole ? ProcessGroup() : range.tensor_group;
  const int replicas = is_whole ? 1 : block.replicas;
  if (!is_whole) CHECK_EQ(block.count() * replicas, group.size()) << range.parameter->name;
  const double norm = range.norm->Of(u_RC.Flatten(), group, replicas, stream);
  ops::Scale(stream, static_cast<float>(1 / std::max(norm, kLeastNorm)), u_RC);
  Tensor x_RC = u_RC;
  if (options_.product_dtype != DType::kFloat32) {
    x_RC = range.scratch->Allocate(options_.product_dtype, u_RC.shape(), kMemory);
    ops::Copy(stream, u_RC, x_RC);
  }
  NewtonSchulzOptions iteration;
  iteration.steps = options_.num_ns_steps;
  if (is_whole) {
    iteration.side = ShorterSide(x_RC);
    NewtonSchulz(stream, iteration, x_RC, range.scratch);
  } else if (options_.tensor_mode == MuonTensorMode::kDistributed) {
    // The Gram matrix that is a sum over blocks.
    iteration.side = block.cut == MatrixBlock::Cut::kRows ? GramSide::kColumns : GramSide::kRows;
    iteration.group = group;
    iteration.replicas = replicas;
    NewtonSchulz(stream, iteration, x_RC, range.scratch);
  } else {
    OrthogonalizeGathered(range, block, x_RC, stream);
  }
  if (options_.product_dtype != DType::kFloat32) ops::Copy(stream, x_RC, u_RC);
  const double scale = is_whole
                           ? MuonScale(options_.scale_mode, block.rows, block.columns)
                           : MuonScale(options_.scale_mode, block.whole_rows, block.whole_columns);
  ops::Scale(stream, static_cast<float>(scale * options_.extra_scale_factor), u_RC);
}

void MuonRule::OrthogonalizeGathered(const UpdateRange& range, const MatrixBlock& block,
                                     const Tensor& x_RC, const Stream& stream) const {
  const ProcessGroup& group = range.tensor_group;
  const int64_t count = block.count(), mine = group.rank() / block.replicas;
  const Arena::Scope scope(range.scratch);
  const Tensor whole =
      range.scratch->Allocate(x_RC.dtype(), {block.whole_rows, block.whole_columns}, kMemory);
  {
    const Arena::Scope gather_scope(range.scratch);
    const Tensor gathered = range.scratch->Allocate(
        x_RC.dtype(), {count, block.replicas, block.rows, block.columns}, kMemory);
    group.AllGather(x_RC.View({1, block.rows, block.columns}),
                    gathered.View({group.size(), block.rows, block.columns}), stream);
    for (int64_t i = 0; i < count; ++i) {
      const Tensor part = block.cut == MatrixBlock::Cut::kRows
                              ? whole.Slice(0, i * block.rows, (i + 1) * block.rows)
                              : whole.Slice(1, i * block.columns, (i + 1) * block.columns);
      ops::Copy(stream, gathered.Select(0, i).Select(0, 0), part);
    }
  }
  NewtonSchulzOptions iteration;
  iteration.steps = options_.num_ns_steps;
  iteration.side = ShorterSide(whole);
  NewtonSchulz(stream, iteration, whole, range.scratch);
  ops::Copy(stream,
            block.cut == MatrixBlock::Cut::kRows
                ? whole.Slice(0, mine * block.rows, (mine + 1) * block.rows)
                : whole.Slice(1, mine * block.columns, (mine + 1) * block.columns),
            x_RC);
}

}  // namespace megatron
