#include "megatron/optim/compression/gradient_compressor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/compression/group_codes.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ops::HostTensor;
using Floats = std::vector<float>;

constexpr CompressionType kAll[] = {CompressionType::kInt8, CompressionType::kTopK,
                                    CompressionType::kThreshold, CompressionType::kPowerSgd};
// A matrix with other elements before and behind it; a multiple of 2, 3 and 4 ranks.
constexpr int64_t kBefore = 60, kRows = 40, kColumns = 36, kElements = 1560;

CompressedSpan SpanOf(int ranks, bool everywhere = true) {
  return {kElements, ranks, everywhere, {{kBefore, kRows, kColumns}}};
}

Floats GradientsOf(int rank, int step) {
  const HostTensor x = HostTensor::Normal({kElements}, DType::kFloat32, 100 * step + rank);
  return {x.tensor().data<float>(), x.tensor().data<float>() + kElements};
}

// What a run of a rank gives: the sums of all steps, and the errors behind them.
struct Outcome {
  std::vector<Floats> sums;
  std::vector<int64_t> sent;
  Floats error, shard_error;
};

Floats StateOf(const GradientCompressor& compressor, const std::string& name) {
  for (const GradientCompressor::Named& state : compressor.states()) {
    if (state.name == name)
      return {state.tensor.data<float>(), state.tensor.data<float>() + state.tensor.numel()};
  }
  return {};
}

std::vector<Outcome> SumOverRanks(const GradientCompressionOptions& options,
                                  const CompressedSpan& span, int steps,
                                  const std::function<Floats(int rank, int step)>& gradients) {
  std::vector<Outcome> outcomes(span.ranks);
  EXPECT_THAT(
      RunRanks(span.ranks,
               [&](int rank, const ProcessGroup& world) {
                 ThreadPool pool(2);
                 const Stream stream = Stream::Cpu(&pool);
                 const GradientCompressor compressor(options, {span}, Device(), nullptr);
                 for (int step = 0; step < steps; ++step) {
                   Floats values = gradients(rank, step);
                   outcomes[rank].sent.push_back(compressor.Sum(
                       0, Tensor(values.data(), DType::kFloat32, {span.elements}), world, stream));
                   outcomes[rank].sums.push_back(std::move(values));
                 }
                 outcomes[rank].error = StateOf(compressor, "gradient_error");
                 outcomes[rank].shard_error = StateOf(compressor, "gradient_sum_error");
                 return world.status();
               }),
      IsOk());
  return outcomes;
}

double Norm(const Floats& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

// Fails the test unless nothing was lost: the sums of all steps and the errors that are left add up
// to all gradients.
void ExpectThatNothingIsLost(const GradientCompressionOptions& options, int ranks) {
  constexpr int kSteps = 6;
  const auto outcomes = SumOverRanks(options, SpanOf(ranks), kSteps, GradientsOf);
  std::vector<double> all(kElements, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int step = 0; step < kSteps; ++step) {
      const Floats gradients = GradientsOf(rank, step);
      for (int64_t i = 0; i < kElements; ++i) all[i] += gradients[i];
    }
  }
  double worst = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    double difference = -all[i];
    for (const Outcome& outcome : outcomes)
      difference += outcome.error.empty() ? 0 : outcome.error[i];
    for (int step = 0; step < kSteps; ++step) difference += outcomes[0].sums[step][i];
    if (options.type == CompressionType::kInt8 && options.error_feedback) {
      const int64_t shard = kElements / ranks;
      difference += outcomes[i / shard].shard_error[i % shard];
    }
    worst = std::max(worst, std::abs(difference));
  }
  EXPECT_LT(worst, 2e-5);
}

TEST(GradientCompressorTest, SumsAndErrorsAddUpToAllGradients) {
  for (const CompressionType type : kAll) {
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(type) << " on " << ranks);
      GradientCompressionOptions options;
      options.type = type;
      ExpectThatNothingIsLost(options, ranks);
    }
  }
}

// What the test above is for: without errors it fails.
TEST(GradientCompressorTest, AForgottenErrorIsSeen) {
  for (const CompressionType type : kAll) {
    GradientCompressionOptions options;
    options.type = type;
    options.error_feedback = false;
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
      ExpectThatNothingIsLost(options, /*ranks=*/3);
    }
    EXPECT_EQ(failures.size(), 1) << static_cast<int>(type);
  }
}

TEST(GradientCompressorTest, AllRanksGetTheSameBits) {
  for (const CompressionType type : kAll) {
    GradientCompressionOptions options;
    options.type = type;
    options.rank = 3;
    const auto outcomes = SumOverRanks(options, SpanOf(3), 3, GradientsOf);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.sums, outcomes[0].sums);
  }
}

// What a receiver gets of codes of 8 bits, by the definition in ops/compression/group_codes.h.
Floats Received(const Floats& x) {
  constexpr size_t kGroup = ops::GroupSize(ops::CodeBits::k8);
  Floats received;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto first = x.begin() + static_cast<int64_t>(i / kGroup * kGroup);
    const auto last =
        x.begin() + static_cast<int64_t>(std::min(x.size(), (i / kGroup + 1) * kGroup));
    float largest = 0;
    for (auto at = first; at != last; ++at) largest = std::max(largest, std::abs(*at));
    const float scale = largest / 127;
    received.push_back(std::nearbyint(x[i] / scale) * scale);
  }
  return received;
}

// A plain program for codes of 8 bits, bit for bit.
TEST(GradientCompressorTest, CodesAreThoseOfAPlainProgram) {
  constexpr int kSteps = 3;
  for (const int ranks : {2, 3}) {
    for (const bool everywhere : {false, true}) {
      for (const bool feedback : {false, true}) {
        GradientCompressionOptions options;
        options.type = CompressionType::kInt8;
        options.error_feedback = feedback;
        const auto outcomes = SumOverRanks(options, SpanOf(ranks, everywhere), kSteps, GradientsOf);
        const int64_t shard = kElements / ranks;
        std::vector<Floats> errors(ranks, Floats(kElements, 0)),
            shard_errors(ranks, Floats(shard, 0));
        for (int step = 0; step < kSteps; ++step) {
          std::vector<Floats> sums(ranks, Floats(shard, 0));
          for (int rank = 0; rank < ranks; ++rank) {
            for (int to = 0; to < ranks; ++to) {
              Floats summands = GradientsOf(rank, step);
              summands.assign(summands.begin() + to * shard, summands.begin() + (to + 1) * shard);
              for (int64_t i = 0; i < shard && feedback; ++i)
                summands[i] += errors[rank][to * shard + i];
              const Floats received = Received(summands);
              for (int64_t i = 0; i < shard; ++i) {
                errors[rank][to * shard + i] = -received[i] + summands[i];
                sums[to][i] = rank == 0 ? received[i] : sums[to][i] + received[i];
              }
            }
          }
          for (int to = 0; to < ranks; ++to) {
            if (everywhere) {
              for (int64_t i = 0; i < shard && feedback; ++i) sums[to][i] += shard_errors[to][i];
              const Floats received = Received(sums[to]);
              for (int64_t i = 0; i < shard; ++i) shard_errors[to][i] = -received[i] + sums[to][i];
              sums[to] = received;
            }
            const Floats& got = outcomes[to].sums[step];
            EXPECT_EQ(Floats(got.begin() + to * shard, got.begin() + (to + 1) * shard), sums[to])
                << ranks << " ranks, step " << step << ", shard " << to;
          }
        }
      }
    }
  }
}

// A plain program for topk and threshold, bit for bit: each rank takes out its largest elements,
// and how many those are is `taken(magnitudes, which descend)`.
void ExpectSumsOfLargest(const GradientCompressionOptions& options,
                         const std::function<size_t(const Floats&)>& taken) {
  constexpr int kRanks = 3, kSteps = 3;
  const auto outcomes = SumOverRanks(options, SpanOf(kRanks), kSteps, GradientsOf);
  std::vector<Floats> errors(kRanks, Floats(kElements, 0));
  for (int step = 0; step < kSteps; ++step) {
    Floats sum(kElements, 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      Floats& error = errors[rank];
      const Floats gradients = GradientsOf(rank, step);
      for (int64_t i = 0; i < kElements; ++i) error[i] += gradients[i];
      std::vector<int64_t> order(kElements);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return std::abs(error[a]) > std::abs(error[b]);
      });
      Floats magnitudes;
      for (const int64_t i : order) magnitudes.push_back(std::abs(error[i]));
      const size_t count = taken(magnitudes);
      EXPECT_EQ(outcomes[rank].sent[step], static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i) {
        sum[order[i]] += error[order[i]];
        error[order[i]] = 0;
      }
    }
    EXPECT_EQ(outcomes[0].sums[step], sum) << step;
  }
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(outcomes[rank].error, errors[rank]);
}

TEST(GradientCompressorTest, TheLargestElementsAreThoseOfAPlainProgram) {
  GradientCompressionOptions options;
  options.type = CompressionType::kTopK;
  options.density = 0.03;
  ExpectSumsOfLargest(options, [&](const Floats&) {
    return static_cast<size_t>(std::ceil(options.density * kElements));
  });
}

// With 3 nothing but outliers is sent in the first step, and with 0.2 more than there is room for.
TEST(GradientCompressorTest, ElementsAboveAThresholdAreThoseOfAPlainProgram) {
  for (const float threshold : {0.2f, 1.8f, 3.0f, 100.0f}) {
    GradientCompressionOptions options;
    options.type = CompressionType::kThreshold;
    options.threshold = threshold;
    options.max_density = 0.3;
    ExpectSumsOfLargest(options, [&](const Floats& magnitudes) {
      const auto above = std::count_if(magnitudes.begin(), magnitudes.end(),
                                       [&](float m) { return m > threshold; });
      return std::min(static_cast<size_t>(above),
                      static_cast<size_t>(std::ceil(options.max_density * kElements)));
    });
  }
}

// Returns gradients whose matrix, summed over ranks, has rank 3 and is the same in each step.
Floats OfRankThree(int rank, int) {
  const HostTensor left = HostTensor::Normal({kRows, 3}, DType::kFloat32, 1 + rank),
                   right = HostTensor::Normal({3, kColumns}, DType::kFloat32, 50);
  Floats values = GradientsOf(rank, 0);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < 3; ++k) sum += left.Get(r * 3 + k) * right.Get(k * kColumns + c);
      values[kBefore + r * kColumns + c] = static_cast<float>(sum);
    }
  }
  return values;
}

TEST(GradientCompressorTest, MatricesOfLowRankAreSummedExactly) {
  constexpr int kRanks = 2;
  Floats exact(kElements, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Floats gradients = OfRankThree(rank, 0);
    for (int64_t i = 0; i < kElements; ++i) exact[i] += gradients[i];
  }
  double before = std::numeric_limits<double>::infinity();
  for (const int rank : {1, 2, 3, 5}) {
    GradientCompressionOptions options;
    options.type = CompressionType::kPowerSgd;
    options.rank = rank;
    options.error_feedback = false;
    const auto outcomes = SumOverRanks(options, SpanOf(kRanks), 2, OfRankThree);
    Floats off = outcomes[0].sums[1];
    for (int64_t i = 0; i < kElements; ++i) {
      off[i] -= exact[i];
      const bool in_matrix = i >= kBefore && i < kBefore + kRows * kColumns;
      if (!in_matrix) {
        EXPECT_EQ(off[i], 0) << i;
      }
    }
    if (rank < 3) {
      EXPECT_LT(Norm(off), before);
      EXPECT_GT(Norm(off), 0.1 * Norm(exact));
    } else {
      EXPECT_LT(Norm(off), 1e-5 * Norm(exact));
    }
    before = Norm(off);
  }
}

// An expert that gets no token has such a gradient. A matrix of one row leaves all columns of Q but
// the first one zero.
TEST(GradientCompressorTest, AMatrixThatBeganWithZerosIsSummedExactlyLater) {
  constexpr int kRanks = 2, kSteps = 3;
  Floats exact(kRows * kColumns, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Floats gradients = OfRankThree(rank, 0);
    for (int64_t i = 0; i < kRows * kColumns; ++i) exact[i] += gradients[kBefore + i];
  }
  for (const int64_t rows : {0, 1}) {
    SCOPED_TRACE(rows);
    GradientCompressionOptions options;
    options.type = CompressionType::kPowerSgd;
    options.rank = 3;
    options.error_feedback = false;
    const auto outcomes = SumOverRanks(options, SpanOf(kRanks), kSteps, [&](int rank, int step) {
      Floats gradients = OfRankThree(rank, step);
      const auto begin = gradients.begin() + kBefore;
      if (step == 0) std::fill(begin + rows * kColumns, begin + kRows * kColumns, 0.0f);
      return gradients;
    });
    EXPECT_EQ(outcomes[1].sums, outcomes[0].sums);
    Floats off = exact;
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      off[i] -= outcomes[0].sums[kSteps - 1][kBefore + i];
    EXPECT_LT(Norm(off), 1e-5 * Norm(exact));
  }
}

// A plain program for PowerSGD in double, with feedback, which keeps Q from step to step. Returns
// the sums of all steps, and the ranks' errors behind them.
struct PlainPowerSgd {
  int ranks = 1, rank = 1;
  bool keeps_query = true;
  bool feeds_back = true;

  using Doubles = std::vector<double>;

  // Makes the columns of a matrix [rows, rank] orthonormal, one after the other.
  void Orthonormalize(Doubles* p, int64_t rows) const {
    for (int c = 0; c < rank; ++c) {
      for (int pass = 0; pass < 2; ++pass) {
        for (int before = 0; before < c; ++before) {
          double along = 0;
          for (int64_t r = 0; r < rows; ++r) along += (*p)[r * rank + c] * (*p)[r * rank + before];
          for (int64_t r = 0; r < rows; ++r) (*p)[r * rank + c] -= along * (*p)[r * rank + before];
        }
        double square = 0;
        for (int64_t r = 0; r < rows; ++r) square += (*p)[r * rank + c] * (*p)[r * rank + c];
        for (int64_t r = 0; r < rows; ++r) (*p)[r * rank + c] /= std::sqrt(square);
      }
    }
  }

  // `first_query` is Qᵀ at the start.
  std::vector<Doubles> Run(const Floats& first_query, int steps,
                           std::vector<Doubles>* errors) const {
    errors->assign(ranks, Doubles(kElements, 0));
    const Doubles start(first_query.begin(), first_query.end());
    Doubles query = start;
    std::vector<Doubles> sums;
    for (int step = 0; step < steps; ++step) {
      if (!keeps_query) query = start;
      std::vector<Doubles> summands(ranks);
      Doubles sum(kElements, 0);
      for (int i = 0; i < ranks; ++i) {
        const Floats gradients = GradientsOf(i, step);
        summands[i].assign(gradients.begin(), gradients.end());
        for (int64_t k = 0; k < kElements && feeds_back; ++k) summands[i][k] += (*errors)[i][k];
        for (int64_t k = 0; k < kElements; ++k) sum[k] += summands[i][k];
      }
      const auto at = [](int64_t r, int64_t c) { return kBefore + r * kColumns + c; };
      Doubles p(kRows * rank, 0), next(rank * kColumns, 0);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int k = 0; k < rank; ++k) {
          for (int64_t c = 0; c < kColumns; ++c)
            p[r * rank + k] += sum[at(r, c)] * query[k * kColumns + c];
        }
      }
      Orthonormalize(&p, kRows);
      for (int k = 0; k < rank; ++k) {
        for (int64_t c = 0; c < kColumns; ++c) {
          for (int64_t r = 0; r < kRows; ++r)
            next[k * kColumns + c] += sum[at(r, c)] * p[r * rank + k];
        }
      }
      query = next;
      // What is outside of the matrix is summed as it is.
      for (Doubles& error : *errors) error.assign(kElements, 0);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < kColumns; ++c) {
          double product = 0;
          for (int k = 0; k < rank; ++k) product += p[r * rank + k] * query[k * kColumns + c];
          sum[at(r, c)] = product;
          for (int i = 0; i < ranks; ++i)
            (*errors)[i][at(r, c)] = summands[i][at(r, c)] - product / ranks;
        }
      }
      sums.push_back(sum);
    }
    return sums;
  }
};

Floats FirstQueryOf(const GradientCompressionOptions& options, int ranks) {
  const GradientCompressor compressor(options, {SpanOf(ranks)}, Device(), nullptr);
  return StateOf(compressor, "gradient_queries");
}

// Fails the test unless sums and errors are those of the plain program.
void ExpectSumsOfLowRank(const GradientCompressionOptions& options, PlainPowerSgd plain) {
  constexpr int kSteps = 4;
  plain.rank = options.rank;
  const auto outcomes = SumOverRanks(options, SpanOf(plain.ranks), kSteps, GradientsOf);
  std::vector<std::vector<double>> errors;
  const auto sums = plain.Run(FirstQueryOf(options, plain.ranks), kSteps, &errors);
  double worst = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    for (int step = 0; step < kSteps; ++step)
      worst = std::max(worst, std::abs(outcomes[0].sums[step][i] - sums[step][i]));
    for (int rank = 0; rank < plain.ranks; ++rank)
      worst = std::max(worst, std::abs(outcomes[rank].error[i] - errors[rank][i]));
  }
  EXPECT_LT(worst, 1e-4);
}

TEST(GradientCompressorTest, SumsOfLowRankAreThoseOfAPlainProgram) {
  for (const int ranks : {2, 3}) {
    for (const int rank : {1, 3}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " on " << ranks);
      GradientCompressionOptions options;
      options.type = CompressionType::kPowerSgd;
      options.rank = rank;
      PlainPowerSgd plain;
      plain.ranks = ranks;
      ExpectSumsOfLowRank(options, plain);
    }
  }
}

// What the test above is for: a program that begins each step with the first Q again has other
// sums, and so has one that forgets the errors.
TEST(GradientCompressorTest, ALostWarmStartIsSeen) {
  GradientCompressionOptions options;
  options.type = CompressionType::kPowerSgd;
  options.rank = 3;
  for (const bool keeps_query : {false, true}) {
    PlainPowerSgd plain;
    plain.ranks = 2;
    plain.keeps_query = keeps_query;
    plain.feeds_back = !keeps_query;
    testing::TestPartResultArray failures;
    {
      testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
      ExpectSumsOfLowRank(options, plain);
    }
    EXPECT_EQ(failures.size(), 1) << keeps_query;
  }
}

TEST(GradientCompressorTest, AMatrixThatGainsTooLittleIsSummedAsItIs) {
  GradientCompressionOptions options;
  options.type = CompressionType::kPowerSgd;
  options.rank = 10;  // 76 * 10 * 2 > 40 * 36
  const auto outcomes = SumOverRanks(options, SpanOf(2), 1, GradientsOf);
  const Floats first = GradientsOf(0, 0), second = GradientsOf(1, 0);
  for (int64_t i = 0; i < kElements; ++i) EXPECT_EQ(outcomes[0].sums[0][i], first[i] + second[i]);
}

TEST(GradientCompressorTest, WhatIsNotFiniteArrivesEverywhere) {
  for (const CompressionType type : kAll) {
    GradientCompressionOptions options;
    options.type = type;
    const auto outcomes = SumOverRanks(options, SpanOf(3), 1, [](int rank, int step) {
      Floats gradients = GradientsOf(rank, step);
      if (rank == 1) gradients[kBefore + 5] = std::numeric_limits<float>::quiet_NaN();
      return gradients;
    });
    for (const Outcome& outcome : outcomes)
      EXPECT_FALSE(std::isfinite(outcome.sums[0][kBefore + 5])) << static_cast<int>(type);
  }
}

TEST(GradientCompressorTest, OneRankKeepsItsGradients) {
  for (const CompressionType type : kAll) {
    GradientCompressionOptions options;
    options.type = type;
    const auto outcomes = SumOverRanks(options, SpanOf(1), 1, GradientsOf);
    EXPECT_EQ(outcomes[0].sums[0], GradientsOf(0, 0));
  }
}

}  // namespace
}  // namespace megatron
