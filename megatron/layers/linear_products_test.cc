#include "megatron/layers/linear_products.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/linear_products_harness.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron {
namespace {

TEST(LinearProductsTest, AreThoseOfTheQuantizedTensors) {
  for (DType dtype : {kF32, DType::kBFloat16, DType::kFloat16}) {
    for (Float8Format gradient : {Float8Format::kE4M3, Float8Format::kE5M2}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << Name(gradient));
      Layer layer = Random(dtype);
      const Values x = Quantized(layer.x.Values(), Float8Format::kE4M3),
                   w = Quantized(layer.w.Values(), Float8Format::kE4M3),
                   dy = Quantized(layer.dy.Values(), gradient);
      Values y(kTokens * kOut), dx(kTokens * kIn), dw = layer.dw.Values(),
                                                   dbias = layer.dbias.Values();
      AddProduct(x, {kIn, 1}, w, {kIn, 1}, kIn, kOut, &y);
      for (size_t i = 0; i < y.size(); ++i) y[i] += layer.bias.Get(static_cast<int64_t>(i) % kOut);
      AddProduct(dy, {kOut, 1}, w, {1, kIn}, kOut, kIn, &dx);
      AddProduct(dy, {1, kOut}, x, {1, kIn}, kTokens, kIn, &dw);
      // The gradient itself.
      for (int64_t i = 0; i < layer.dy.numel(); ++i) dbias[i % kOut] += layer.dy.Get(i);
      TrainAlone(Enabled(gradient), &layer);
      ExpectNear(layer.y, y, ops::OpTolerance(dtype));
      ExpectNear(layer.dx, dx, ops::OpTolerance(dtype));
      ExpectNear(layer.dw, dw, ops::OpTolerance(kF32));
      ExpectNear(layer.dbias, dbias, ops::OpTolerance(kF32));
    }
  }
}

TEST(LinearProductsTest, WithoutFloat8AreThoseOfTheTensorsThemselves) {
  Layer layer = Random(kF32);
  Values y(kTokens * kOut);
  AddProduct(layer.x.Values(), {kIn, 1}, layer.w.Values(), {kIn, 1}, kIn, kOut, &y);
  for (size_t i = 0; i < y.size(); ++i) y[i] += layer.bias.Get(static_cast<int64_t>(i) % kOut);
  TrainAlone(Float8Options(), &layer);
  ExpectNear(layer.y, y, ops::OpTolerance(kF32));
}

TEST(LinearProductsTest, TheWeightsGradientMayBeThatOfTheTensorsThemselves) {
  Float8Options options = Enabled();
  options.weight_gradient = false;
  Layer with = Random(DType::kBFloat16), without = Random(DType::kBFloat16),
        all = Random(DType::kBFloat16);
  TrainAlone(options, &with);
  TrainAlone(Float8Options(), &without);
  TrainAlone(Enabled(), &all);
  EXPECT_EQ(with.dw.Bytes(), without.dw.Bytes());
  EXPECT_EQ(with.dbias.Bytes(), without.dbias.Bytes());
  EXPECT_NE(all.dw.Bytes(), without.dw.Bytes());
  EXPECT_EQ(with.y.Bytes(), all.y.Bytes());
  EXPECT_EQ(with.dx.Bytes(), all.dx.Bytes());
  EXPECT_NE(with.y.Bytes(), without.y.Bytes());
  EXPECT_NE(with.dx.Bytes(), without.dx.Bytes());
}

TEST(LinearProductsTest, ActivationsAreThoseOfWhatIsStored) {
  ThreadPool pool(1);
  Arena saved({}, 1 << 20, "saved", nullptr), scratch({}, 1 << 20, "scratch", nullptr);
  const LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, nullptr};
  Layer plain = Random(DType::kBFloat16), fused = Random(DType::kBFloat16);
  const HostTensor activated({kTokens, kOut}, DType::kBFloat16);
  const LinearProducts products = Products(Enabled());
  LinearProducts::Saved kept;
  products.ForwardActivation(ctx, ops::Activation::kSquaredRelu, fused.x, fused.w, fused.bias,
                             fused.y, activated, &kept);
  products.Forward(ctx, plain.x, plain.w, plain.bias, plain.y, &kept);
  EXPECT_EQ(fused.y.Bytes(), plain.y.Bytes());
  for (int64_t i = 0; i < activated.numel(); ++i) {
    const float pre = static_cast<float>(std::max(0.0, plain.y.Get(i)));
    ASSERT_EQ(activated.Get(i), ToFloat(ToBFloat16(pre * pre)));
  }
  products.Reserve(ctx, fused.dy, &kept);
  products.BackwardInputActivation(ctx, ops::Activation::kSquaredRelu, fused.dy, fused.w, fused.x,
                                   fused.dx, Tensor(), &kept);
  products.BackwardInput(ctx, fused.dy, fused.w, plain.dx, &kept);
  for (int64_t i = 0; i < fused.dx.numel(); ++i) {
    const double slope = 2 * std::max(0.0, fused.x.Get(i));
    ASSERT_NEAR(fused.dx.Get(i), plain.dx.Get(i) * slope, std::fabs(plain.dx.Get(i) * slope) / 128);
  }
  const std::vector<double> dx = fused.dx.Values();
  HostTensor sums({kIn}, DType::kFloat32);
  products.BackwardInputActivation(ctx, ops::Activation::kSquaredRelu, fused.dy, fused.w, fused.x,
                                   fused.dx, sums, &kept);
  EXPECT_EQ(fused.dx.Values(), dx);
  for (int64_t i = 0; i < kIn; ++i) {
    double want = 0;
    for (int64_t t = 0; t < kTokens; ++t) want += dx[t * kIn + i];
    EXPECT_NEAR(sums.Get(i), want, 1e-4);
  }
}

// Results that are not sums over ranks must be the same bits.
TEST(LinearProductsTest, TensorParallelRanksUseTheScalesOfOneRank) {
  Layer whole = Random(kF32);
  const Layer before = Random(kF32);
  TrainAlone(Enabled(), &whole);
  for (Cut cut : {Cut::kInput, Cut::kOutput}) {
    const bool out = cut == Cut::kOutput;
    std::vector<Layer> parts;
    for (int rank = 0; rank < 2; ++rank)
      parts.emplace_back(kTokens, out ? kIn : kIn / 2, out ? kOut / 2 : kOut, kF32);
    ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                  Layer& part = parts[static_cast<size_t>(rank)];
                  Move(before.x, &part.x, false, !out, rank);
                  Move(before.w, &part.w, out, !out, rank);
                  Move(before.bias, &part.bias, false, out, rank);
                  Move(before.dy, &part.dy, false, out, rank);
                  Move(before.dw, &part.dw, out, !out, rank);
                  Move(before.dbias, &part.dbias, false, out, rank);
                  Train(Products(Enabled(), cut), world, ProcessGroup(), &part);
                  if (out) {
                    ExpectPart(whole.y, &part.y, false, true, rank);
                    ExpectPart(whole.dbias, &part.dbias, false, true, rank);
                  } else {
                    ExpectPart(whole.dx, &part.dx, false, true, rank);
                  }
                  ExpectPart(whole.dw, &part.dw, out, !out, rank);
                  return world.status();
                }).ok());
    Values sum;
    for (int64_t i = 0; i < (out ? whole.dx : whole.y).numel(); ++i) {
      sum.push_back(out ? parts[0].dx.Get(i) + parts[1].dx.Get(i)
                        : parts[0].y.Get(i) + parts[1].y.Get(i) - whole.bias.Get(i % kOut));
    }
    ExpectNear(out ? whole.dx : whole.y, sum, ops::OpTolerance(kF32));
  }
}

TEST(LinearProductsTest, ContextParallelRanksUseTheScalesOfOneRank) {
  Layer whole = Random(kF32);
  const Layer before = Random(kF32);
  TrainAlone(Enabled(), &whole);
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                Layer part(kTokens / 2, kIn, kOut, kF32);
                Move(before.x, &part.x, true, false, rank);
                Move(before.w, &part.w, false, false, rank);
                Move(before.bias, &part.bias, false, false, rank);
                Move(before.dy, &part.dy, true, false, rank);
                Train(Products(Enabled()), ProcessGroup(), world, &part);
                ExpectPart(whole.y, &part.y, true, false, rank);
                ExpectPart(whole.dx, &part.dx, true, false, rank);
                return world.status();
              }).ok());
}

// Each rank has the whole weight, and rows of its own.
TEST(LinearProductsTest, RanksWithRowsOfTheirOwnUseTheScalesOfOneRank) {
  Layer whole = Random(kF32);
  const Layer before = Random(kF32);
  TrainAlone(Enabled(), &whole);
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                Layer part(kTokens / 2, kIn, kOut, kF32);
                Move(before.x, &part.x, true, false, rank);
                Move(before.w, &part.w, false, false, rank);
                Move(before.bias, &part.bias, false, false, rank);
                Move(before.dy, &part.dy, true, false, rank);
                Train(Products(Enabled(), Cut::kRows), world, ProcessGroup(), &part);
                ExpectPart(whole.y, &part.y, true, false, rank);
                ExpectPart(whole.dx, &part.dx, true, false, rank);
                return world.status();
              }).ok());
}

// The columns of a wider tensor, as latents are that travel in one message.
class Columns {
 public:
  explicit Columns(const HostTensor& values)
      : wide_({values.tensor().dim(0), values.tensor().dim(1) + 5}, values.tensor().dtype()),
        columns_(values.tensor().dim(1)) {
    for (int64_t i = 0; i < values.numel(); ++i) wide_.Set(Place(i), values.Get(i));
  }
  Tensor view() const { return wide_.tensor().Slice(1, 2, 2 + columns_); }
  void ExpectEqual(const HostTensor& want) const {
    for (int64_t i = 0; i < want.numel(); ++i) ASSERT_EQ(wide_.Get(Place(i)), want.Get(i)) << i;
    for (int64_t r = 0; r < wide_.tensor().dim(0); ++r)
      for (const int64_t c : {int64_t{1}, 2 + columns_})
        EXPECT_EQ(wide_.Get(r * (columns_ + 5) + c), 0);
  }

 private:
  int64_t Place(int64_t i) const { return i / columns_ * (columns_ + 5) + 2 + i % columns_; }

  HostTensor wide_;
  int64_t columns_;
};

TEST(LinearProductsTest, RowsMayLieApart) {
  Float8Options blocks = Enabled(), high = Enabled();
  blocks.recipe = Float8Recipe::kBlockwise;
  high.weight_gradient = false;
  for (const Float8Options& options : {Enabled(), blocks, high, Float8Options()}) {
    Layer dense = Random(kF32);
    Layer apart = Random(kF32);
    TrainAlone(options, &dense);
    ThreadPool pool(1);
    Arena saved({}, 1 << 22, "saved", nullptr), scratch({}, 1 << 22, "scratch", nullptr);
    const LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, nullptr};
    const Columns x(apart.x), dy(apart.dy), y(HostTensor({kTokens, kOut}, kF32)),
        dx(HostTensor({kTokens, kIn}, kF32));
    const LinearProducts products = Products(options);
    LinearProducts::Saved kept;
    products.Forward(ctx, x.view(), apart.w, apart.bias, y.view(), &kept);
    products.Reserve(ctx, dy.view(), &kept);
    products.BackwardInput(ctx, dy.view(), apart.w, dx.view(), &kept);
    products.BackwardWeight(ctx, dy.view(), x.view(), apart.dw, Tensor(), kept);
    y.ExpectEqual(dense.y);
    dx.ExpectEqual(dense.dx);
    EXPECT_EQ(apart.dw.Bytes(), dense.dw.Bytes());
  }
}

TEST(LinearProductsTest, LayersAtTheEndsMayBeLeftOut) {
  Float8Options options = Enabled();
  options.first_layers_without = 1;
  options.last_layers_without = 2;
  for (int64_t layer = 0; layer < 6; ++layer)
    EXPECT_EQ(Float8OfLayer(options, layer, 6).enabled, layer >= 1 && layer < 4) << layer;
  EXPECT_TRUE(Float8OfLayer(options, 6, 6).enabled);
  options.enabled = false;
  EXPECT_FALSE(Float8OfLayer(options, 2, 6).enabled);
}

}  // namespace
}  // namespace megatron
