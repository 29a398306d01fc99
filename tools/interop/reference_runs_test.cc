#include "tools/interop/reference_runs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron {
namespace {

constexpr double kBound = 1e-5;  // relative

using Numbers = std::map<std::string, std::vector<double>>;

// Numbers of PyTorch in double, written by pytorch_reference/compare.py --write_goldens.
Numbers ReadGoldens(const std::string& run) {
  std::ifstream file("tools/interop/testdata/" + run + ".txt");
  EXPECT_TRUE(file.is_open()) << run;
  Numbers goldens;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (double value; words >> value;) goldens[name].push_back(value);
  }
  return goldens;
}

// Unless keys are rotated, the gradient of their biases is nothing but rounding error, which AdamW
// turns into steps of full size. compare.py compares these tensors separately. So it is with the
// one bias of choices.
bool IsCompared(const std::string& weight, const Shape& shape, bool rotates) {
  if (weight == "classifier.bias" && shape.numel() == 1) return false;
  if (rotates) return true;
  return !absl::EndsWith(weight, "linear_qkv.bias") && !absl::EndsWith(weight, "linear_kv.bias") &&
         !absl::EndsWith(weight, ".key.bias");
}

// The numbers of a run that a golden has.
Numbers Summarize(const ReferenceResult& result, bool rotates) {
  Numbers numbers;
  numbers["losses"].assign(result.losses.begin(), result.losses.end());
  numbers["norms"].assign(result.grad_norms.begin(), result.grad_norms.end());
  for (const auto& [name, weight] : result.final_weights) {
    if (!IsCompared(name, weight.shape, rotates)) continue;
    double squares = 0, product = 0;
    for (size_t i = 0; i < weight.values.size(); ++i) {
      const double value = weight.values[i];
      squares += value * value;
      product += value * std::sin(1.7 * static_cast<double>(i) + 0.5);
    }
    numbers[name] = {std::sqrt(squares), product};
  }
  return numbers;
}

// The largest difference, relative to the loss or norm of the step, or to the norm of the weight.
// A weight that is frozen at zero has no other value.
double Distance(const Numbers& actual, const Numbers& golden) {
  double largest = 0;
  for (const auto& [name, values] : golden) {
    const std::vector<double>& ours = actual.at(name);
    const bool by_step = name == "losses" || name == "norms";
    for (size_t i = 0; i < values.size(); ++i) {
      const double scale = std::max(values[by_step ? i : 0], 1e-30);
      const double distance = std::abs(ours.at(i) - values[i]) / scale;
      largest = std::max(largest, std::isnan(distance) ? HUGE_VAL : distance);
    }
  }
  return largest;
}

double DistanceFromPyTorch(const ReferenceRun& run) {
  ThreadPool pool(1);
  const auto result = Train(run, Stream::Cpu(&pool));
  EXPECT_THAT(result, absl_testing::IsOk());
  const Numbers actual = Summarize(*result, run.trainer.model.transformer.rotary),
                golden = ReadGoldens(run.name);
  EXPECT_EQ(actual.size(), golden.size());
  return Distance(actual, golden);
}

TEST(ReferenceRunsTest, LossesGradientNormsAndWeightsAreThoseOfPyTorch) {
  for (const ReferenceRun& run : ReferenceRuns()) {
    EXPECT_LT(DistanceFromPyTorch(run), kBound) << run.name;
  }
}

// The comparison detects mistakes that are easy to make.
TEST(ReferenceRunsTest, RunsWithAnotherOptimizerAreTellinglyFarFromPyTorch) {
  for (const ReferenceRun& run : ReferenceRuns()) {
    if (!absl::EndsWith(run.name, "_adam")) continue;
    ReferenceRun beta2 = run, unclipped = run, no_decay = run;
    beta2.trainer.optimizer.adam_beta2 = 0.951;
    EXPECT_GT(DistanceFromPyTorch(beta2), 3 * kBound) << run.name;
    unclipped.trainer.clip_grad = 0;
    const std::vector<double> norms = ReadGoldens(run.name)["norms"];
    if (*std::max_element(norms.begin(), norms.end()) > run.trainer.clip_grad) {
      EXPECT_GT(DistanceFromPyTorch(unclipped), 3 * kBound) << run.name;
    }
    no_decay.trainer.schedule.start_weight_decay = no_decay.trainer.schedule.end_weight_decay = 0;
    EXPECT_GT(DistanceFromPyTorch(no_decay), 3 * kBound) << run.name;
  }
}

TEST(ReferenceRunsTest, SamplesHaveSomethingToLearn) {
  for (const ReferenceRun& run : ReferenceRuns()) {
    EXPECT_EQ(ReferenceSamples(run).size(), 20u * 4);
    const std::vector<double> losses = ReadGoldens(run.name)["losses"];
    EXPECT_LT(losses.back(), losses.front() - 0.1) << run.name;
  }
}

}  // namespace
}  // namespace megatron
