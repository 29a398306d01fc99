#include "megatron/layers/context_slice.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

MicroBatch Slice(const MicroBatch& whole, const ContextShard& shard, const Buffer& memory) {
  const MicroBatch slice = PlaceContextSlice(whole, shard, memory, 0);
  FillContextSlice(whole, shard, slice);
  return slice;
}

std::vector<int32_t> Values(const Tensor& x) {
  return std::vector<int32_t>(x.data<int32_t>(), x.data<int32_t>() + x.numel());
}

// A micro-batch whose tokens are their numbers, in sequences of these lengths.
class Whole {
 public:
  Whole(int64_t sample_length, const std::vector<int32_t>& lengths) : cu_seqlens_(1, 0) {
    for (int32_t length : lengths) cu_seqlens_.push_back(cu_seqlens_.back() + length);
    const int64_t tokens = cu_seqlens_.back();
    tokens_.resize(tokens);
    std::iota(tokens_.begin(), tokens_.end(), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      samples_.push_back(100 + t / sample_length);
      positions_.push_back(static_cast<int32_t>(t % sample_length));
      weights_.push_back(0.5f * static_cast<float>(t));
    }
    const Shape shape{tokens};
    batch.tokens_T = Tensor(tokens_.data(), DType::kInt32, shape);
    batch.labels_T = Tensor(tokens_.data(), DType::kInt32, shape);
    batch.position_T = Tensor(positions_.data(), DType::kInt32, shape);
    batch.sample_position_T = Tensor(positions_.data(), DType::kInt32, shape);
    batch.sample_T = Tensor(samples_.data(), DType::kInt64, shape);
    batch.loss_weight_T = Tensor(weights_.data(), DType::kFloat32, shape);
    batch.gradient_weight_T = Tensor(weights_.data(), DType::kFloat32, shape);
    batch.cu_seqlens =
        Tensor(cu_seqlens_.data(), DType::kInt32, {static_cast<int64_t>(cu_seqlens_.size())});
  }

  MicroBatch batch;

 private:
  std::vector<int32_t> tokens_, positions_, cu_seqlens_;
  std::vector<int64_t> samples_;
  std::vector<float> weights_;
};

TEST(ContextSliceTest, ARankHoldsAChunkFromEachEndOfEverySample) {
  const Whole whole(16, {16, 16});
  const Buffer memory({}, ContextSliceBytes({32}, {2}), "slice", nullptr);
  const MicroBatch first = Slice(whole.batch, {2, 0, 16}, memory);
  EXPECT_EQ(Values(first.tokens_T), (std::vector<int32_t>{0, 1, 2, 3, 12, 13, 14, 15,  //
                                                          16, 17, 18, 19, 28, 29, 30, 31}));
  EXPECT_EQ(Values(first.sample_position_T),
            (std::vector<int32_t>{0, 1, 2, 3, 12, 13, 14, 15, 0, 1, 2, 3, 12, 13, 14, 15}));
  EXPECT_EQ(first.sample_T.data<int64_t>()[8], 101);
  EXPECT_EQ(first.gradient_weight_T.data<float>()[4], 6);
  EXPECT_EQ(first.num_tokens(), 16);
  EXPECT_EQ(first.context.sample_T.numel(), 16);
  EXPECT_EQ(Values(first.cu_seqlens), (std::vector<int32_t>{0, 16, 32}));
  const Buffer other({}, ContextSliceBytes({32}, {2}), "slice", nullptr);
  const MicroBatch second = Slice(whole.batch, {2, 1, 16}, other);
  EXPECT_EQ(Values(second.tokens_T), (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11,  //
                                                           20, 21, 22, 23, 24, 25, 26, 27}));
}

TEST(ContextSliceTest, EveryRankKnowsWhereSequencesLieOnAllRanks) {
  // Chunks of 2 tokens: rank 0 has tokens 0 1 6 7, rank 1 has 2 3 4 5. The document of token 5 ends
  // there, that of tokens 6 and 7 is on rank 0 alone.
  const Whole whole(8, {1, 4, 1, 2});
  const Buffer memory({}, ContextSliceBytes({8}, {2}), "slice", nullptr);
  for (int rank : {0, 1}) {
    const ContextBatch context = Slice(whole.batch, {2, rank, 8}, memory).context;
    EXPECT_EQ(Values(context.cu_seqlens.Select(0, 0)), (std::vector<int32_t>{0, 1, 2, 2, 4}));
    EXPECT_EQ(Values(context.cu_seqlens.Select(0, 1)), (std::vector<int32_t>{0, 0, 3, 4, 4}));
    EXPECT_EQ(Values(context.place_CT.Select(0, 0)), (std::vector<int32_t>{0, 0, 0, 1}));
    EXPECT_EQ(Values(context.place_CT.Select(0, 1)), (std::vector<int32_t>{1, 2, 3, 0}));
  }
}

// Two teams of two ranks, of 16 tokens in chunks of 2.
TEST(ContextSliceTest, ATeamsRanksTogetherHoldWhatOneOfFewerRanksWould) {
  const Whole whole(16, {3, 13});
  const ContextShard shard = {4, 2, 16, /*team_size=*/2};
  const Buffer memory({}, ContextSliceBytes({16}, shard), "slice", nullptr);
  const MicroBatch mine = Slice(whole.batch, shard, memory);
  EXPECT_EQ(Values(mine.tokens_T), (std::vector<int32_t>{4, 5, 10, 11}));
  EXPECT_EQ(Values(mine.context.sample_position_T),
            (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(mine.context.sample_T.data<int64_t>()[7], 100);
  const Buffer other({}, ContextSliceBytes({16}, {2}), "slice", nullptr);
  const ContextBatch of_two = Slice(whole.batch, {2, 1, 16}, other).context;
  EXPECT_EQ(Values(mine.context.cu_seqlens), Values(of_two.cu_seqlens));
  EXPECT_EQ(Values(mine.context.place_CT), Values(of_two.place_CT));
}

TEST(ContextSliceTest, ATeamOfAllRanksHasAllTokens) {
  const Whole whole(16, {3, 13});
  const ContextShard shard = {4, 2, 16, /*team_size=*/4};
  const Buffer memory({}, ContextSliceBytes({16}, shard), "slice", nullptr);
  const ContextBatch context = Slice(whole.batch, shard, memory).context;
  EXPECT_EQ(context.sample_T.raw(), whole.batch.sample_T.raw());
  EXPECT_EQ(Values(context.cu_seqlens), Values(whole.batch.cu_seqlens));
}

TEST(ContextSliceTest, TheSlicesOfAllRanksAreTheWhole) {
  for (int size : {2, 4}) {
    const Whole whole(16, {5, 11, 1, 1, 14});
    std::vector<int> seen(32);
    for (int rank = 0; rank < size; ++rank) {
      const Buffer memory({}, ContextSliceBytes({32}, {size}), "slice", nullptr);
      for (int32_t token : Values(Slice(whole.batch, {size, rank, 16}, memory).tokens_T))
        ++seen[token];
    }
    EXPECT_EQ(seen, std::vector<int>(32, 1));
  }
}

TEST(ContextSliceTest, OnMetaASliceHasTheSameShapes) {
  const Whole whole(16, {16, 16});
  const Buffer real({}, ContextSliceBytes({32}, {4}), "slice", nullptr);
  const Device meta = {DeviceType::kMeta};
  const Buffer none(meta, ContextSliceBytes({32}, {4}), "slice", nullptr);
  const MicroBatch a = Slice(whole.batch, {4, 1, 16}, real),
                   b = PlaceContextSlice(whole.batch, {4, 1, 16}, none, 0);
  EXPECT_EQ(a.tokens_T.shape(), b.tokens_T.shape());
  EXPECT_EQ(a.context.cu_seqlens.shape(), b.context.cu_seqlens.shape());
  EXPECT_EQ(a.context.place_CT.shape(), b.context.place_CT.shape());
}

// Counts the (query, key) pairs that a mask leaves of rank's queries and source's keys.
int64_t VisiblePairs(const ContextBatch& context, int rank, int source, bool causal = true) {
  int64_t pairs = 0;
  for (int64_t s = 0; s + 1 < context.cu_seqlens.dim(1); ++s) {
    const auto begin = [&](int r) { return Values(context.cu_seqlens.Select(0, r))[s]; };
    const auto end = [&](int r) { return Values(context.cu_seqlens.Select(0, r))[s + 1]; };
    const std::vector<int32_t> q = Values(context.place_CT.Select(0, rank)),
                               k = Values(context.place_CT.Select(0, source));
    for (int32_t i = begin(rank); i < end(rank); ++i) {
      for (int32_t j = begin(source); j < end(source); ++j) pairs += !causal || k[j] <= q[i];
    }
  }
  return pairs;
}

TEST(ContextSliceTest, UnderACausalMaskEveryRankHasTheSameWorkInEveryStepOfARing) {
  constexpr int kSize = 4;
  constexpr int64_t kTokens = 64, kLocal = kTokens / kSize;
  const Whole whole(kTokens, {kTokens});
  const Buffer memory({}, ContextSliceBytes({kTokens}, {kSize}), "slice", nullptr);
  const ContextBatch context = Slice(whole.batch, {kSize, 0, kTokens}, memory).context;
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(VisiblePairs(context, rank, rank), kLocal * (kLocal + 1) / 2) << rank;
    for (int source = 0; source < kSize; ++source) {
      if (source == rank) continue;
      EXPECT_EQ(VisiblePairs(context, rank, source), kLocal * kLocal / 2) << rank << source;
    }
  }
}

// Samples of any length: 11 and 5 tokens, and as many of each other's kind as there are.
class Labelled : public Whole {
 public:
  Labelled() : Whole(/*sample_length=*/8, {11, 2, 3}) {
    batch.token_type_T = batch.tokens_T;
    batch.sequence_label_S = Tensor(labels_, DType::kInt32, {3});
    batch.sequence_weight_S = Tensor(weights_, DType::kFloat32, {3});
    batch.sequence_gradient_weight_S = Tensor(gradient_weights_, DType::kFloat32, {3});
  }

 private:
  int32_t labels_[3] = {1, 0, 1};
  float weights_[3] = {1, 1, 0}, gradient_weights_[3] = {0.25f, 0.5f, 0};
};

std::vector<float> Floats(const Tensor& x) {
  return std::vector<float>(x.data<float>(), x.data<float>() + x.numel());
}

TEST(ContextSliceTest, SamplesOfAnyLengthAreDealtOutInStripes) {
  const Labelled whole;
  const Buffer memory({}, ContextSliceBytes({16, 3}, {2}), "slice", nullptr),
      other({}, ContextSliceBytes({16, 3}, {2}), "slice", nullptr);
  const MicroBatch first = Slice(whole.batch, {2, 0, 0}, memory),
                   second = Slice(whole.batch, {2, 1, 0}, other);
  EXPECT_EQ(Values(first.tokens_T), (std::vector<int32_t>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(Values(second.token_type_T), (std::vector<int32_t>{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(Values(first.context.cu_seqlens.Select(0, 1)), (std::vector<int32_t>{0, 4, 5, 8}));
  EXPECT_EQ(Values(first.context.place_CT.Select(0, 1)),
            (std::vector<int32_t>{4, 5, 6, 7, 1, 0, 1, 2}));
}

TEST(ContextSliceTest, AnEncodersTokensAreDealtOutByThemselves) {
  Whole whole(/*sample_length=*/8, {5, 3});
  const Whole encoder(/*sample_length=*/8, {6, 10});
  std::vector<int32_t> spans = {-1, 0, 0, 1, -1, 2, 2, 2};
  whole.batch.spans.span_T = Tensor(spans.data(), DType::kInt32, {8});
  whole.batch.encoder.tokens_T = encoder.batch.tokens_T;
  whole.batch.encoder.position_T = encoder.batch.position_T;
  whole.batch.encoder.sample_T = encoder.batch.sample_T;
  whole.batch.encoder.sample_position_T = encoder.batch.sample_position_T;
  whole.batch.encoder.cu_seqlens = encoder.batch.cu_seqlens;
  const ContextSliceSize size = {8, 0, 16};
  const Buffer memory({}, ContextSliceBytes(size, {2}), "slice", nullptr),
      other({}, ContextSliceBytes(size, {2}), "slice", nullptr);
  const MicroBatch first = Slice(whole.batch, {2, 0, 0}, memory),
                   second = Slice(whole.batch, {2, 1, 0}, other);
  EXPECT_EQ(Values(first.tokens_T), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Values(second.spans.span_T), (std::vector<int32_t>{-1, 2, 2, 2}));
  EXPECT_EQ(Values(first.encoder.tokens_T), (std::vector<int32_t>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(Values(second.encoder.position_T), (std::vector<int32_t>{4, 5, 6, 7, 4, 5, 6, 7}));
  EXPECT_EQ(first.encoder.sample_T.data<int64_t>()[4], 101);
  for (const MicroBatch* slice : {&first, &second}) {
    const ContextBatch& context = slice->encoder.context;
    EXPECT_EQ(Values(context.cu_seqlens.Select(0, 0)), (std::vector<int32_t>{0, 4, 8}));
    EXPECT_EQ(Values(context.cu_seqlens.Select(0, 1)), (std::vector<int32_t>{0, 2, 8}));
    EXPECT_EQ(Values(context.place_CT.Select(0, 1)),
              (std::vector<int32_t>{4, 5, 0, 1, 6, 7, 8, 9}));
    EXPECT_EQ(context.sample_T.numel(), 8);
    EXPECT_EQ(Values(slice->context.cu_seqlens.Select(0, 1)), (std::vector<int32_t>{0, 1, 4}));
  }
}

TEST(ContextSliceTest, ATeamsStripesAreAsWideAsThoseOfItsRanksTogether) {
  const Whole whole(1, {11, 20, 1});
  const ContextShard shard = {4, 3, 0, /*team_size=*/2};
  const Buffer memory({}, ContextSliceBytes({32}, shard), "slice", nullptr);
  const MicroBatch mine = Slice(whole.batch, shard, memory);
  EXPECT_EQ(Values(mine.tokens_T), (std::vector<int32_t>{12, 13, 14, 15, 28, 29, 30, 31}));
  std::vector<int64_t> team;
  for (int64_t t = 0; t < mine.context.sample_T.numel(); ++t)
    team.push_back(mine.context.sample_T.data<int64_t>()[t] - 100);
  EXPECT_EQ(team, (std::vector<int64_t>{8, 9, 10, 11, 12, 13, 14, 15,  //
                                        24, 25, 26, 27, 28, 29, 30, 31}));
  EXPECT_EQ(Values(mine.context.cu_seqlens.Select(0, 1)), (std::vector<int32_t>{0, 3, 15, 16}));
}

TEST(ContextSliceTest, ASequencesLabelCountsWhereItsFirstTokenIs) {
  const Labelled whole;
  const Buffer memory({}, ContextSliceBytes({16, 3}, {2}), "slice", nullptr),
      other({}, ContextSliceBytes({16, 3}, {2}), "slice", nullptr);
  const MicroBatch first = Slice(whole.batch, {2, 0, 0}, memory),
                   second = Slice(whole.batch, {2, 1, 0}, other);
  EXPECT_EQ(Values(first.context.first_token_S), (std::vector<int32_t>{0, 7, -1}));
  EXPECT_EQ(Values(second.context.first_token_S), (std::vector<int32_t>{-1, -1, 5}));
  EXPECT_EQ(Floats(first.sequence_weight_S), (std::vector<float>{1, 1, 0}));
  EXPECT_EQ(Floats(first.sequence_gradient_weight_S), (std::vector<float>{0.25f, 0.5f, 0}));
  EXPECT_EQ(Floats(second.sequence_gradient_weight_S), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(Values(second.sequence_label_S), (std::vector<int32_t>{1, 0, 1}));
}

TEST(ContextSliceTest, StripesShareOutEverySequenceEvenlyWithAndWithoutAMask) {
  constexpr int kSize = 4;
  const std::vector<int32_t> lengths = {320, 96, 160, 64};
  const Whole whole(1, lengths);
  const int64_t tokens = whole.batch.num_tokens();
  const Buffer memory({}, ContextSliceBytes({tokens}, {kSize}), "slice", nullptr);
  const ContextBatch context = Slice(whole.batch, {kSize, 0, 0}, memory).context;
  for (bool causal : {false, true}) {
    double pairs = 0;
    for (double length : lengths) pairs += causal ? length * (length + 1) / 2 : length * length;
    for (int rank = 0; rank < kSize; ++rank) {
      int64_t mine = 0;
      for (int source = 0; source < kSize; ++source)
        mine += VisiblePairs(context, rank, source, causal);
      // Under a mask a query of the last rank sees up to three stripes of keys more.
      EXPECT_NEAR(static_cast<double>(mine), pairs / kSize, 0.06 * pairs / kSize) << rank;
    }
  }
}

}  // namespace
}  // namespace megatron
