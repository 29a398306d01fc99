#include "megatron/optim/compression/sign_mean.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/optim/compression/plain_sign_mean.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ops::HostTensor;
using Floats = std::vector<float>;
using Values = std::function<Floats(int rank, int step)>;

Tensor Of(Floats& x) { return {x.data(), DType::kFloat32, {static_cast<int64_t>(x.size())}}; }

// What a rank has after each step.
struct Step {
  Floats mean, error, mean_error;
};

// Returns [rank][step]. With `forgets` errors are zeroed before each step.
std::vector<std::vector<Step>> AverageOnRanks(const std::vector<TensorPlaces>& tensors, int ranks,
                                              int steps, const Values& values,
                                              bool forgets = false) {
  std::vector<std::vector<Step>> out(ranks);
  EXPECT_THAT(RunRanks(ranks,
                       [&](int rank, const ProcessGroup& world) {
                         ThreadPool pool(1);
                         const SignMean sign_mean(tensors, ranks);
                         Floats error(sign_mean.error_elements(), 0),
                             mean_error(sign_mean.mean_error_elements(), 0),
                             scratch(sign_mean.scratch_elements(), 0);
                         for (int step = 0; step < steps; ++step) {
                           if (forgets) {
                             std::fill(error.begin(), error.end(), 0);
                             std::fill(mean_error.begin(), mean_error.end(), 0);
                           }
                           Floats x = values(rank, step);
                           sign_mean.Average(Of(x), Of(error), Of(mean_error), Of(scratch), world,
                                             Stream::Cpu(&pool));
                           out[rank].push_back({x, error, mean_error});
                         }
                         return world.status();
                       }),
              IsOk());
  return out;
}

Floats OfExample(int rank, int) {
  Floats x;
  for (int i = 0; i < 16; ++i) x.push_back(static_cast<float>(rank == 0 ? i - 7 : 5 * i % 16 - 8));
  return x;
}

TEST(SignMeanTest, StepsAreThoseOfTheExample) {
  const auto out = AverageOnRanks({{{0, 16}}}, 2, 3, OfExample);
  struct Want {
    float first, second;  // the scales of both chunks
    uint32_t signs;       // the first element's is the highest of 16 bits
  };
  const Want wants[] = {{2.839454f, 3.278719f, 0b0011011111111111},
                        {6.565896f, 4.428827f, 0b0000001001011011},
                        {3.713215f, 4.902631f, 0b0001010011001101}};
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 16; ++i) {
      const float scale = i < 8 ? wants[step].first : wants[step].second;
      const bool positive = (wants[step].signs >> (15 - i) & 1) != 0;
      EXPECT_NEAR(out[0][step].mean[i], positive ? scale : -scale, 2e-6 * scale)
          << "step " << step << ", element " << i;
    }
    EXPECT_EQ(out[0][step].mean, out[1][step].mean);
  }
  const Floats errors = {-2.363191f, -1.363191f, -0.363191f, 0.636809f};
  const Floats mean_errors = {-1.797355f, -1.797355f, -2.839454f, -2.839454f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(out[0][0].error[i], errors[i], 2e-6);
    EXPECT_NEAR(out[0][0].mean_error[i], mean_errors[i], 2e-6);
  }
}

TEST(SignMeanTest, PaddedSizesAreThoseOfTheExamples) {
  EXPECT_EQ(SignMean::PaddedSize(5, 1), 8);
  EXPECT_EQ(SignMean::PaddedSize(17, 2), 32);
  EXPECT_EQ(SignMean::PaddedSize(100, 3), 144);
  EXPECT_EQ(SignMean::PaddedSize(100, 4), 128);
  EXPECT_EQ(SignMean::PaddedSize(1000, 8), 1024);
  EXPECT_EQ(SignMean::PaddedSize(1000, 12), 1152);
  EXPECT_EQ(SignMean::PaddedSize(1000, 64), 4096);
  EXPECT_EQ(SignMean::PaddedSize(340000000, 64), 340000768);
}

Floats RandomOf(int rank, int step) {
  const HostTensor x = HostTensor::Normal({900}, DType::kFloat32, 100 * step + rank);
  return {x.tensor().data<float>(), x.tensor().data<float>() + 900};
}

// Three tensors with gaps, of which one is too small for codes.
TEST(SignMeanTest, EachTensorIsAveragedAsByAPlainProgram) {
  const std::vector<TensorPlace> places = {{5, 300}, {310, 2}, {320, 579}};
  for (const int ranks : {2, 3, 4, 6, 8}) {
    constexpr int kSteps = 4;
    const std::vector<TensorPlaces> tensors = {{places[0]}, {places[1]}, {places[2]}};
    EXPECT_EQ(SignMean(tensors, ranks).dense_elements(), 2);
    const auto out = AverageOnRanks(tensors, ranks, kSteps, RandomOf);
    std::vector<PlainSignMean> programs;
    for (const TensorPlace& place : places) programs.emplace_back(place.size, ranks);
    for (int step = 0; step < kSteps; ++step) {
      Floats want = RandomOf(0, step);
      for (size_t t = 0; t < places.size(); ++t) {
        const TensorPlace& place = places[t];
        std::vector<Floats> values;
        for (int rank = 0; rank < ranks; ++rank) {
          const Floats all = RandomOf(rank, step);
          values.emplace_back(all.begin() + place.begin, all.begin() + place.begin + place.size);
        }
        Floats mean = programs[t].Average(values);
        if (t == 1) {
          mean.assign(place.size, 0);
          for (const Floats& x : values) {
            for (int64_t i = 0; i < place.size; ++i) mean[i] += x[i];
          }
          for (float& x : mean) x *= 1 / static_cast<float>(ranks);
        }
        std::copy(mean.begin(), mean.end(), want.begin() + place.begin);
      }
      for (const TensorPlace& place : places) {
        for (int64_t i = place.begin; i < place.begin + place.size; ++i)
          ASSERT_FLOAT_EQ(out[0][step].mean[i], want[i])
              << ranks << " ranks, step " << step << ", element " << i;
      }
      // Elements between tensors stay.
      EXPECT_EQ(out[0][step].mean[0], want[0]);
      EXPECT_EQ(out[0][step].mean[315], want[315]);
      for (int rank = 1; rank < ranks; ++rank) {
        for (const TensorPlace& place : places) {
          for (int64_t i = place.begin; i < place.begin + place.size; ++i)
            ASSERT_EQ(out[rank][step].mean[i], out[0][step].mean[i]);
        }
      }
    }
  }
}

// Places begin and end within bytes, and one of them has elements of several chunks.
TEST(SignMeanTest, ATensorMayLieInSeveralPlaces) {
  const TensorPlaces places = {{5, 301}, {310, 2}, {320, 579}};
  for (const int ranks : {2, 3, 8}) {
    constexpr int kSteps = 3;
    EXPECT_EQ(SignMean({places}, ranks).dense_elements(), 0);
    const auto out = AverageOnRanks({places}, ranks, kSteps, RandomOf);
    PlainSignMean program(301 + 2 + 579, ranks);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Floats> values(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        const Floats all = RandomOf(rank, step);
        for (const TensorPlace& place : places) {
          values[rank].insert(values[rank].end(), all.begin() + place.begin,
                              all.begin() + place.begin + place.size);
        }
      }
      const Floats mean = program.Average(values);
      Floats want = RandomOf(0, step);
      size_t next = 0;
      for (const TensorPlace& place : places) {
        for (int64_t i = 0; i < place.size; ++i) want[place.begin + i] = mean[next++];
      }
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_FLOAT_EQ(out[0][step].mean[i], want[i]) << ranks << " ranks, element " << i;
    }
  }
}

// Returns how far the mean over steps is from that of the example, at most.
double WorstOffset(bool forgets) {
  constexpr int kSteps = 2000;
  const auto out = AverageOnRanks({{{0, 16}}}, 2, kSteps, OfExample, forgets);
  double worst = 0;
  for (int i = 0; i < 16; ++i) {
    double sum = 0;
    for (const Step& step : out[0]) sum += step.mean[i];
    const double mean = (OfExample(0, 0)[i] + OfExample(1, 0)[i]) / 2;
    worst = std::max(worst, std::abs(sum / kSteps - mean));
  }
  return worst;
}

TEST(SignMeanTest, OverManyStepsMeansAreExactAndWithoutErrorsTheyAreNot) {
  EXPECT_LT(WorstOffset(/*forgets=*/false), 0.006);
  EXPECT_GT(WorstOffset(/*forgets=*/true), 1);
}

}  // namespace
}  // namespace megatron
