#include "megatron/optim/parameter_buffers.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"

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

ParameterBuffers::ParameterBuffers(const std::vector<Parameter*>& parameters,
                                   const ParameterBuffersOptions& options, MemoryLedger* ledger)
    : options_(options) {
  CHECK(options.num_moments >= 0 && options.num_moments <= 2) << options.num_moments;
  Plan(parameters);
  const Device device = options.device;
  const int64_t fp32_bytes = (num_elements_ - optimized_begin_) * SizeOf(DType::kFloat32);
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

void ParameterBuffers::InitializeWeights(uint64_t seed, const Stream& stream) {
  if (options_.device.type == DeviceType::kMeta) return;
  CHECK(options_.device.type == DeviceType::kCpu) << options_.device;
  std::vector<Piece> pieces;
  // What a copy of a tied weight has in place of a master while it is filled.
  std::vector<float> values(has_masters() ? optimized_begin_ : 0);
  const Tensor copies = has_masters() ? Tensor(values.data(), DType::kFloat32, {optimized_begin_})
                                      : Elements(weights_, DType::kFloat32, 0, optimized_begin_);
  for (const ParameterPlace& place : places_) {
    const bool is_copy = place.begin < optimized_begin_;
    const int64_t origin = is_copy ? 0 : optimized_begin_;
    AppendPieces(*place.parameter,
                 (is_copy ? copies : masters()).Slice(0, place.begin - origin, place.end - origin),
                 &pieces);
  }
  stream.pool()->ParallelFor(pieces.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) FillPiece(pieces[i], seed);
  });
  if (!has_masters()) return;
  if (optimized_begin_ > 0) {
    ops::Copy(stream, copies, Elements(weights_, options_.model_dtype, 0, optimized_begin_));
  }
  CopyMastersToWeights(stream);
}

void ParameterBuffers::CopyMastersToWeights(const Stream& stream) {
  if (!has_masters() || num_elements_ == optimized_begin_) return;
  ops::Copy(stream, masters(),
            Elements(weights_, options_.model_dtype, optimized_begin_, num_elements_));
}

void ParameterBuffers::ZeroGradients(const Stream& stream) {
  if (num_elements_ > 0) ops::Zero(stream, gradients());
}

std::vector<ParameterState> ParameterBuffers::States() const {
  std::vector<ParameterState> states;
  for (auto it = places_.rbegin(); it != places_.rend(); ++it) {
    if (it->begin < optimized_begin_) continue;
    const Shape& shape = it->parameter->sharding.local_shape;
    const auto view = [&](const Tensor& flat) {
      if (flat.empty()) return Tensor();
      return flat.Slice(0, it->begin - optimized_begin_, it->end - optimized_begin_).View(shape);
    };
    states.push_back({it->parameter, view(masters()), view(exp_avg()), view(exp_avg_sq())});
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
  if (!has_masters()) {
    return Elements(weights_, DType::kFloat32, optimized_begin_, num_elements_);
  }
  return Elements(masters_, DType::kFloat32, 0, num_elements_ - optimized_begin_);
}

Tensor ParameterBuffers::Moment(int index) const {
  if (index >= options_.num_moments) return Tensor();
  return Elements(moments_[index], DType::kFloat32, 0, num_elements_ - optimized_begin_);
}

}  // namespace megatron
