#include "megatron/optim/parameter_buffers.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

constexpr int64_t kParameterAlignment = 64;
constexpr int64_t kSectionAlignment = 128;

enum Section { kCopies, kDense, kExperts };
constexpr int kNumSections = 3;

Section SectionOf(const Parameter& parameter) {
  if (parameter.tied && !parameter.owner) return kCopies;
  return parameter.sharding.expert_grid ? kExperts : kDense;
}

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Elements [begin, end) of `buffer` as `dtype`.
Tensor Elements(const Buffer& buffer, DType dtype, int64_t begin, int64_t end) {
  return buffer.At(begin * SizeOf(dtype), dtype, {end - begin});
}

// A piece of a parameter that one thread initializes.
struct Piece {
  const Parameter* parameter;
  int64_t row, num_rows;  // of dim 0 of the block
  Tensor out;             // fp32
};

constexpr int64_t kPieceElements = 1 << 16;

void AppendPieces(const Parameter& parameter, const Tensor& flat, std::vector<Piece>* pieces) {
  const int64_t rows = parameter.sharding.local_shape[0];
  if (flat.numel() == 0) return;
  const int64_t row_elements = flat.numel() / rows;
  const int64_t rows_at_once = std::max<int64_t>(1, kPieceElements / row_elements);
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, rows - row);
    pieces->push_back({&parameter, row, num_rows,
                       flat.Slice(0, row * row_elements, (row + num_rows) * row_elements)});
  }
}

void FillPiece(const Piece& piece, uint64_t seed) {
  Parameter part;
  part.name = piece.parameter->name;
  part.initializer = piece.parameter->initializer;
  part.sharding = piece.parameter->sharding;
  part.sharding.offset[0] += piece.row;
  part.sharding.local_shape[0] = piece.num_rows;
  FillInitial(part, seed, piece.out.View(part.sharding.local_shape));
}

}  // namespace

FlatRange Common(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

ParameterBuffers::ParameterBuffers(const std::vector<Parameter*>& parameters,
                                   const ParameterBuffersOptions& options, MemoryLedger* ledger)
    : options_(options) {
  CHECK(options.num_moments >= 0 && options.num_moments <= 2) << options.num_moments;
  Plan(parameters);
  held_ = {optimized_begin_, num_elements_};
  if (options.shard_states) {
    CHECK_EQ(experts_begin_, num_elements_) << "the state of experts is not shared out";
    held_ = DensePart(options.data_parallel_rank, options.data_parallel_size);
  }
  const Device device = options.device;
  const int64_t fp32_bytes = held_.size() * SizeOf(DType::kFloat32);
  weights_ = Buffer(device, num_elements_ * SizeOf(options.model_dtype), "weights", ledger);
  gradients_ = Buffer(device, num_elements_ * SizeOf(DType::kFloat32), "gradients", ledger);
  if (has_masters()) masters_ = Buffer(device, fp32_bytes, "master weights", ledger);
  for (int i = 0; i < options.num_moments; ++i) {
    moments_.emplace_back(device, fp32_bytes, i == 0 ? "exp_avg" : "exp_avg_sq", ledger);
  }
  for (const ParameterPlace& place : places_) {
    const Shape& shape = place.parameter->sharding.local_shape;
    place.parameter->data =
        weights_.At(place.begin * SizeOf(options.model_dtype), options.model_dtype, shape);
    place.parameter->grad =
        gradients_.At(place.begin * SizeOf(DType::kFloat32), DType::kFloat32, shape);
  }
}

void ParameterBuffers::Plan(const std::vector<Parameter*>& parameters) {
  int64_t end = 0;
  for (int section = 0; section < kNumSections; ++section) {
    if (section == kDense) optimized_begin_ = end;
    if (section == kExperts) experts_begin_ = end;
    for (auto it = parameters.rbegin(); it != parameters.rend(); ++it) {
      if (SectionOf(**it) != section) continue;
      CHECK_GT((*it)->sharding.local_shape.rank(), 0) << (*it)->name;
      const int64_t begin = RoundUp(end, kParameterAlignment);
      end = begin + (*it)->sharding.local_shape.numel();
      places_.push_back({*it, begin, end});
    }
    const int64_t ranks =
        section == kExperts ? options_.expert_data_parallel_size : options_.data_parallel_size;
    end = RoundUp(end, std::lcm(ranks, kSectionAlignment));
  }
  num_elements_ = end;
}

FlatRange ParameterBuffers::DensePart(int rank, int size) const {
  const int64_t elements = experts_begin_ - optimized_begin_;
  return {optimized_begin_ + elements * rank / size,
          optimized_begin_ + elements * (rank + 1) / size};
}

void ParameterBuffers::InitializeWeights(uint64_t seed, const Stream& stream) {
  if (options_.device.type == DeviceType::kMeta || num_elements_ == 0) return;
  const Tensor values = has_masters() ? gradients() : weights();  // fp32 of all sections
  const HostMirror mirror(values, "initial weights");
  std::vector<Piece> pieces;
  for (const ParameterPlace& place : places_) {
    AppendPieces(*place.parameter, mirror.host().Slice(0, place.begin, place.end), &pieces);
  }
  std::optional<ThreadPool> own_pool;
  ThreadPool* const pool =
      stream.pool() != nullptr ? stream.pool() : &own_pool.emplace(AvailableCores());
  pool->ParallelFor(pieces.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) FillPiece(pieces[i], seed);
  });
  mirror.Send(stream);
  if (!has_masters()) return;
  ops::Copy(stream, values, weights());
  if (held_.size() > 0) ops::Copy(stream, values.Slice(0, held_.begin, held_.end), masters());
  ZeroGradients(stream);
}

void ParameterBuffers::CopyMastersToWeights(const Stream& stream) {
  if (!has_masters() || held_.size() == 0) return;
  ops::Copy(stream, masters(), Elements(weights_, options_.model_dtype, held_.begin, held_.end));
}

void ParameterBuffers::ZeroGradients(const Stream& stream) {
  if (num_elements_ > 0) ops::Zero(stream, gradients());
}

std::vector<ParameterState> ParameterBuffers::States() const {
  std::vector<ParameterState> states;
  for (auto it = places_.rbegin(); it != places_.rend(); ++it) {
    const FlatRange held = Common({it->begin, it->end}, held_);
    if (held.size() == 0) continue;
    const auto view = [&](const Tensor& flat) {
      if (flat.empty()) return Tensor();
      return flat.Slice(0, held.begin - held_.begin, held.end - held_.begin);
    };
    states.push_back({it->parameter,
                      {held.begin - it->begin, held.end - it->begin},
                      view(masters()),
                      view(exp_avg()),
                      view(exp_avg_sq())});
  }
  return states;
}

Tensor ParameterBuffers::weights() const {
  return Elements(weights_, options_.model_dtype, 0, num_elements_);
}

Tensor ParameterBuffers::gradients() const {
  return Elements(gradients_, DType::kFloat32, 0, num_elements_);
}

Tensor ParameterBuffers::masters() const {
  if (!has_masters()) return Elements(weights_, DType::kFloat32, held_.begin, held_.end);
  return Elements(masters_, DType::kFloat32, 0, held_.size());
}

Tensor ParameterBuffers::Moment(int index) const {
  if (index >= options_.num_moments) return Tensor();
  return Elements(moments_[index], DType::kFloat32, 0, held_.size());
}

}  // namespace megatron
