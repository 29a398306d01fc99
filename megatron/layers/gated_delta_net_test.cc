#include "megatron/layers/gated_delta_net.h"

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

constexpr int64_t kHidden = 8, kGroups = 2, kOfGroup = 2, kKey = 8, kValue = 4, kTaps = 3;
constexpr int64_t kHeads = kGroups * kOfGroup, kValues = kOfGroup * kValue;  // values of a group
constexpr int64_t kConvolved = 2 * kKey + kValues;
constexpr int64_t kPacked = kConvolved + kValues + 2 * kOfGroup;

TransformerOptions Options() {
  TransformerOptions options;
  options.num_layers = 1;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  options.num_attention_heads = options.num_query_groups = 2;
  options.kv_channels = 4;
  options.norm.kind = ops::Norm::kRmsNorm;
  options.norm.epsilon = 0.1f;  // norms of heads' small outputs are smooth
  options.hidden_dropout = options.attention_dropout = 0;
  options.hybrid_layers = {HybridLayer::kDelta};
  options.delta = {kTaps, kKey, kValue, kGroups, kHeads};
  return options;
}

LayerCalls MakeMixer(TransformerOptions options, const ProcessGroup& group,
                     bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<GatedDeltaNet>(options, "mixer", /*layer=*/0, group));
}

LayerCalls MakeLayer(TransformerOptions options, const ProcessGroup& group,
                     bool sequence_parallel = false) {
  options.sequence_parallel = sequence_parallel;
  return CallsOf(std::make_shared<TransformerLayer>(options, /*layer=*/0, group, ExpertGroups{}),
                 static_cast<const RotaryTables*>(nullptr));
}

TEST(GatedDeltaNetTest, GradientsAreThoseOfFiniteDifferences) {
  LayerHarness harness({6, 1, 70});
  ExpectGradients(&harness, MakeMixer(Options(), harness.tensor_group()), kHidden);
}

TEST(GatedDeltaNetTest, TwoTensorParallelRanksEqualOne) {
  ExpectTwoRanksEqualOne(
      {70, 6},
      [](const ProcessGroup& group, bool sequence_parallel) {
        return MakeMixer(Options(), group, sequence_parallel);
      },
      kHidden);
}

TEST(GatedDeltaNetTest, ContextParallelRanksShareOutGroups) {
  const auto make = [] { return MakeMixer(Options(), {}); };
  ExpectContextRanksEqualOne({70, 1, 9}, {/*size=*/2}, make, kHidden);
  ExpectContextRanksEqualOne({70, 1, 9}, {2, 0, /*sample_length=*/0, /*team_size=*/2}, make,
                             kHidden);
  ExpectContextRanksEqualOne({72, 72}, {2, 0, /*sample_length=*/72}, make, kHidden);
}

// Gradients of decays are too small beside a residual to be measured in fp32. The test above
// measures those of the branch, and that of Mamba-2 those of a layer around such a branch.
TEST(GatedDeltaNetTest, IsALayer) {
  TransformerOptions options = Options(), recomputing = Options();
  options.hidden_dropout = recomputing.hidden_dropout = 0.3f;
  recomputing.recompute.norm = true;
  ExpectSameBits({70, 6}, MakeLayer(options, {}), MakeLayer(recomputing, {}), kHidden);
  ExpectTwoRanksEqualOne(
      {5, 3},
      [](const ProcessGroup& group, bool sequence_parallel) {
        return MakeLayer(Options(), group, sequence_parallel);
      },
      kHidden);
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

// The mixer in double precision, a token at a time.
class Reference {
 public:
  Reference(const std::vector<Parameter*>& parameters, const std::vector<ops::HostTensor>& values) {
    for (size_t i = 0; i < parameters.size(); ++i)
      weights_[parameters[i]->name.substr(std::string("mixer.").size())] = values[i].Values();
  }

  std::vector<double> Forward(const std::vector<double>& x, int64_t tokens, double epsilon) const {
    std::vector<double> packed;  // what in_proj gives, for all tokens
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<double> row(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
      const std::vector<double> projected = Times("in_proj.weight", row);
      packed.insert(packed.end(), projected.begin(), projected.end());
    }
    std::vector<double> y;
    std::vector<std::vector<double>> state(kHeads, std::vector<double>(kKey * kValue));
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<double> normed;
      for (int64_t head = 0; head < kHeads; ++head) {
        const int64_t group = head / kOfGroup, of_group = head % kOfGroup;
        const double* const row = &packed[(t * kGroups + group) * kPacked];
        const std::vector<double> conv = Convolved(packed, group, t);
        const std::vector<double> q = Unit(conv, 0), k = Unit(conv, kKey);
        const double raw = row[kPacked - kOfGroup + of_group] + At("dt_bias", head);
        const double decay = std::exp(-std::log1p(std::exp(raw)) * std::exp(At("A_log", head)));
        const double beta = 1 / (1 + std::exp(-row[kPacked - 2 * kOfGroup + of_group]));
        std::vector<double> out(kValue);
        double squares = 0;
        for (int64_t e = 0; e < kValue; ++e) {
          double error = conv[2 * kKey + of_group * kValue + e];
          for (int64_t d = 0; d < kKey; ++d) {
            double& s = state[head][d * kValue + e];
            s *= decay;
            error -= s * k[d];
          }
          for (int64_t d = 0; d < kKey; ++d) {
            double& s = state[head][d * kValue + e];
            s += beta * k[d] * error;
            out[e] += s * q[d] / std::sqrt(static_cast<double>(kKey));
          }
          squares += out[e] * out[e];
        }
        for (int64_t e = 0; e < kValue; ++e) {
          normed.push_back(out[e] / std::sqrt(squares / kValue + epsilon) *
                           At("out_norm.weight", e) *
                           Silu(row[kConvolved + of_group * kValue + e]));
        }
      }
      const std::vector<double> out = Times("out_proj.weight", normed);
      y.insert(y.end(), out.begin(), out.end());
    }
    return y;
  }

 private:
  double At(const std::string& name, int64_t i) const { return weights_.at(name)[i]; }
  std::vector<double> Times(const std::string& name, const std::vector<double>& x) const {
    const std::vector<double>& weight = weights_.at(name);
    std::vector<double> y(weight.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
    return y;
  }
  static std::vector<double> Unit(const std::vector<double>& x, int64_t from) {
    double squares = 1e-6;
    for (int64_t d = 0; d < kKey; ++d) squares += x[from + d] * x[from + d];
    std::vector<double> unit;
    for (int64_t d = 0; d < kKey; ++d) unit.push_back(x[from + d] / std::sqrt(squares));
    return unit;
  }
  std::vector<double> Convolved(const std::vector<double>& packed, int64_t group,
                                int64_t token) const {
    std::vector<double> out;
    for (int64_t c = 0; c < kConvolved; ++c) {
      double sum = 0;
      for (int64_t tap = 0; tap < kTaps; ++tap) {
        const int64_t from = token - kTaps + 1 + tap;
        if (from < 0) continue;
        sum += At("conv1d.weight", (group * kConvolved + c) * kTaps + tap) *
               packed[(from * kGroups + group) * kPacked + c];
      }
      out.push_back(Silu(sum));
    }
    return out;
  }

  std::map<std::string, std::vector<double>> weights_;
};

TEST(GatedDeltaNetTest, IsTheFormula) {
  constexpr int64_t kTokens = 150;
  LayerHarness harness({kTokens});
  const LayerCalls calls = MakeMixer(Options(), {});
  harness.Bind(calls.parameters);
  const auto x = ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, 1);
  const ops::HostTensor y({kTokens, kHidden}, DType::kFloat32);
  harness.Forward(calls, x, y);
  const double epsilon = static_cast<double>(Options().norm.epsilon);
  ops::ExpectNear(
      y, Reference(calls.parameters, harness.values()).Forward(x.Values(), kTokens, epsilon), 1e-5);
}

TEST(GatedDeltaNetTest, HasTheParametersOfMegatronsCheckpoints) {
  std::map<std::string, Shape> shapes;
  for (const Parameter* parameter : MakeLayer(Options(), {}).parameters)
    shapes[parameter->name] = parameter->sharding.global_shape;
  const std::string mixer = "decoder.layers.0.self_attention.";
  const std::map<std::string, Shape> want = {
      {mixer + "in_proj.layer_norm_weight", {kHidden}},
      {mixer + "in_proj.weight", {kGroups, kPacked, kHidden}},
      {mixer + "conv1d.weight", {kGroups, kConvolved, kTaps}},
      {mixer + "dt_bias", {kHeads}},
      {mixer + "A_log", {kHeads}},
      {mixer + "out_norm.weight", {kValue}},
      {mixer + "out_proj.weight", {kHidden, kGroups * kValues}},
  };
  EXPECT_EQ(shapes, want);
}

}  // namespace
}  // namespace megatron
