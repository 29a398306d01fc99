#include "megatron/models/huggingface/hf_goldens.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/huggingface/hf_weights.h"

namespace megatron {
namespace {

constexpr double kTolerance = 1e-5;

using Goldens = std::map<std::string, std::vector<double>>;

// Parses lines of a name and one or two numbers.
Goldens ReadGoldens(const std::string& name) {
  std::ifstream file(absl::StrCat("megatron/models/huggingface/testdata/hf/", name, ".txt"));
  EXPECT_TRUE(file.is_open()) << name;
  Goldens goldens;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    for (double value; words >> value;) goldens[key].push_back(value);
  }
  return goldens;
}

double Wave(size_t i, double phase) {
  const double x = static_cast<double>(i);
  return std::sin(x * x * 0.37 + x * 1.7 + phase);
}

bool IsGain(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return absl::EndsWith(lower, "layernorm.weight") || absl::EndsWith(lower, "layer_norm.weight") ||
         absl::EndsWith(lower, ".ln.weight");
}

// Returns their tensor that corresponds to our parameter, or to its gradient.
std::vector<float> ToTheirs(const HfTensor& tensor, const Tensor& ours) {
  std::vector<float> theirs(static_cast<size_t>(tensor.rows * tensor.columns));
  CopyToHf(tensor, sizeof(float), static_cast<const char*>(ours.raw()),
           reinterpret_cast<char*>(theirs.data()));
  return theirs;
}

void Fill(const HfTensor& tensor, const Tensor& ours) {
  std::vector<float> theirs(static_cast<size_t>(tensor.rows * tensor.columns));
  for (size_t i = 0; i < theirs.size(); ++i) {
    const double wave = Wave(i, static_cast<double>(tensor.name.size()));
    theirs[i] = static_cast<float>((IsGain(tensor.name) ? 1 : 0) + 0.25 * wave);
  }
  CopyFromHf(tensor, sizeof(float), reinterpret_cast<const char*>(theirs.data()),
             static_cast<char*>(ours.raw()));
  EXPECT_EQ(ToTheirs(tensor, ours), theirs) << tensor.name;
}

void ExpectGradient(const std::vector<float>& gradient, const std::vector<double>& want,
                    const std::string& name) {
  double squares = 0, product = 0;
  for (size_t i = 0; i < gradient.size(); ++i) {
    squares += double{gradient[i]} * gradient[i];
    product += gradient[i] * Wave(i, 0.5);
  }
  ASSERT_EQ(want.size(), 2u) << name;
  // Gradients of key biases are zero but for rounding.
  const double tolerance = kTolerance * std::max(want[0], 0.1);
  EXPECT_NEAR(std::sqrt(squares), want[0], tolerance) << name;
  EXPECT_NEAR(product, want[1], tolerance * std::sqrt(static_cast<double>(gradient.size())))
      << name;
}

}  // namespace

void ExpectComputesWhatHuggingFaceComputes(const ModelOptions& options, HostBatch batch,
                                           int64_t logits_of, const std::string& golden) {
  const Goldens goldens = ReadGoldens(golden);
  ModelHarness model(options, ProcessGroup(), 1);
  const std::vector<HfTensor> tensors = HfTensors(options);
  for (const HfTensor& tensor : tensors) Fill(tensor, model.Find(tensor.parameter)->data);

  const double loss = goldens.at("loss")[0];
  EXPECT_NEAR(model.LossAndGradients(&batch), loss, kTolerance * loss);
  size_t compared = 1;
  if (goldens.count("order_loss") == 1) {
    EXPECT_NEAR(model.means().at("sop loss"), goldens.at("order_loss")[0], kTolerance);
    ++compared;
  }
  for (const HfTensor& tensor : tensors) {
    ASSERT_EQ(goldens.count("gradient." + tensor.name), 1u) << tensor.name;
    ExpectGradient(ToTheirs(tensor, model.Find(tensor.parameter)->grad),
                   goldens.at("gradient." + tensor.name), tensor.name);
    ++compared;
  }
  const std::vector<float> logits = model.Logits(&batch, logits_of);
  for (int v = 0; v < 50; v += 7, ++compared)
    EXPECT_NEAR(logits[v], goldens.at(absl::StrCat("logit.", v))[0], kTolerance) << v;
  EXPECT_EQ(compared, goldens.size());
}

}  // namespace megatron
