#include "megatron/optim/parameter_buffers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

Tensor All(const Buffer& buffer, DType dtype) {
  return buffer.At(0, dtype, {buffer.bytes() / SizeOf(dtype)});
}

constexpr int64_t kPieceElements = 1 << 16;

// Rows [row, row + num_rows) of dim 0 of a parameter's block, which one thread initializes.
struct Piece {
  const FlatParameter* flat;
  int64_t row, num_rows;
  FlatRange range;
};

// Appends pieces of whole rows that cover `wanted`.
void AppendPieces(const FlatParameter& flat, const FlatRange& wanted, std::vector<Piece>* pieces) {
  if (wanted.size() == 0) return;
  const int64_t row_elements = flat.range.size() / flat.parameter->sharding.local_shape[0];
  const int64_t rows_at_once = std::max<int64_t>(1, kPieceElements / row_elements);
  const int64_t end = (wanted.end - flat.range.begin + row_elements - 1) / row_elements;
  for (int64_t row = (wanted.begin - flat.range.begin) / row_elements; row < end;
       row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, end - row);
    const int64_t begin = flat.range.begin + row * row_elements;
    pieces->push_back({&flat, row, num_rows, {begin, begin + num_rows * row_elements}});
  }
}

void FillPiece(const Piece& piece, uint64_t seed, const Tensor& out) {
  const Parameter& parameter = *piece.flat->parameter;
  Parameter part;
  part.name = parameter.name;
  part.initializer = parameter.initializer;
  part.sharding = parameter.sharding;
  part.sharding.offset[0] += piece.row;
  part.sharding.local_shape[0] = piece.num_rows;
  FillInitial(part, seed, out.View(part.sharding.local_shape));
}

}  // namespace

ParameterBuffers::ParameterBuffers(const std::vector<Parameter*>& parameters,
                                   const ParameterBuffersOptions& options, MemoryLedger* ledger)
    : options_(options),
      layout_(PlanFlatLayout(parameters, options.data, options.expert_data, options.bucket_size,
                             options.unit)) {
  CHECK(options.bucket_size == 0 || !shards(DataSharding::kGradients)) << options.bucket_size;
  const Device device = options.device;
  const auto elements = [&](DataSharding what) {
    return shards(what) ? layout_.shard_elements : layout_.num_elements;
  };
  const int64_t copies =
      shards(DataSharding::kStates) ? layout_.optimized_shard_begin : layout_.optimized_begin;
  const int64_t optimized = elements(DataSharding::kStates) - copies;
  weights_ = Buffer(device, elements(DataSharding::kWeights) * SizeOf(options.model_dtype),
                    "weights", ledger);
  gradients_ = Buffer(device, elements(DataSharding::kGradients) * SizeOf(DType::kFloat32),
                      "gradients", ledger);
  if (has_masters())
    masters_ = Buffer(device, optimized * SizeOf(DType::kFloat32), "master weights", ledger);
  for (const OptimizerState& state : options.states) {
    states_.emplace_back(state.device.value_or(device), optimized * SizeOf(state.dtype), state.name,
                         ledger);
  }
  for (const FlatParameter& flat : layout_.parameters) {
    const Bucket& bucket = bucket_of(flat);
    const Shape& shape = flat.parameter->sharding.local_shape;
    if (!shards(DataSharding::kWeights))
      flat.parameter->data = Weights(bucket, flat.range).View(shape);
    if (!shards(DataSharding::kGradients))
      flat.parameter->grad = Gradients(bucket, flat.range).View(shape);
  }
}

FlatRange ParameterBuffers::optimizer_range(const Bucket& bucket) const {
  if (bucket.section == Section::kCopies) return {bucket.range.begin, bucket.range.begin};
  return shards(DataSharding::kStates) ? bucket.shard : bucket.range;
}

FlatRange ParameterBuffers::weight_range(const Bucket& bucket) const {
  return shards(DataSharding::kWeights) ? bucket.shard : bucket.range;
}

int64_t ParameterBuffers::Position(const Bucket& bucket, int64_t begin, bool sharded) const {
  return sharded ? bucket.shard_begin + begin - bucket.shard.begin : begin;
}

int64_t ParameterBuffers::OptimizerPosition(const Bucket& bucket, int64_t begin) const {
  const bool sharded = shards(DataSharding::kStates);
  return Position(bucket, begin, sharded) -
         (sharded ? layout_.optimized_shard_begin : layout_.optimized_begin);
}

Tensor ParameterBuffers::Weights(const Bucket& bucket, const FlatRange& range) const {
  const int64_t at = Position(bucket, range.begin, shards(DataSharding::kWeights));
  return weights_.At(at * SizeOf(options_.model_dtype), options_.model_dtype, {range.size()});
}

Tensor ParameterBuffers::Gradients(const Bucket& bucket, const FlatRange& range) const {
  const int64_t at = Position(bucket, range.begin, shards(DataSharding::kGradients));
  return gradients_.At(at * SizeOf(DType::kFloat32), DType::kFloat32, {range.size()});
}

Tensor ParameterBuffers::Masters(const Bucket& bucket, const FlatRange& range) const {
  if (!has_masters()) return Weights(bucket, range);
  const int64_t at = OptimizerPosition(bucket, range.begin);
  return masters_.At(at * SizeOf(DType::kFloat32), DType::kFloat32, {range.size()});
}

Tensor ParameterBuffers::State(size_t index, const Bucket& bucket, const FlatRange& range) const {
  const DType dtype = options_.states[index].dtype;
  const int64_t at = OptimizerPosition(bucket, range.begin);
  return states_[index].At(at * SizeOf(dtype), dtype, {range.size()});
}

Tensor ParameterBuffers::weights() const { return All(weights_, options_.model_dtype); }

Tensor ParameterBuffers::gradients() const { return All(gradients_, DType::kFloat32); }

Tensor ParameterBuffers::masters() const {
  return has_masters() ? All(masters_, DType::kFloat32) : Tensor();
}

Tensor ParameterBuffers::state(size_t index) const {
  return All(states_[index], options_.states[index].dtype);
}

void ParameterBuffers::InitializeWeights(uint64_t seed, const Stream& stream) {
  if (options_.device.type == DeviceType::kMeta || layout_.num_elements == 0) return;
  std::vector<Piece> pieces;
  for (const FlatParameter& flat : layout_.parameters)  // the optimizer range lies within these
    AppendPieces(flat, Common(flat.range, weight_range(bucket_of(flat))), &pieces);
  const HostMirror weights(this->weights(), "initial weights");
  const HostMirror masters =
      has_masters() ? HostMirror(this->masters(), "initial weights") : HostMirror();
  std::optional<ThreadPool> own_pool;
  ThreadPool* const pool =
      stream.pool() != nullptr ? stream.pool() : &own_pool.emplace(AvailableCores());
  const Stream host = Stream::Cpu(pool);
  pool->ParallelFor(pieces.size(), [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[i];
      const Bucket& bucket = bucket_of(*piece.flat);
      values.resize(piece.range.size());
      const Tensor filled(values.data(), DType::kFloat32, {piece.range.size()});
      FillPiece(piece, seed, filled);
      const auto copy = [&](const FlatRange& range, const HostMirror& to, int64_t at) {
        ops::Copy(host,
                  filled.Slice(0, range.begin - piece.range.begin, range.end - piece.range.begin),
                  to.host().Slice(0, at, at + range.size()));
      };
      const FlatRange stored = Common(piece.range, weight_range(bucket));
      if (stored.size() > 0)
        copy(stored, weights, Position(bucket, stored.begin, shards(DataSharding::kWeights)));
      const FlatRange optimized = Common(piece.range, optimizer_range(bucket));
      if (has_masters() && optimized.size() > 0)
        copy(optimized, masters, OptimizerPosition(bucket, optimized.begin));
    }
  });
  weights.Send(stream);
  if (has_masters()) masters.Send(stream);
}

void ParameterBuffers::CopyMastersToWeights(const Stream& stream) {
  if (!has_masters()) return;
  for (const Bucket& bucket : layout_.buckets) {
    const FlatRange range = optimizer_range(bucket);
    if (range.size() > 0) ops::Copy(stream, Masters(bucket, range), Weights(bucket, range));
  }
}

void ParameterBuffers::ZeroGradients(const Stream& stream) {
  if (gradients_.bytes() > 0) ops::Zero(stream, gradients());
}

std::vector<ParameterState> ParameterBuffers::States() const {
  std::vector<ParameterState> states;
  for (auto it = layout_.parameters.rbegin(); it != layout_.parameters.rend(); ++it) {
    const Bucket& bucket = bucket_of(*it);
    const FlatRange range = Common(it->range, optimizer_range(bucket));
    if (range.size() == 0) continue;
    ParameterState state;
    state.parameter = it->parameter;
    state.range = {range.begin - it->range.begin, range.end - it->range.begin};
    state.master = Masters(bucket, range);
    for (size_t i = 0; i < num_states(); ++i) state.states.push_back(State(i, bucket, range));
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace megatron
