#include "megatron/tensor/parameter.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/philox.h"

namespace megatron {
namespace {

// FNV-1a. Part of what a seed means.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

// Calls body(global element index, local element index, length) for each contiguous run of the
// block.
template <typename Body>
void ForEachRun(const Sharding& sharding, Body body) {
  const int rank = sharding.global_shape.rank();
  const int64_t run = sharding.local_shape[rank - 1];
  const int64_t runs = run == 0 ? 0 : sharding.local_shape.numel() / run;
  for (int64_t r = 0; r < runs; ++r) {
    int64_t rest = r, global = sharding.offset[rank - 1], stride = sharding.global_shape[rank - 1];
    for (int d = rank - 2; d >= 0; --d) {
      global += (sharding.offset[d] + rest % sharding.local_shape[d]) * stride;
      rest /= sharding.local_shape[d];
      stride *= sharding.global_shape[d];
    }
    body(global, r * run, run);
  }
}

// Fills out[0, count) with elements [begin, begin + count) of a stream that is uniform between
// -bound and it.
void FillUniform(PhiloxKey key, float bound, int64_t begin, int64_t count, float* out) {
  PhiloxBlock block;
  for (int64_t i = begin; i < begin + count; ++i) {
    if (i == begin || i % 4 == 0) {
      const auto number = static_cast<uint64_t>(i / 4);
      block =
          Philox(key, {{static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), 0, 0}});
    }
    out[i - begin] = bound * (2 * UniformOpenZero(block.word[i % 4]) - 1);
  }
}

// Returns the initial value of kLogUniform and kStepBias that goes with a number that is uniform
// between 0 and 1.
float FromUniform(const Initializer& initializer, double uniform) {
  const double low = initializer.low, high = initializer.high;
  if (initializer.kind == Initializer::kLogUniform)
    return static_cast<float>(std::log(low + (high - low) * uniform));
  // The inverse of softplus.
  const double step = std::exp(std::log(low) + std::log(high / low) * uniform);
  return static_cast<float>(step + std::log(-std::expm1(-step)));
}

}  // namespace

Sharding Replicated(const Shape& shape, AxisSet partial) {
  Sharding sharding;
  sharding.global_shape = sharding.local_shape = sharding.offset = shape;
  for (int d = 0; d < shape.rank(); ++d) sharding.offset[d] = 0;
  sharding.partial = partial;
  return sharding;
}

Sharding SplitOverTensor(const Shape& shape, int dim, int parts, int part) {
  CHECK_EQ(shape[dim] % parts, 0) << "dim " << dim << " of " << shape << " over " << parts;
  Sharding sharding = Replicated(shape);
  sharding.local_shape[dim] = shape[dim] / parts;
  sharding.offset[dim] = part * sharding.local_shape[dim];
  sharding.sharded = {Axis::kTensor};
  return sharding;
}

float XavierBound(const Parameter& parameter) {
  const Shape& shape = parameter.sharding.global_shape;
  const int64_t columns = shape[shape.rank() - 1];
  const int64_t matrices = parameter.sharding.expert_grid ? shape[0] : 1;
  const int64_t rows = shape.numel() / (columns * matrices);
  return static_cast<float>(std::sqrt(6.0 / static_cast<double>(rows + columns)));
}

bool AnyIsTrained(const std::vector<const Parameter*>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Parameter* parameter) { return !parameter->frozen; });
}

void AppendBlock(const std::vector<Parameter*>& block, std::vector<Parameter*>* out) {
  const int number = NextBlock(*out);
  for (Parameter* parameter : block) {
    parameter->block = number;
    out->push_back(parameter);
  }
}

void FillInitial(const Parameter& parameter, uint64_t seed, const Tensor& out) {
  CHECK_EQ(out.shape(), parameter.sharding.local_shape) << parameter.name;
  CHECK(out.is_contiguous()) << parameter.name;
  float* values = out.data<float>();
  const Initializer& initializer = parameter.initializer;
  if (initializer.kind == Initializer::kZeros || initializer.kind == Initializer::kOnes) {
    std::fill(values, values + out.numel(), initializer.kind == Initializer::kOnes ? 1.0f : 0.0f);
    return;
  }
  const PhiloxKey key = DeriveKey(seed, kPhiloxInit, Hash(parameter.name), 0);
  ForEachRun(parameter.sharding, [&](int64_t global, int64_t local, int64_t length) {
    if (initializer.kind == Initializer::kUniform)
      return FillUniform(key, initializer.stddev, global, length, values + local);
    if (initializer.kind != Initializer::kNormal) {
      FillUniform(key, 1, global, length, values + local);
      for (int64_t i = local; i < local + length; ++i)
        values[i] = FromUniform(initializer, (double{values[i]} + 1) / 2);
      return;
    }
    FillNormal(key, global, length, values + local);
    for (int64_t i = local; i < local + length; ++i) values[i] *= initializer.stddev;
  });
}

}  // namespace megatron
