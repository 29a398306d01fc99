// A linear layer's operands and results, and its products by plain loops, for tests of
// LinearProducts.
#ifndef MEGATRON_LAYERS_LINEAR_PRODUCTS_HARNESS_H_
#define MEGATRON_LAYERS_LINEAR_PRODUCTS_HARNESS_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/layers/linear_products.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {

using ops::HostTensor;
using Cut = LinearProducts::Cut;
using Values = std::vector<double>;

constexpr int64_t kTokens = 22, kIn = 64, kOut = 96;
constexpr DType kF32 = DType::kFloat32;

// The numbers of a format that are not negative, ascending.
inline Values NumbersOf(int mantissa_bits, int bias, double largest) {
  Values numbers;
  for (int step = 0; step < 1 << mantissa_bits; ++step)
    numbers.push_back(std::ldexp(step, 1 - bias - mantissa_bits));
  for (int exponent = 1 - bias; std::ldexp(1, exponent) <= largest; ++exponent) {
    for (int step = 1 << mantissa_bits; step < 2 << mantissa_bits; ++step) {
      const double number = std::ldexp(step, exponent - mantissa_bits);
      if (number <= largest) numbers.push_back(number);
    }
  }
  return numbers;
}

inline float Largest(const Values& x) {
  float largest = 0;
  for (double value : x) largest = std::max(largest, static_cast<float>(std::fabs(value)));
  return largest;
}

// Returns the values after quantization, worked out without any code of the ops: scaled so that
// `amax` is the format's largest number, rounded to the nearest number, of two the one whose place
// among them is even. What is larger than amax becomes amax.
inline Values QuantizedBy(const Values& x, Float8Format format, float amax,
                          bool power_of_two = false) {
  const bool e4m3 = format == Float8Format::kE4M3;
  const Values numbers = e4m3 ? NumbersOf(3, 7, 448) : NumbersOf(2, 15, 57344);
  float scale = static_cast<float>(numbers.back()) / amax;
  if (power_of_two) scale = std::exp2(std::floor(std::log2(scale)));
  Values out;
  for (double value : x) {
    const double scaled = static_cast<float>(std::fabs(value)) * scale;
    size_t best = 0;
    double best_distance = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double distance = std::fabs(numbers[i] - scaled);
      if (distance > best_distance || (distance == best_distance && i % 2 == 1)) continue;
      best = i;
      best_distance = distance;
    }
    out.push_back(std::copysign(numbers[best], value) * (1.0f / scale));
  }
  return out;
}
inline Values Quantized(const Values& x, Float8Format format) {
  return QuantizedBy(x, format, Largest(x));
}

// c [m, n] += sum over k of a[m * am + k * ak] b[n * bn + k * bk].
struct Strides {
  int64_t row, k;
};
inline void AddProduct(const Values& a, Strides at, const Values& b, Strides bt, int64_t k,
                       int64_t n, Values* c) {
  for (size_t i = 0; i < c->size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / n, column = static_cast<int64_t>(i) % n;
    for (int64_t j = 0; j < k; ++j)
      (*c)[i] += a[row * at.row + j * at.k] * b[column * bt.row + j * bt.k];
  }
}

// One layer's operands and results, of all features and tokens or of a rank's.
struct Layer {
  Layer(int64_t tokens, int64_t in, int64_t out, DType dtype)
      : x({tokens, in}, dtype),
        w({out, in}, dtype),
        bias({out}, dtype),
        dy({tokens, out}, dtype),
        y({tokens, out}, dtype),
        dx({tokens, in}, dtype),
        dw({out, in}, kF32),
        dbias({out}, kF32) {}

  HostTensor x, w, bias, dy, y, dx, dw, dbias;
};

// Features and tokens of the second half are larger, so that halves have scales of their own.
inline Layer Random(DType dtype, int64_t tokens = kTokens, int64_t in = kIn, int64_t out = kOut) {
  Layer layer(tokens, in, out, dtype);
  const auto fill = [&](HostTensor* to, uint32_t seed) {
    const HostTensor values = HostTensor::Normal(to->tensor().shape(), to->tensor().dtype(), seed);
    const int64_t columns = to->tensor().dim(-1), rows = to->numel() / columns;
    for (int64_t i = 0; i < to->numel(); ++i) {
      const double columns_part = i % columns < columns / 2 ? 1 : 7;
      to->Set(i, values.Get(i) * columns_part * (i / columns < rows / 2 ? 1 : 3));
    }
  };
  fill(&layer.x, 1), fill(&layer.w, 2), fill(&layer.dy, 3);
  fill(&layer.bias, 4), fill(&layer.dw, 5), fill(&layer.dbias, 6);
  return layer;
}

inline LinearProducts Products(const Float8Options& options, Cut cut = Cut::kOutput) {
  return LinearProducts(options, cut, "layer.weight");
}
inline Float8Options Enabled(Float8Format gradient = Float8Format::kE5M2) {
  Float8Options options;
  options.enabled = true;
  options.gradient = gradient;
  return options;
}

// Forward and backward; the sums of cut layers over ranks are the caller's.
inline void Train(const LinearProducts& products, const ProcessGroup& tensor,
                  const ProcessGroup& context, Layer* layer) {
  ThreadPool pool(1);
  Arena saved({}, 1 << 22, "saved", nullptr), scratch({}, 1 << 22, "scratch", nullptr);
  LayerContext ctx = {tensor, Stream::Cpu(&pool), &saved, &scratch, nullptr};
  ctx.context_group = context;
  LinearProducts::Saved kept;
  products.Forward(ctx, layer->x, layer->w, layer->bias, layer->y, &kept);
  EXPECT_EQ(scratch.Mark(), 0);
  products.Reserve(ctx, layer->dy, &kept);
  products.BackwardInput(ctx, layer->dy, layer->w, layer->dx, &kept);
  products.BackwardWeight(ctx, layer->dy, layer->x, layer->dw, layer->dbias, kept);
}
inline void TrainAlone(const Float8Options& options, Layer* layer) {
  Train(Products(options), ProcessGroup(), ProcessGroup(), layer);
}

// part (=) or, if `back`, whole (=): rows and columns of it that rank `rank` of two has.
inline void Move(const HostTensor& whole, HostTensor* part, bool cut_rows, bool cut_columns,
                 int rank, bool back = false) {
  const int64_t columns = part->tensor().dim(-1), rows = part->numel() / columns;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = (r + (cut_rows ? rank * rows : 0)) * whole.tensor().dim(-1) + c +
                         (cut_columns ? rank * columns : 0);
      if (back) {
        EXPECT_EQ(part->Get(r * columns + c), whole.Get(at)) << r << " " << c;
      } else {
        part->Set(r * columns + c, whole.Get(at));
      }
    }
  }
}
inline void ExpectPart(const HostTensor& whole, HostTensor* part, bool cut_rows, bool cut_columns,
                       int rank) {
  Move(whole, part, cut_rows, cut_columns, rank, /*back=*/true);
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LINEAR_PRODUCTS_HARNESS_H_
