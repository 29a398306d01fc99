#include "megatron/layers/activation_meter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/layers/attention_core.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

using ops::HostTensor;

struct Memory {
  Memory(int64_t layers, int64_t passes)
      : rows({layers}, DType::kInt64),
        squares({layers, 2}, DType::kFloat32),
        largest({layers, passes}, DType::kFloat32),
        scores({layers, passes}, DType::kFloat32) {}
  ActivationMeter::Sums sums() const { return {rows, squares, largest, scores}; }
  HostTensor rows, squares, largest, scores;
};

TEST(ActivationMeterTest, AddsOutputsOfAnyTypeAndSize) {
  ThreadPool pool(2);
  const Stream stream = Stream::Cpu(&pool);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    // Some outputs are converted in two parts, or have more rows than are counted at once.
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 3}, {700, 500}, {20000, 2}}) {
      const Memory memory(2, 3);
      ActivationMeter meter(memory.sums(), /*adds=*/true, nullptr);
      const HostTensor a = HostTensor::Normal({rows, width}, dtype, 1);
      const HostTensor b = HostTensor::Normal({rows, width}, dtype, 2);
      meter.StartStep(stream);
      meter.AddOutput(stream, 1, a);
      meter.AddOutput(stream, 1, b);
      double squares = 0, largest_a = 0, largest_b = 0;
      for (const double x : a.Values()) {
        squares += x * x;
        largest_a = std::max(largest_a, std::abs(x));
      }
      for (const double x : b.Values()) {
        squares += x * x;
        largest_b = std::max(largest_b, std::abs(x));
      }
      EXPECT_NEAR(memory.squares.Get(2), squares, 1e-5 * squares);
      EXPECT_EQ(memory.largest.Values(), (std::vector<double>{0, 0, 0, largest_a, largest_b, 0}));
      EXPECT_EQ(memory.rows.Values(), (std::vector<double>{0, 2.0 * static_cast<double>(rows)}));
    }
  }
}

TEST(ActivationMeterTest, ARankWhoseRowsAnotherOneHasAddsNone) {
  ThreadPool pool(1);
  const Memory memory(1, 1);
  ActivationMeter meter(memory.sums(), /*adds=*/false, nullptr);
  meter.StartStep(Stream::Cpu(&pool));
  meter.AddOutput(Stream::Cpu(&pool), 0, HostTensor::Normal({2, 3}, DType::kFloat32, 1));
  EXPECT_EQ(memory.squares.Get(0), 0);
  EXPECT_EQ(memory.rows.Get(0), 0);
  EXPECT_GT(memory.largest.Get(0), 0);
}

TEST(ActivationMeterTest, ValuesThatAreNotFiniteAreMarked) {
  ThreadPool pool(1);
  const Memory memory(1, 1);
  ActivationMeter meter(memory.sums(), /*adds=*/true, nullptr);
  HostTensor x = HostTensor::Normal({2, 3}, DType::kFloat32, 1);
  x.Set(4, std::nan(""));
  meter.StartStep(Stream::Cpu(&pool));
  meter.AddOutput(Stream::Cpu(&pool), 0, x);
  EXPECT_TRUE(std::isnan(memory.squares.Get(0)));
  EXPECT_EQ(memory.squares.Get(1), 1);
}

TEST(ActivationMeterTest, TheLargestScoreIsSigned) {
  ThreadPool pool(1);
  const Memory memory(1, 2);
  ActivationMeter meter(memory.sums(), /*adds=*/true, nullptr);
  const HostTensor lse =
      HostTensor::Of({3, 1, 1}, DType::kFloat32, {-9, 4, -std::numeric_limits<double>::infinity()});
  meter.StartStep(Stream::Cpu(&pool));
  meter.AddScores(Stream::Cpu(&pool), 0, lse);
  EXPECT_EQ(memory.scores.Values(), (std::vector<double>{4, 0}));
}

// Two packed sequences, of which the second's keys have the largest products with the first's
// queries.
class ScoresTest : public testing::Test {
 protected:
  static constexpr int64_t kTokens = 14, kGroups = 2, kHeads = 2, kSize = 8, kReach = 3;

  // Computes the largest score that a query sees.
  double Largest(const AttentionCoreOptions& options, bool with_bias) const {
    double largest = -1e9;
    for (int64_t i = 0; i < kTokens; ++i) {
      const int64_t begin = i < 5 ? 0 : 5, end = i < 5 ? 5 : kTokens;
      for (int64_t j = begin; j < (options.causal ? i + 1 : end); ++j) {
        for (int64_t head = 0; head < kGroups * kHeads; ++head) {
          double score = 0;
          for (int64_t d = 0; d < kSize; ++d) {
            score += q_.Get((i * kGroups * kHeads + head) * kSize + d) *
                     k_.Get((j * kGroups + head / kHeads) * kSize + d);
          }
          score *= options.scale;
          const int64_t row = std::clamp<int64_t>(j - i + kReach, 0, 2 * kReach);
          if (with_bias) score += bias_.Get(row * kGroups * kHeads + head);
          largest = std::max(largest, score);
        }
      }
    }
    return largest;
  }

  const HostTensor q_ = HostTensor::Normal({kTokens, kGroups, kHeads, kSize}, DType::kFloat32, 1);
  const HostTensor k_ = HostTensor::Normal({kTokens, kGroups, kSize}, DType::kFloat32, 2);
  const HostTensor v_ = HostTensor::Normal({kTokens, kGroups, kSize}, DType::kFloat32, 3);
  const HostTensor bias_ =
      HostTensor::Normal({2 * kReach + 1, kGroups* kHeads}, DType::kFloat32, 4);
};

TEST_F(ScoresTest, AreThoseOfTheKeysThatAQuerySees) {
  ThreadPool pool(1);
  const HostTensor cu_seqlens = HostTensor::Of({3}, DType::kInt32, {0, 5, kTokens});
  const HostTensor position({kTokens}, DType::kInt32), sample({kTokens}, DType::kInt64);
  MicroBatch batch;
  batch.tokens_T = batch.sample_position_T = position;
  batch.sample_T = sample;
  batch.cu_seqlens = cu_seqlens;
  batch.max_seqlen = kTokens - 5;
  Arena scratch({}, 1 << 20, "scratch", nullptr);
  for (const bool causal : {false, true}) {
    for (const float scale : {0.35f, 6.0f}) {
      for (const bool with_bias : {false, true}) {
        AttentionCoreOptions options;
        options.head_size = kSize;
        options.causal = causal;
        options.scale = scale;
        options.dropout = 0.5f;
        const Memory memory(1, 1);
        ActivationMeter meter(memory.sums(), /*adds=*/true, nullptr);
        meter.StartStep(Stream::Cpu(&pool));
        LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool)};
        ctx.saved = ctx.scratch = &scratch;
        ctx.batch = &batch;
        ctx.activations = &meter;
        AttentionCore(options).MeasureScores(ctx,
                                             {q_, k_, v_, with_bias ? bias_.tensor() : Tensor()});
        EXPECT_NEAR(memory.scores.Get(0) / ActivationMeter::kSharpness, Largest(options, with_bias),
                    0.003);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
