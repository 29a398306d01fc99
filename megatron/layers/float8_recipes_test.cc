// The products of a linear layer whose scales are those of earlier steps, or of blocks.

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/float8_history.h"
#include "megatron/layers/linear_products_harness.h"
#include "megatron/ops/tolerances.h"

namespace megatron {
namespace {

constexpr Float8Format kE4M3 = Float8Format::kE4M3, kE5M2 = Float8Format::kE5M2;
constexpr int64_t kBlock = 128;

// The results of quantized operands. Those of the weight's gradient are quantized on their own.
struct Operands {
  Values x, w, dy, x_for_dw, dy_for_dw;
};
void ExpectProducts(const Layer& before, const Operands& operands, const Layer& got) {
  const int64_t tokens = before.x.tensor().dim(0), in = before.x.tensor().dim(1),
                out = before.dy.tensor().dim(1);
  Values y(tokens * out), dx(tokens * in), dw = before.dw.Values();
  AddProduct(operands.x, {in, 1}, operands.w, {in, 1}, in, out, &y);
  for (size_t i = 0; i < y.size(); ++i) y[i] += before.bias.Get(static_cast<int64_t>(i) % out);
  AddProduct(operands.dy, {out, 1}, operands.w, {1, in}, out, in, &dx);
  AddProduct(operands.dy_for_dw, {1, out}, operands.x_for_dw, {1, in}, tokens, in, &dw);
  ExpectNear(got.y, y, ops::OpTolerance(kF32));
  ExpectNear(got.dx, dx, ops::OpTolerance(kF32));
  ExpectNear(got.dw, dw, ops::OpTolerance(kF32));
}

// A matrix with `rows` x `columns` parts that are quantized alone.
Values QuantizedInParts(const HostTensor& x, Float8Format format, bool power_of_two, int64_t rows,
                        int64_t columns) {
  const Values values = x.Values();
  const int64_t height = x.tensor().dim(0), width = x.tensor().dim(1);
  Values out(values.size());
  for (int64_t r0 = 0; r0 < height; r0 += rows) {
    for (int64_t c0 = 0; c0 < width; c0 += columns) {
      Values part;
      std::vector<size_t> places;
      for (int64_t r = r0; r < std::min(height, r0 + rows); ++r) {
        for (int64_t c = c0; c < std::min(width, c0 + columns); ++c)
          places.push_back(static_cast<size_t>(r * width + c));
      }
      for (size_t place : places) part.push_back(values[place]);
      const Values quantized = QuantizedBy(part, format, Largest(part), power_of_two);
      for (size_t i = 0; i < places.size(); ++i) out[places[i]] = quantized[i];
    }
  }
  return out;
}

Float8Options Blockwise(bool power_of_two = true) {
  Float8Options options = Enabled();
  options.recipe = Float8Recipe::kBlockwise;
  options.power_of_two_scales = power_of_two;
  return options;
}

TEST(BlockwiseTest, ProductsAreThoseOfTensorsQuantizedInParts) {
  for (bool power_of_two : {true, false}) {
    Layer layer = Random(kF32, 150, 272, 144);
    const Layer before = Random(kF32, 150, 272, 144);
    TrainAlone(Blockwise(power_of_two), &layer);
    ExpectProducts(before,
                   {QuantizedInParts(before.x, kE4M3, power_of_two, 1, kBlock),
                    QuantizedInParts(before.w, kE4M3, power_of_two, kBlock, kBlock),
                    QuantizedInParts(before.dy, kE5M2, power_of_two, 1, kBlock),
                    QuantizedInParts(before.x, kE4M3, power_of_two, kBlock, 1),
                    QuantizedInParts(before.dy, kE5M2, power_of_two, kBlock, 1)},
                   layer);
  }
}

// Ranks that have whole blocks make the codes of one rank, without a message.
TEST(BlockwiseTest, RanksWithWholeBlocksComputeWhatOneRankComputes) {
  const Layer before = Random(kF32, 256, 256, 256);
  Layer whole = Random(kF32, 256, 256, 256);
  TrainAlone(Blockwise(), &whole);
  for (Cut cut : {Cut::kInput, Cut::kOutput}) {
    const bool out = cut == Cut::kOutput;
    ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                  Layer part(256, out ? 256 : 128, out ? 128 : 256, kF32);
                  Move(before.x, &part.x, false, !out, rank);
                  Move(before.w, &part.w, out, !out, rank);
                  Move(before.bias, &part.bias, false, out, rank);
                  Move(before.dy, &part.dy, false, out, rank);
                  Move(before.dw, &part.dw, out, !out, rank);
                  Train(Products(Blockwise(), cut), world, ProcessGroup(), &part);
                  if (out) {
                    ExpectPart(whole.y, &part.y, false, true, rank);
                  } else {
                    ExpectPart(whole.dx, &part.dx, false, true, rank);
                  }
                  ExpectPart(whole.dw, &part.dw, out, !out, rank);
                  return world.status();
                }).ok());
  }
  std::vector<Layer> parts;
  for (int rank = 0; rank < 2; ++rank) parts.emplace_back(128, 256, 256, kF32);
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                Layer& part = parts[static_cast<size_t>(rank)];
                Move(before.x, &part.x, true, false, rank);
                Move(before.w, &part.w, false, false, rank);
                Move(before.bias, &part.bias, false, false, rank);
                Move(before.dy, &part.dy, true, false, rank);
                Train(Products(Blockwise()), ProcessGroup(), world, &part);
                ExpectPart(whole.y, &part.y, true, false, rank);
                ExpectPart(whole.dx, &part.dx, true, false, rank);
                return world.status();
              }).ok());
  Values sum;
  for (int64_t i = 0; i < whole.dw.numel(); ++i)
    sum.push_back(before.dw.Get(i) + parts[0].dw.Get(i) + parts[1].dw.Get(i));
  ExpectNear(whole.dw, sum, ops::OpTolerance(kF32));
}

// Backward does not read an input whose codes are kept, and computes the same bits.
TEST(KeptCodesTest, GiveTheSameGradients) {
  for (const Float8Options& options : {Enabled(), Blockwise()}) {
    Layer plain = Random(kF32, 150, 272, 144), kept = Random(kF32, 150, 272, 144);
    TrainAlone(options, &plain);
    ThreadPool pool(1);
    Arena saved({}, 1 << 20, "saved", nullptr), scratch({}, 1 << 20, "scratch", nullptr);
    LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, nullptr};
    const LinearProducts products(options, Cut::kOutput, "layer.weight", /*keep_codes=*/true);
    ASSERT_TRUE(products.keeps_codes(ctx));
    LinearProducts::Saved of_forward;
    products.Forward(ctx, kept.x, kept.w, kept.bias, kept.y, &of_forward);
    products.Reserve(ctx, kept.dy, &of_forward);
    products.BackwardInput(ctx, kept.dy, kept.w, kept.dx, &of_forward);
    products.BackwardWeight(ctx, kept.dy, Tensor(), kept.dw, kept.dbias, of_forward);
    EXPECT_EQ(kept.y.Bytes(), plain.y.Bytes());
    EXPECT_EQ(kept.dx.Bytes(), plain.dx.Bytes());
    EXPECT_EQ(kept.dw.Bytes(), plain.dw.Bytes());
  }
}

TEST(KeptCodesTest, AreKeptOnlyWhereTheyTakeLessMemoryThanTheInput) {
  ThreadPool pool(1);
  LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), nullptr, nullptr, nullptr};
  const auto keeps = [&](const Float8Options& options, Cut cut) {
    return LinearProducts(options, cut, "layer.weight", /*keep_codes=*/true).keeps_codes(ctx);
  };
  Float8Options in_bf16 = Enabled();
  in_bf16.weight_gradient = false;
  EXPECT_FALSE(keeps(in_bf16, Cut::kInput));
  EXPECT_FALSE(keeps(Float8Options(), Cut::kInput));
  EXPECT_TRUE(keeps(Enabled(), Cut::kOutput));
  ctx.sequence_parallel = true;
  EXPECT_FALSE(keeps(Enabled(), Cut::kOutput));
  EXPECT_TRUE(keeps(Enabled(), Cut::kInput));
  ctx.training = false;
  EXPECT_FALSE(keeps(Enabled(), Cut::kInput));
}

// A history and the products of one layer that has it.
struct Delayed {
  explicit Delayed(Cut cut = Cut::kOutput, const Float8HistoryOptions& history_options = {})
      : history(history_options), products(Products(Options(&history), cut)) {
    history.Allocate(Device(), nullptr);
  }
  static Float8Options Options(Float8History* history) {
    Float8Options options = Enabled();
    options.recipe = Float8Recipe::kDelayed;
    options.history = history;
    return options;
  }
  void Step(const ProcessGroup& tensor, const ProcessGroup& context, Layer* layer) {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    history.StartStep(stream);
    Train(products, tensor, context, layer);
    history.StartReduce({tensor, context}, stream);
    history.Record(stream);
  }
  void StepAlone(Layer* layer) { Step(ProcessGroup(), ProcessGroup(), layer); }

  Float8History history;
  LinearProducts products;
};

// Scales the layer's operands: those of another step.
Layer Scaled(Layer layer, double x, double w, double dy) {
  for (int64_t i = 0; i < layer.x.numel(); ++i) layer.x.Set(i, layer.x.Get(i) * x);
  for (int64_t i = 0; i < layer.w.numel(); ++i) layer.w.Set(i, layer.w.Get(i) * w);
  for (int64_t i = 0; i < layer.dy.numel(); ++i) layer.dy.Set(i, layer.dy.Get(i) * dy);
  return layer;
}

TEST(DelayedTest, TheFirstStepHasTheScalesOfTheMoment) {
  Layer delayed = Random(kF32), tensorwise = Random(kF32);
  Delayed layer;
  layer.StepAlone(&delayed);
  TrainAlone(Enabled(), &tensorwise);
  EXPECT_EQ(delayed.y.Bytes(), tensorwise.y.Bytes());
  EXPECT_EQ(delayed.dx.Bytes(), tensorwise.dx.Bytes());
  EXPECT_EQ(delayed.dw.Bytes(), tensorwise.dw.Bytes());
}

// Some operands of a second step are beyond what the first step's scales can represent.
TEST(DelayedTest, LaterStepsHaveTheScalesOfTheStepsBefore) {
  for (int margin : {0, 1}) {
    Delayed layer(Cut::kOutput, {1, true, margin});
    Layer first = Random(kF32), second = Scaled(Random(kF32), 3, 0.4, 0.01);
    const Layer before = Scaled(Random(kF32), 3, 0.4, 0.01);
    const auto factor = static_cast<float>(1 << margin);
    const float x = Largest(first.x.Values()) * factor, w = Largest(first.w.Values()) * factor,
                dy = Largest(first.dy.Values()) * factor;
    layer.StepAlone(&first);
    layer.StepAlone(&second);
    const Values x8 = QuantizedBy(before.x.Values(), kE4M3, x),
                 dy8 = QuantizedBy(before.dy.Values(), kE5M2, dy);
    ExpectProducts(before, {x8, QuantizedBy(before.w.Values(), kE4M3, w), dy8, x8, dy8}, second);
    EXPECT_EQ(layer.history.layer(0).amax_3.data<float>()[0], Largest(before.x.Values()) * factor);
  }
}

TEST(DelayedTest, MicroBatchesOfAStepHaveTheSameScalesAndAddOneEntry) {
  Delayed layer;
  Layer first = Random(kF32), small = Scaled(Random(kF32), 0.5, 1, 0.5), large = Random(kF32);
  layer.StepAlone(&first);
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  layer.history.StartStep(stream);
  Train(layer.products, ProcessGroup(), ProcessGroup(), &large);
  Train(layer.products, ProcessGroup(), ProcessGroup(), &small);
  layer.history.StartReduce({}, stream);
  layer.history.Record(stream);
  EXPECT_EQ(layer.history.layer(0).amax_3.data<float>()[0], Largest(Random(kF32).x.Values()));
  EXPECT_EQ(layer.history.layer(0).amax_3.data<float>()[2], Largest(Random(kF32).dy.Values()));
}

TEST(DelayedTest, AnEvaluationMeasuresNothing) {
  Delayed layer;
  Layer first = Random(kF32), large = Scaled(Random(kF32), 9, 9, 9);
  layer.StepAlone(&first);
  ThreadPool pool(1);
  Arena saved({}, 1 << 20, "saved", nullptr), scratch({}, 1 << 20, "scratch", nullptr);
  LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, nullptr};
  ctx.training = false;
  LinearProducts::Saved kept;
  layer.history.StartStep(ctx.stream);
  layer.products.Forward(ctx, large.x, large.w, large.bias, large.y, &kept);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(layer.history.layer(0).seen_3.data<float>()[i], 0);
}

TEST(DelayedTest, RanksComputeWhatOneRankComputes) {
  Delayed alone;
  Layer first = Random(kF32), whole = Scaled(Random(kF32), 3, 0.4, 0.01);
  const Layer before[] = {Random(kF32), Scaled(Random(kF32), 3, 0.4, 0.01)};
  alone.StepAlone(&first);
  alone.StepAlone(&whole);
  for (Cut cut : {Cut::kInput, Cut::kOutput}) {
    const bool out = cut == Cut::kOutput;
    ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                  Delayed layer(cut);
                  Layer part(kTokens, out ? kIn : kIn / 2, out ? kOut / 2 : kOut, kF32);
                  for (const Layer& step : before) {
                    Move(step.x, &part.x, false, !out, rank);
                    Move(step.w, &part.w, out, !out, rank);
                    Move(step.bias, &part.bias, false, out, rank);
                    Move(step.dy, &part.dy, false, out, rank);
                    Move(step.dw, &part.dw, out, !out, rank);
                    layer.Step(world, ProcessGroup(), &part);
                  }
                  ExpectPart(out ? whole.y : whole.dx, out ? &part.y : &part.dx, false, true, rank);
                  ExpectPart(whole.dw, &part.dw, out, !out, rank);
                  return world.status();
                }).ok());
  }
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                Delayed layer;
                Layer part(kTokens / 2, kIn, kOut, kF32);
                for (const Layer& step : before) {
                  Move(step.x, &part.x, true, false, rank);
                  Move(step.w, &part.w, false, false, rank);
                  Move(step.bias, &part.bias, false, false, rank);
                  Move(step.dy, &part.dy, true, false, rank);
                  layer.Step(ProcessGroup(), world, &part);
                }
                ExpectPart(whole.y, &part.y, true, false, rank);
                ExpectPart(whole.dx, &part.dx, true, false, rank);
                return world.status();
              }).ok());
}

}  // namespace
}  // namespace megatron
