#include "megatron/optim/parameter_buffers.h"

#include <algorithm>
#include <optional>

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
  const ParameterPlace* place;
  int64_t row, num_rows;
  FlatRange range;
};

// Pieces of whole rows that cover `wanted`.
void AppendPieces(const ParameterPlace& place, const FlatRange& wanted,
                  std::vector<Piece>* pieces) {
  if (wanted.size() == 0) return;
  const int64_t row_elements = (place.end - place.begin) / place.parameter->sharding.local_shape[0];
  const int64_t rows_at_once = std::max<int64_t>(1, kPieceElements / row_elements);
  const int64_t end = (wanted.end - place.begin + row_elements - 1) / row_elements;
  for (int64_t row = (wanted.begin - place.begin) / row_elements; row < end; row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, end - row);
    const int64_t begin = place.begin + row * row_elements;
    pieces->push_back({&place, row, num_rows, {begin, begin + num_rows * row_elements}});
  }
}

void FillPiece(const Piece& piece, uint64_t seed, const Tensor& out) {
  const Parameter& parameter = *piece.place->parameter;
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
      layout_(PlanLayout(parameters, options.data, options.expert_data, options.bucket_size)) {
  CHECK(options.bucket_size == 0 || !shards(DataSharding::kGradients)) << options.bucket_size;
  CHECK(options.num_moments >= 0 && options.num_moments <= 2) << options.num_moments;
  const Device device = options.device;
  const auto elements = [&](DataSharding what) {
    return shards(what) ? layout_.part_elements : layout_.num_elements;
  };
  const int64_t copies =
      shards(DataSharding::kStates) ? layout_.optimized_part_begin : layout_.optimized_begin;
  const int64_t state_bytes = (elements(DataSharding::kStates) - copies) * SizeOf(DType::kFloat32);
  weights_ = Buffer(device, elements(DataSharding::kWeights) * SizeOf(options.model_dtype),
                    "weights", ledger);
  gradients_ = Buffer(device, elements(DataSharding::kGradients) * SizeOf(DType::kFloat32),
                      "gradients", ledger);
  if (has_masters()) masters_ = Buffer(device, state_bytes, "master weights", ledger);
  for (int i = 0; i < options.num_moments; ++i) {
    moments_.emplace_back(device, state_bytes, i == 0 ? "exp_avg" : "exp_avg_sq", ledger);
  }
  for (const ParameterPlace& place : layout_.places) {
    const Bucket& bucket = bucket_of(place);
    const Shape& shape = place.parameter->sharding.local_shape;
    if (!shards(DataSharding::kWeights))
      place.parameter->data = Weights(bucket, place.range()).View(shape);
    if (!shards(DataSharding::kGradients))
      place.parameter->grad = Gradients(bucket, place.range()).View(shape);
  }
}

FlatRange ParameterBuffers::Held(const Bucket& bucket) const {
  if (bucket.section == Section::kCopies) return {bucket.range.begin, bucket.range.begin};
  return shards(DataSharding::kStates) ? bucket.part : bucket.range;
}

FlatRange ParameterBuffers::StoredWeights(const Bucket& bucket) const {
  return shards(DataSharding::kWeights) ? bucket.part : bucket.range;
}

FlatRange ParameterBuffers::StoredGradients(const Bucket& bucket) const {
  return shards(DataSharding::kGradients) ? bucket.part : bucket.range;
}

int64_t ParameterBuffers::Position(const Bucket& bucket, int64_t begin, bool sharded) const {
  return sharded ? bucket.part_begin + begin - bucket.part.begin : begin;
}

int64_t ParameterBuffers::StatePosition(const Bucket& bucket, int64_t begin) const {
  const bool sharded = shards(DataSharding::kStates);
  return Position(bucket, begin, sharded) -
         (sharded ? layout_.optimized_part_begin : layout_.optimized_begin);
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
  const int64_t at = StatePosition(bucket, range.begin);
  return masters_.At(at * SizeOf(DType::kFloat32), DType::kFloat32, {range.size()});
}

Tensor ParameterBuffers::Moment(size_t index, const Bucket& bucket, const FlatRange& range) const {
  if (index >= moments_.size()) return Tensor();
  const int64_t at = StatePosition(bucket, range.begin);
  return moments_[index].At(at * SizeOf(DType::kFloat32), DType::kFloat32, {range.size()});
}

Tensor ParameterBuffers::ExpAvg(const Bucket& bucket, const FlatRange& range) const {
  return Moment(0, bucket, range);
}

Tensor ParameterBuffers::ExpAvgSq(const Bucket& bucket, const FlatRange& range) const {
  return Moment(1, bucket, range);
}

Tensor ParameterBuffers::weights() const { return All(weights_, options_.model_dtype); }

Tensor ParameterBuffers::gradients() const { return All(gradients_, DType::kFloat32); }

Tensor ParameterBuffers::masters() const {
  return has_masters() ? All(masters_, DType::kFloat32) : Tensor();
}

Tensor ParameterBuffers::exp_avg() const {
  return moments_.empty() ? Tensor() : All(moments_[0], DType::kFloat32);
}

Tensor ParameterBuffers::exp_avg_sq() const {
  return moments_.size() < 2 ? Tensor() : All(moments_[1], DType::kFloat32);
}

void ParameterBuffers::InitializeWeights(uint64_t seed, const Stream& stream) {
  if (options_.device.type == DeviceType::kMeta || layout_.num_elements == 0) return;
  std::vector<Piece> pieces;
  for (const ParameterPlace& place : layout_.places)  // what is held is among what is stored
    AppendPieces(place, Common(place.range(), StoredWeights(bucket_of(place))), &pieces);
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
      const Bucket& bucket = bucket_of(*piece.place);
      values.resize(piece.range.size());
      const Tensor filled(values.data(), DType::kFloat32, {piece.range.size()});
      FillPiece(piece, seed, filled);
      const auto copy = [&](const FlatRange& range, const HostMirror& to, int64_t at) {
        ops::Copy(host,
                  filled.Slice(0, range.begin - piece.range.begin, range.end - piece.range.begin),
                  to.host().Slice(0, at, at + range.size()));
      };
      const FlatRange stored = Common(piece.range, StoredWeights(bucket));
      if (stored.size() > 0)
        copy(stored, weights, Position(bucket, stored.begin, shards(DataSharding::kWeights)));
      const FlatRange held = Common(piece.range, Held(bucket));
      if (has_masters() && held.size() > 0) copy(held, masters, StatePosition(bucket, held.begin));
    }
  });
  weights.Send(stream);
  if (has_masters()) masters.Send(stream);
}

void ParameterBuffers::CopyMastersToWeights(const Stream& stream) {
  if (!has_masters()) return;
  for (const Bucket& bucket : layout_.buckets) {
    const FlatRange held = Held(bucket);
    if (held.size() > 0) ops::Copy(stream, Masters(bucket, held), Weights(bucket, held));
  }
}

void ParameterBuffers::ZeroGradients(const Stream& stream) {
  if (gradients_.bytes() > 0) ops::Zero(stream, gradients());
}

std::vector<ParameterState> ParameterBuffers::States() const {
  std::vector<ParameterState> states;
  for (auto it = layout_.places.rbegin(); it != layout_.places.rend(); ++it) {
    const Bucket& bucket = bucket_of(*it);
    const FlatRange held = Common(it->range(), Held(bucket));
    if (held.size() == 0) continue;
    states.push_back({it->parameter,
                      {held.begin - it->begin, held.end - it->begin},
                      Masters(bucket, held),
                      ExpAvg(bucket, held),
                      ExpAvgSq(bucket, held)});
  }
  return states;
}

}  // namespace megatron
