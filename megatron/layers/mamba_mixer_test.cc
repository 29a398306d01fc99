#include "megatron/layers/mamba_mixer.h"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/transformer_layer.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kGroups = 2, kHeads = 4, kChannels = 3, kState = 5;
// The heads and the channels of a group.
constexpr int64_t kOfGroup = kHeads / kGroups, kInner = kOfGroup * kChannels;
constexpr int64_t kConvolved = kInner + 2 * kState;

TransformerOptions Options() {
  TransformerOptions options;
  options.num_layers = 3;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  options.num_attention_heads = options.num_query_groups = 2;
  options.kv_channels = 4;
  options.norm.kind = ops::Norm::kRmsNorm;
  options.norm.epsilon = 1e-2f;
  options.hidden_dropout = options.attention_dropout = 0;
  options.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kAttention, HybridLayer::kMlp};
  options.mamba = {kState, kChannels, kGroups, kHeads};
  return options;
}

// With a norm of all groups together.
TransformerOptions Together() {
  TransformerOptions options = Options();
  options.mamba.norm_all_groups = true;
  return options;
}

LayerCalls MakeMixer(TransformerOptions options, const ProcessGroup& group,
                     bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<MambaMixer>(options, "mixer", /*layer=*/0, group));
}

LayerCalls MakeLayer(TransformerOptions options, int64_t layer, const ProcessGroup& group,
                     bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<TransformerLayer>(options, layer, group, ExpertGroups{}),
                 static_cast<const RotaryTables*>(nullptr));
}

TEST(MambaMixerTest, GradientsAreThoseOfFiniteDifferences) {
  for (const TransformerOptions& options : {Options(), Together()}) {
    LayerHarness harness({6, 1, 70});
    ExpectGradients(&harness, MakeMixer(options, harness.tensor_group()), kHidden);
  }
}

TEST(MambaMixerTest, TwoTensorParallelRanksEqualOne) {
  for (const TransformerOptions& options : {Options(), Together()}) {
    ExpectTwoRanksEqualOne(
        {70, 6},
        [&](const ProcessGroup& group, bool sequence_parallel) {
          return MakeMixer(options, group, sequence_parallel);
        },
        kHidden);
  }
}

TEST(MambaMixerTest, ContextParallelRanksShareOutGroups) {
  for (const TransformerOptions& options : {Options(), Together()}) {
    const auto make = [&] { return MakeMixer(options, {}); };
    ExpectContextRanksEqualOne({70, 1, 9}, {/*size=*/2}, make, kHidden);
    ExpectContextRanksEqualOne({70, 1, 9}, {2, 0, /*sample_length=*/0, /*team_size=*/2}, make,
                               kHidden);
    ExpectContextRanksEqualOne({72, 72}, {2, 0, /*sample_length=*/72}, make, kHidden);
  }
}

TEST(MambaMixerTest, HybridLayersAreOneBranch) {
  for (int64_t layer = 0; layer < 3; ++layer) {
    TransformerOptions options = Options();
    options.norm.zero_centered_gamma = true;  // gains near 1 make rows that are not small
    LayerHarness harness({4, 2});
    ExpectGradients(&harness, MakeLayer(options, layer, harness.tensor_group()), kHidden);
    TransformerOptions recomputing = options;
    options.hidden_dropout = recomputing.hidden_dropout = 0.3f;
    recomputing.recompute.core_attention = recomputing.recompute.mlp = recomputing.recompute.norm =
        true;
    ExpectSameBits({70, 6}, MakeLayer(options, layer, {}), MakeLayer(recomputing, layer, {}),
                   kHidden);
    ExpectTwoRanksEqualOne(
        {5, 3},
        [layer](const ProcessGroup& group, bool sequence_parallel) {
          return MakeLayer(Options(), layer, group, sequence_parallel);
        },
        kHidden);
  }
}

// The mixer in double precision, a token at a time.
class Reference {
 public:
  Reference(const std::vector<Parameter*>& parameters, const std::vector<ops::HostTensor>& values) {
    for (size_t i = 0; i < parameters.size(); ++i)
      weights_[parameters[i]->name.substr(std::string("mixer.").size())] = values[i].Values();
  }

  std::vector<double> Forward(const std::vector<double>& x, int64_t tokens, double epsilon,
                              bool norm_all_groups) const {
    std::vector<double> packed;  // what in_proj gives, for all tokens
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<double> row(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
      const std::vector<double> projected = Times("in_proj.weight", row);
      packed.insert(packed.end(), projected.begin(), projected.end());
    }
    std::vector<double> y;
    std::vector<std::vector<double>> state(kHeads, std::vector<double>(kState * kChannels));
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<double> gated;
      std::vector<double> squares(kGroups);
      for (int64_t group = 0; group < kGroups; ++group) {
        const std::vector<double> conv = Convolved(packed, group, t);
        const double* const row = &packed[(t * kGroups + group) * kWidth];
        for (int64_t i = 0; i < kInner; ++i) {
          const int64_t head = group * kOfGroup + i / kChannels;
          const double raw = row[kInner + kConvolved + i / kChannels] + At("dt_bias", head);
          const double step = std::log1p(std::exp(raw));
          const double decay = std::exp(-step * std::exp(At("A_log", head)));
          double out = At("D", head) * conv[i];
          for (int64_t n = 0; n < kState; ++n) {
            double& s = state[head][n * kChannels + i % kChannels];
            s = decay * s + step * conv[kInner + n] * conv[i];
            out += conv[kInner + kState + n] * s;
          }
          gated.push_back(out * row[i] / (1 + std::exp(-row[i])));
          squares[group] += gated.back() * gated.back();
        }
      }
      const double all = (squares[0] + squares[1]) / kGroups;
      std::vector<double> normed;
      for (int64_t i = 0; i < kGroups * kInner; ++i) {
        const double mean = (norm_all_groups ? all : squares[i / kInner]) / kInner;
        normed.push_back(gated[i] / std::sqrt(mean + epsilon) * At("norm.weight", i));
      }
      const std::vector<double> out = Times("out_proj.weight", normed);
      y.insert(y.end(), out.begin(), out.end());
    }
    return y;
  }

 private:
  static constexpr int64_t kWidth = kInner + kConvolved + kOfGroup;

  double At(const std::string& name, int64_t i) const { return weights_.at(name)[i]; }
  std::vector<double> Times(const std::string& name, const std::vector<double>& x) const {
    const std::vector<double>& weight = weights_.at(name);
    std::vector<double> y(weight.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
    return y;
  }
  std::vector<double> Convolved(const std::vector<double>& packed, int64_t group,
                                int64_t token) const {
    std::vector<double> out;
    for (int64_t c = 0; c < kConvolved; ++c) {
      const int64_t channel = group * kConvolved + c;
      double sum = At("conv1d.bias", channel);
      for (int64_t tap = 0; tap < 4; ++tap) {
        const int64_t from = token - 3 + tap;
        if (from < 0) continue;
        sum += At("conv1d.weight", channel * 4 + tap) *
               packed[(from * kGroups + group) * kWidth + kInner + c];
      }
      out.push_back(sum / (1 + std::exp(-sum)));
    }
    return out;
  }

  std::map<std::string, std::vector<double>> weights_;
};

TEST(MambaMixerTest, IsTheFormula) {
  constexpr int64_t kTokens = 150;
  for (const TransformerOptions& options : {Options(), Together()}) {
    LayerHarness harness({kTokens});
    const LayerCalls calls = MakeMixer(options, {});
    harness.Bind(calls.parameters);
    const auto x = ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 1);
    const ops::HostTensor y({kTokens, kHidden}, DType::kFloat32);
    harness.Forward(calls, x, y);
    const Reference reference(calls.parameters, harness.values());
    ops::ExpectNear(
        y,
        reference.Forward(x.Values(), kTokens, static_cast<double>(options.norm.epsilon),
                          options.mamba.norm_all_groups),
        5e-6);
  }
}

// A second sequence is computed as if it were alone.
TEST(MambaMixerTest, SequencesDoNotSeeEachOther) {
  const auto forward = [](const std::vector<int>& lengths, const ops::HostTensor& x) {
    LayerHarness harness(lengths);
    const LayerCalls calls = MakeMixer(Options(), {});
    harness.Bind(calls.parameters);
    const ops::HostTensor y({x.tensor().dim(0), kHidden}, DType::kFloat32);
    harness.Forward(calls, x, y);
    return y.Values();
  };
  const auto both = ops::HostTensor::Normal({77, kHidden}, DType::kFloat32, 1);
  std::vector<double> second(both.numel() - 7 * kHidden);
  for (size_t i = 0; i < second.size(); ++i) second[i] = both.Get(7 * kHidden + i);
  const std::vector<double> alone =
      forward({70}, ops::HostTensor::Of({70, kHidden}, DType::kFloat32, second));
  const std::vector<double> packed = forward({7, 70}, both);
  EXPECT_EQ(std::vector<double>(packed.begin() + 7 * kHidden, packed.end()), alone);
}

TEST(MambaMixerTest, HasTheParametersOfMegatronsCheckpoints) {
  std::map<std::string, Shape> shapes;
  for (const Parameter* parameter : MakeLayer(Options(), 0, {}).parameters)
    shapes[parameter->name] = parameter->sharding.global_shape;
  const std::string mixer = "decoder.layers.0.mixer.";
  const std::map<std::string, Shape> want = {
      {mixer + "in_proj.layer_norm_weight", {kHidden}},
      {mixer + "in_proj.weight", {kGroups, kInner + kConvolved + kOfGroup, kHidden}},
      {mixer + "conv1d.weight", {kGroups, kConvolved, 4}},
      {mixer + "conv1d.bias", {kGroups, kConvolved}},
      {mixer + "dt_bias", {kHeads}},
      {mixer + "A_log", {kHeads}},
      {mixer + "D", {kHeads}},
      {mixer + "norm.weight", {kGroups * kInner}},
      {mixer + "out_proj.weight", {kHidden, kGroups * kInner}},
  };
  EXPECT_EQ(shapes, want);
}

}  // namespace
}  // namespace megatron
