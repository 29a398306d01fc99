#include "megatron/optim/float8_gather.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/float8/flat.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/ops/float8/quantize_blocks.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ops::HostTensor;

// Returns the codes of the tensor by its own largest magnitude, as a product's operand has them.
std::vector<char> CodesOf(const Tensor& x, const Stream& stream) {
  const HostTensor amax({1}, DType::kFloat32), codes({x.numel()}, DType::kUInt8);
  ops::AbsMax(stream, x.Flatten(), amax);
  ops::EncodeFloat8(stream, x.Flatten(), amax, codes);
  return codes.Bytes();
}
std::vector<char> BytesOf(const Tensor& x) {
  std::vector<char> bytes(static_cast<size_t>(x.numel() * SizeOf(x.dtype())));
  std::memcpy(bytes.data(), x.raw(), bytes.size());
  return bytes;
}

// Weights that shards cut, with a bias between them that is sent as it is.
TEST(Float8GatherTest, ReceiversGetTheCodesOfTheOwnersWeights) {
  for (int ranks : {2, 3}) {
    for (const DataSharding sharding : {DataSharding::kStates, DataSharding::kWeights}) {
      ASSERT_TRUE(RunRanks(ranks, [&](int rank, const ProcessGroup& world) {
                    ThreadPool pool(1);
                    const Stream stream = Stream::Cpu(&pool);
                    TestModel whole({}, DType::kBFloat16), cut({}, DType::kBFloat16);
                    for (TestModel* model : {&whole, &cut}) {
                      model->Add("a.weight", Replicated({48, 16}));
                      model->Add("a.bias", Replicated({50}));
                      model->Add("b.weight", Replicated({7, 32}));
                    }
                    cut.buffer_options.sharding = sharding;
                    cut.buffer_options.data = {world.size(), rank};
                    for (TestModel* model : {&whole, &cut}) {
                      model->Build();
                      model->buffers->InitializeWeights(5, stream);
                    }
                    Float8Gather gather({{"a.weight", "b.weight", "of another stage"}, nullptr},
                                        cut.buffers.get(), nullptr);
                    EXPECT_FALSE(gather.measured());
                    gather.Measure(ProcessGroup(), world, ProcessGroup(), stream);
                    EXPECT_TRUE(gather.measured());
                    EXPECT_EQ(gather.Largest().size(), 2u);
                    const Bucket& bucket = cut.buffers->buckets()[0];
                    const HostTensor gathered({bucket.range.size()}, DType::kBFloat16);
                    gather.Gather(bucket, gathered, world, stream);
                    const Bucket& all = whole.buffers->buckets()[0];
                    for (size_t i = 0; i < 3; ++i) {
                      const FlatParameter& to = cut.buffers->parameters()[i];
                      const FlatParameter& from = whole.buffers->parameters()[i];
                      const Tensor got = gathered.tensor().Slice(0, to.range.begin, to.range.end),
                                   want = whole.buffers->Weights(all, from.range);
                      EXPECT_EQ(CodesOf(got, stream), CodesOf(want, stream));
                      const FlatRange mine = Common(to.range, bucket.shard);
                      const bool exact =
                          to.parameter->name == "a.bias" || mine.size() == to.range.size();
                      EXPECT_EQ(BytesOf(got) == BytesOf(want), exact) << to.parameter->name;
                    }
                    return world.status();
                  }).ok());
    }
  }
}

// What products read of a weight whose blocks have scales.
std::vector<std::vector<char>> BlocksOf(const Tensor& x, int64_t rows, int64_t columns,
                                        bool power_of_two, const Stream& stream) {
  constexpr Float8Scaling kBlocks = Float8Scaling::kBlocks;
  constexpr Float8Format kE4M3 = Float8Format::kE4M3;
  const int64_t padded = ops::Float8Padded(rows);
  const HostTensor codes({rows, columns}, DType::kUInt8),
      transposed({columns, padded}, DType::kUInt8),
      scales(ops::Float8ScalesShape(kBlocks, rows, columns), DType::kFloat32),
      transposed_scales(ops::Float8ScalesShape(kBlocks, columns, padded), DType::kFloat32);
  ops::QuantizeBlocks(stream, x.View({rows, columns}), power_of_two,
                      {kE4M3, codes, scales, kBlocks},
                      {kE4M3, transposed, transposed_scales, kBlocks});
  return {codes.Bytes(), transposed.Bytes(), scales.Bytes(), transposed_scales.Bytes()};
}

// Shards cut blocks.
TEST(Float8GatherTest, ReceiversGetTheBlocksOfTheOwnersWeights) {
  for (int ranks : {2, 3}) {
    for (const bool power_of_two : {false, true}) {
      ASSERT_TRUE(
          RunRanks(ranks, [&](int rank, const ProcessGroup& world) {
            ThreadPool pool(1);
            const Stream stream = Stream::Cpu(&pool);
            TestModel whole({}, DType::kBFloat16), cut({}, DType::kBFloat16);
            for (TestModel* model : {&whole, &cut}) {
              model->Add("a.weight", Replicated({300, 144}));
              model->Add("a.bias", Replicated({50}));
              model->Add("b.weight", Replicated({2, 70, 272}));
            }
            cut.buffer_options.sharding = DataSharding::kStates;
            cut.buffer_options.data = {world.size(), rank};
            for (TestModel* model : {&whole, &cut}) {
              model->Build();
              model->buffers->InitializeWeights(5, stream);
            }
            Float8Weights weights = {{"a.weight", "b.weight"}, nullptr};
            weights.scaling = Float8Scaling::kBlocks;
            weights.power_of_two = power_of_two;
            Float8Gather gather(weights, cut.buffers.get(), nullptr);
            gather.Measure(ProcessGroup(), world, ProcessGroup(), stream);
            EXPECT_TRUE(gather.Largest().empty());
            const Bucket& bucket = cut.buffers->buckets()[0];
            EXPECT_EQ(gather.BytesOf(bucket),
                      Float8Gather({{"a.weight", "b.weight"}, nullptr}, cut.buffers.get(), nullptr)
                          .BytesOf(bucket));
            const HostTensor gathered({bucket.range.size()}, DType::kBFloat16);
            gather.Gather(bucket, gathered, world, stream);
            const Bucket& all = whole.buffers->buckets()[0];
            for (size_t i = 0; i < 3; ++i) {
              const FlatParameter& to = cut.buffers->parameters()[i];
              const FlatParameter& from = whole.buffers->parameters()[i];
              const Tensor got = gathered.tensor().Slice(0, to.range.begin, to.range.end),
                           want = whole.buffers->Weights(all, from.range);
              const bool has_codes = to.parameter->name != "a.bias";
              const FlatRange mine = Common(to.range, bucket.shard);
              EXPECT_EQ(BytesOf(got) == BytesOf(want), !has_codes || mine.size() == to.range.size())
                  << to.parameter->name;
              if (!has_codes) continue;
              const int64_t columns = to.parameter->name == "a.weight" ? 144 : 272;
              const int64_t rows = got.numel() / columns;
              EXPECT_TRUE(BlocksOf(got, rows, columns, power_of_two, stream) ==
                          BlocksOf(want, rows, columns, power_of_two, stream))
                  << to.parameter->name;
            }
            return world.status();
          }).ok());
    }
  }
}

// Shards cut experts.
TEST(Float8GatherTest, EachExpertHasScalesOfItsOwn) {
  constexpr int64_t kExperts = 4, kRows = 140, kColumns = 48, kSize = kRows * kColumns;
  for (const Float8Scaling scaling : {Float8Scaling::kTensor, Float8Scaling::kBlocks}) {
    ASSERT_TRUE(RunRanks(3, [&](int rank, const ProcessGroup& world) {
                  ThreadPool pool(1);
                  const Stream stream = Stream::Cpu(&pool);
                  TestModel whole({}, DType::kBFloat16), cut({}, DType::kBFloat16);
                  for (TestModel* model : {&whole, &cut}) {
                    model->Add("dense.weight", Replicated({48, 16}));
                    Sharding experts = Replicated({kExperts, kRows, kColumns});
                    experts.expert_grid = true;
                    model->Add("experts.weight", experts);
                  }
                  cut.buffer_options.sharding = DataSharding::kStates;
                  cut.buffer_options.data = cut.buffer_options.expert_data = {world.size(), rank};
                  for (TestModel* model : {&whole, &cut}) {
                    model->Build();
                    model->buffers->InitializeWeights(5, stream);
                  }
                  Float8Weights weights = {{"dense.weight", "experts.weight"}, nullptr};
                  weights.scaling = scaling;
                  Float8Gather gather(weights, cut.buffers.get(), nullptr);
                  gather.Measure(ProcessGroup(), world, world, stream);
                  const FlatParameter& to = cut.buffers->parameters()[1];
                  const FlatParameter& from = whole.buffers->parameters()[1];
                  EXPECT_EQ(to.parameter->name, "experts.weight");
                  const Bucket& bucket = cut.buffers->bucket_of(to);
                  EXPECT_LT(gather.BytesOf(bucket), bucket.shard.size() * 3 / 2);
                  const HostTensor gathered({bucket.range.size()}, DType::kBFloat16);
                  gather.Gather(bucket, gathered, world, stream);
                  const Tensor got = gathered.tensor().Slice(0, to.range.begin - bucket.range.begin,
                                                             to.range.end - bucket.range.begin),
                               want = whole.buffers->Weights(whole.buffers->bucket_of(from),
                                                             from.range);
                  EXPECT_NE(BytesOf(got), BytesOf(want));
                  for (int64_t begin = 0; begin < kExperts * kSize; begin += kSize) {
                    const Tensor of_got = got.Slice(0, begin, begin + kSize),
                                 of_want = want.Slice(0, begin, begin + kSize);
                    if (scaling == Float8Scaling::kTensor) {
                      EXPECT_EQ(CodesOf(of_got, stream), CodesOf(of_want, stream));
                    } else {
                      EXPECT_TRUE(BlocksOf(of_got, kRows, kColumns, true, stream) ==
                                  BlocksOf(of_want, kRows, kColumns, true, stream));
                    }
                  }
                  if (scaling == Float8Scaling::kTensor) {
                    EXPECT_EQ(gather.Largest().at("dense.weight").size(), 1u);
                    EXPECT_EQ(gather.Largest().at("experts.weight").size(), size_t{kExperts});
                  }
                  return world.status();
                }).ok());
  }
}

TEST(Float8GatherTest, AMessageHasOneByteForEachElementOfAWeight) {
  TestModel model({}, DType::kBFloat16);
  model.Add("a.weight", Replicated({64, 64}));
  model.Add("a.bias", Replicated({64}));
  model.buffer_options.sharding = DataSharding::kStates;
  model.buffer_options.data = {2, 0};
  model.Build();
  const Bucket& bucket = model.buffers->buckets()[0];
  const Float8Gather codes({{"a.weight"}, nullptr}, model.buffers.get(), nullptr),
      none({}, model.buffers.get(), nullptr);
  EXPECT_EQ(none.BytesOf(bucket), 2 * bucket.shard.size());
  EXPECT_LT(codes.BytesOf(bucket), bucket.shard.size() + 2 * 128);
}

}  // namespace
}  // namespace megatron
