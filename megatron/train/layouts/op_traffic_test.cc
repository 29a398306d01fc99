// Counts what a training step launches on a GPU, and the bytes of device memory that its kernels
// read and write, so that neither grows unseen. The kernels' own code runs, on the CPU.
#include "megatron/ops/cuda/op_traffic.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <ostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/comm/process_group.h"
#include "megatron/models/model_harness.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/gemm/choose_epilogues.h"
#include "megatron/train/gemm/plan_gemms.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

// The step is one micro-batch of 8 samples.
constexpr int64_t kTokens = 8 * CountingSource::kLength, kHidden = 128;
constexpr int kAmpere = 80, kHopper = 90;

// What one op does in a step: bytes of activations a token, and bytes of all other memory (weights,
// gradients, the workspace of sums).
struct Traffic {
  int64_t launches = 0;
  double read = 0, written = 0;
  int64_t other = 0;

  Traffic& operator+=(const Traffic& more) {
    launches += more.launches;
    read += more.read;
    written += more.written;
    other += more.other;
    return *this;
  }
  Traffic operator-(const Traffic& less) const {
    return {launches - less.launches, read - less.read, written - less.written, other - less.other};
  }
  friend bool operator==(const Traffic& a, const Traffic& b) {
    return a.launches == b.launches && a.read == b.read && a.written == b.written &&
           a.other == b.other;
  }
};

std::ostream& operator<<(std::ostream& out, const Traffic& x) {
  return out << absl::StrFormat("{%d, %g, %g, %d}", x.launches, x.read, x.written, x.other);
}

using Table = std::map<std::string, Traffic>;  // by op

Traffic Sum(const Table& table) {
  Traffic sum;
  for (const auto& [op, traffic] : table) sum += traffic;
  return sum;
}

void Print(const char* title, const Table& table) {
  std::printf("%-32s %8s %14s %14s %12s\n", title, "launches", "read/token", "written/token",
              "other bytes");
  const auto row = [](const std::string& name, const Traffic& x) {
    std::printf("%-32s %8d %14.1f %14.1f %12d\n", name.c_str(), static_cast<int>(x.launches),
                x.read, x.written, static_cast<int>(x.other));
  };
  for (const auto& [op, traffic] : table) row(op, traffic);
  row("sum", Sum(table));
}

// The ops of a step of a model with so many layers.
Table OfStep(const ModelOptions& model, int64_t layers) {
  TrainerOptions options = TinyRun(model, OptimizerOptions::kAdamW);
  TransformerOptions& transformer = options.model.transformer;
  transformer.num_layers = layers;
  if (!transformer.hybrid_layers.empty())
    transformer.hybrid_layers.assign(static_cast<size_t>(layers),
                                     transformer.hybrid_layers.front());
  transformer.hidden_dropout = transformer.attention_dropout = 0;
  LayoutRun how;
  how.layout.micro_batch_size = 8;
  how.steps = 1;
  how.device = DeviceType::kCuda;
  const ops::cuda::OpTraffic counted;
  TrainOnLayout(options, how, CountingSource());
  Table table;
  for (const auto& [name, op] : counted.ops()) {
    Traffic& traffic = table[name];
    traffic.launches = op.launches;
    for (const auto& [memory, bytes] : op.by_memory) {
      if (absl::StartsWith(memory, "activations/")) {
        traffic.read += static_cast<double>(bytes.read) / kTokens;
        traffic.written += static_cast<double>(bytes.written) / kTokens;
      } else {
        traffic.other += bytes.read + bytes.written;
      }
    }
  }
  return table;
}

// What one layer more adds.
Table OfLayer(const ModelOptions& model) {
  const Table shorter = OfStep(model, 2), longer = OfStep(model, 3);
  Table layer;
  for (const auto& [op, traffic] : longer) {
    const auto found = shorter.find(op);
    const Traffic more = traffic - (found == shorter.end() ? Traffic() : found->second);
    if (!(more == Traffic())) layer[op] = more;
  }
  return layer;
}

// The proportions of GPT-2, with heads of 32.
ModelOptions Gpt2() {
  ModelOptions model = SmallGpt2();
  TransformerOptions& transformer = model.transformer;
  transformer.dtype = DType::kBFloat16;
  transformer.hidden_size = kHidden;
  transformer.ffn_hidden_size = 4 * kHidden;
  transformer.kv_channels = kHidden / transformer.num_attention_heads;
  return model;
}

// Layers with a state of one kind.
ModelOptions LayersOf(HybridLayer kind) {
  ModelOptions model = SmallHybrid();
  model.transformer.dtype = DType::kBFloat16;
  model.transformer.hybrid_layers = {kind};
  return model;
}

// Not of interest here: what is done once a step to the parameters, which have one tensor.
Table WithoutOptimizer(Table table) {
  table.erase("AdamWUpdate");
  table.erase("SumOfSquares");
  return table;
}

// What one layer of GPT-2 does on GPUs of this compute capability, where the configuration says of
// products what `gemms` does.
Table OfGpt2Layer(const char* title, int compute_capability, const GemmOptions& gemms = {}) {
  RunOptions options;
  options.trainer.model = Gpt2();
  options.gemms = gemms;
  MemoryFileSystem fs;
  EXPECT_TRUE(PlanGemms(fs, ChooseEpilogues(options, compute_capability, ProcessGroup()),
                        &ops::cuda::ProcessGemmPlanner())
                  .ok());
  Table layer = WithoutOptimizer(OfLayer(Gpt2()));
  ops::cuda::ProcessGemmPlanner().Use({});
  Print(title, layer);
  return layer;
}

// Rows of the residual stream that are read and written a token by all but products. Attention's
// products are in kernels of their own, which are left out whole.
double RowsBesideProducts(Table layer) {
  constexpr double kRow = 2 * kHidden;
  constexpr double kMeansAndDeviations = 2 * 4 * 4;  // two norms, in fp32, forward and backward
  layer.erase("AttentionForward");
  layer.erase("AttentionBackward");
  const Traffic sum = Sum(layer);
  return (sum.read + sum.written - kMeansAndDeviations) / kRow;
}

// A row of the residual stream has 256 bytes. Products have no bytes here, but those of their
// epilogues.
TEST(OpTrafficTest, ALayerOfGpt2LaunchesAndMovesNoMoreThanThisOnOlderGpus) {
  const Table layer = OfGpt2Layer("a layer of GPT-2 on Ampere", kAmpere);
  const Table want = {{"ActivationBackwardAndBias", {2, 2048, 1024, 69632}},
                      {"ActivationForward", {1, 1024, 1024, 0}},
                      {"AttentionBackward", {2, 2336, 768, 4168}},
                      {"AttentionForward", {1, 768, 272, 36}},
                      {"LinearActivationBackwardInput", {1, 0, 0, 0}},
                      {"LinearActivationForward", {1, 0, 0, 0}},
                      {"LinearBackwardInput", {3, 0, 0, 0}},
                      {"LinearBackwardWeight", {6, 768, 0, 52224}},
                      {"LinearForward", {3, 0, 0, 0}},
                      {"NormBackward", {4, 1552, 512, 203264}},
                      {"ResidualNormForward", {2, 1024, 1040, 1536}}};
  EXPECT_EQ(layer, want);
  EXPECT_EQ(Sum(layer).launches, 26);
  EXPECT_EQ(RowsBesideProducts(layer), 39);
}

// By default products compute the gradients of biases there, and in backward GELU's derivative.
TEST(OpTrafficTest, ALayerOfGpt2LaunchesAndMovesNoMoreThanThisOnHopper) {
  const Table layer = OfGpt2Layer("a layer of GPT-2 on Hopper", kHopper);
  EXPECT_EQ(layer.count("ActivationBackwardAndBias"), size_t{0});
  EXPECT_EQ(Sum(layer).launches, 24);
  EXPECT_EQ(RowsBesideProducts(layer), 28);
}

TEST(OpTrafficTest, GeluAndBiasesInProductsTakeOffLaunchesAndBytes) {
  GemmOptions gemms;
  gemms.fuse_gelu = config::FuseGelu::none;
  gemms.fuse_bias_gradients = false;
  const Table apart = OfGpt2Layer("neither, on Hopper", kHopper, gemms);
  EXPECT_EQ(Sum(apart).launches, 26);
  EXPECT_EQ(RowsBesideProducts(apart), 39);
  gemms.fuse_gelu = config::FuseGelu::both;
  const Table both = OfGpt2Layer("fuse_gelu: both", kHopper, gemms);
  EXPECT_EQ(Sum(both).launches, 24);
  EXPECT_EQ(RowsBesideProducts(both), 27);
  gemms.fuse_bias_gradients = true;
  const Table and_biases = OfGpt2Layer("fuse_gelu: both, fuse_bias_gradients", kHopper, gemms);
  EXPECT_EQ(Sum(and_biases).launches, 23);
  EXPECT_EQ(RowsBesideProducts(and_biases), 24);
  gemms.fuse_gelu = config::FuseGelu::backward;
  const Table backward = OfGpt2Layer("fuse_gelu: backward, fuse_bias_gradients", kAmpere, gemms);
  EXPECT_EQ(Sum(backward).launches, 24);
  EXPECT_EQ(RowsBesideProducts(backward), 28);
}

// The loss reads the logits and writes their gradient over them in one launch. Of 64 columns 50 are
// words, which are read in vectors of 8.
TEST(OpTrafficTest, TheLossReadsAndWritesTheLogitsOnce) {
  constexpr double kColumns = 2 * 64, kWords = 2 * 56, kNumber = 4;
  const Table step = OfStep(Gpt2(), 2);
  Print("a step of two layers of GPT-2", step);
  const Traffic loss = step.at("CrossEntropy");
  EXPECT_EQ(loss.launches, 1);
  EXPECT_LE(loss.read, kWords);
  EXPECT_LE(loss.written, kColumns + kNumber);
  for (const char* op : {"CrossEntropyStatistics", "CrossEntropyLoss", "CrossEntropyBackward"})
    EXPECT_EQ(step.count(op), 0u) << op;
}

// A parameter in bf16 has a gradient, two moments and a main weight of four bytes, which are read;
// the last three and the parameter are written.
TEST(OpTrafficTest, TheOptimizerPassesOverEachParameterOnce) {
  constexpr double kFfn = 4 * kHidden, kNorms = 2 * 2 * kHidden,
                   kAttention = (3 * kHidden + kHidden) * (kHidden + 1.0),
                   kMlp = 2 * kFfn * kHidden + kFfn + kHidden;
  const Table layer = OfLayer(Gpt2());
  EXPECT_GT(layer.at("AdamWUpdate").other, 0);
  EXPECT_LE(static_cast<double>(layer.at("AdamWUpdate").other),
            1.01 * (4 * 4 + 3 * 4 + 2) * (kNorms + kAttention + kMlp));
}

// The convolution and the norm are computed again in backward. States, and their gradients, pass
// from chunk to chunk in launches of their own, also where sequences have one chunk.
TEST(OpTrafficTest, LayersWithAStateLaunchNoMoreThanThis) {
  const auto launches = [](const char* title, HybridLayer kind) {
    const Table layer = OfLayer(LayersOf(kind));
    Print(title, layer);
    std::map<std::string, int64_t> counts;
    for (const auto& [op, traffic] : layer) {
      if (!absl::StartsWith(op, "Linear")) counts[op] = traffic.launches;
    }
    return counts;
  };
  const std::map<std::string, int64_t> mamba = launches("a Mamba-2 layer", HybridLayer::kMamba),
                                       delta = launches("a gated delta net", HybridLayer::kDelta);
  for (const auto* counts : {&mamba, &delta}) {
    EXPECT_EQ(counts->at("CausalConvForward"), 2);
    EXPECT_EQ(counts->at("GatedNormForward"), 2);
    EXPECT_EQ(counts->at("GatedNormBackward"), 4);
  }
  EXPECT_EQ(mamba.at("CausalConvBackward"), 3);
  EXPECT_EQ(mamba.at("StateSpaceForward"), 3);
  EXPECT_EQ(mamba.at("StateSpaceBackward"), 7);
  EXPECT_EQ(delta.at("CausalConvBackward"), 2);  // there is no bias
  EXPECT_EQ(delta.at("GatedDeltaForward"), 3);
  EXPECT_EQ(delta.at("GatedDeltaBackward"), 7);
}

// Each element of the operands is read once a launch, and each result written once: in bf16 two
// bytes for each of the 4 groups' 2 x 8 + 2 x 6 convolved columns, and of their 2 x 8 normalized.
TEST(OpTrafficTest, ConvolutionsAndGatedNormsMoveTheirOperandsOnce) {
  const Table layer = OfLayer(LayersOf(HybridLayer::kMamba));
  constexpr double kConvolved = 2 * 4 * 28, kNormed = 2 * 4 * 16;
  EXPECT_EQ(layer.at("CausalConvForward").read, 2 * kConvolved);
  EXPECT_EQ(layer.at("CausalConvForward").written, 2 * kConvolved);
  EXPECT_EQ(layer.at("CausalConvBackward").read, 2 * kConvolved);
  EXPECT_EQ(layer.at("CausalConvBackward").written, kConvolved);
  EXPECT_EQ(layer.at("GatedNormForward").read, 2 * 2 * kNormed);
  EXPECT_EQ(layer.at("GatedNormForward").written, 2 * kNormed);
  // The statistics, the sums for gamma and the gradients each read x, z and dy.
  EXPECT_EQ(layer.at("GatedNormBackward").read, 3 * 3 * kNormed);
  EXPECT_EQ(layer.at("GatedNormBackward").written, 2 * kNormed);
}

// A norm of all groups passes over what is normalized once more in either pass, for sums of four
// bytes a token.
TEST(OpTrafficTest, NormsOfAllGroupsReadTheirOperandsOnceMore) {
  ModelOptions model = LayersOf(HybridLayer::kMamba);
  model.transformer.mamba.norm_all_groups = true;
  const Table layer = OfLayer(model);
  constexpr double kNormed = 2 * 4 * 16, kSum = 4;
  const Traffic values = layer.at("GatedNormSums"), gradients = layer.at("GatedNormGradientSums");
  EXPECT_EQ(values.launches, 1);
  EXPECT_EQ(values.read, 2 * kNormed);
  EXPECT_EQ(values.written, kSum);
  EXPECT_EQ(gradients.launches, 1);
  EXPECT_EQ(gradients.read, 3 * kNormed);
  EXPECT_EQ(gradients.written, kSum);
  EXPECT_EQ(layer.at("GatedNormForward").read, 2 * (2 * kNormed + kSum));
}

}  // namespace
}  // namespace megatron
