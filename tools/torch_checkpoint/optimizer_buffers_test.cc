#include "tools/torch_checkpoint/optimizer_buffers.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/models/make_stage.h"
#include "tools/torch_checkpoint/bucket_test_writer.h"
#include "tools/torch_checkpoint/torch_import.h"
#include "tools/torch_checkpoint/torch_test_writer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, TestTensor>;

constexpr char kFc1[] = "decoder.layers.1.mlp.linear_fc1.weight";

// Gates, grouped queries with norms, no biases, and an output matrix of its own.
ModelOptions Llama() {
  ModelOptions options;
  TransformerOptions& layer = options.transformer;
  layer.num_layers = 4;
  layer.hidden_size = 24;
  layer.ffn_hidden_size = 20;
  layer.num_attention_heads = 4;
  layer.num_query_groups = 2;
  layer.kv_channels = 6;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.gated = layer.rotary = layer.qk_norm = true;
  layer.linear_bias = layer.qkv_bias = false;
  layer.dtype = DType::kBFloat16;
  options.vocab_size = 50;
  options.padded_vocab_size = 64;
  options.max_positions = 16;
  options.learned_positions = options.tied_embeddings = false;
  return options;
}

// Biases, positions that are learned, and one table of words.
ModelOptions Gpt() {
  ModelOptions options;
  TransformerOptions& layer = options.transformer;
  layer.num_layers = 4;
  layer.hidden_size = 24;
  layer.ffn_hidden_size = 96;
  layer.num_attention_heads = layer.num_query_groups = 4;
  layer.kv_channels = 6;
  layer.dtype = DType::kFloat32;
  options.vocab_size = options.padded_vocab_size = 64;
  options.max_positions = 17;  // no multiple of 64 elements
  return options;
}

// Experts behind a dense layer, and one that all tokens see, with a gate.
ModelOptions Mixture() {
  ModelOptions options = Llama();
  MoeOptions& moe = options.transformer.moe;
  moe.num_experts = 4;
  moe.layers = {false, true, true, true};
  moe.ffn_hidden_size = 16;
  moe.shared_ffn_hidden_size = 12;
  moe.shared_expert_gate = true;
  return options;
}

// Experts with biases in all layers.
ModelOptions BiasedMixture() {
  ModelOptions options = Gpt();
  options.transformer.moe.num_experts = 4;
  options.transformer.moe.ffn_hidden_size = 10;
  return options;
}

// The same with latent attention.
ModelOptions Latent() {
  ModelOptions options = Mixture();
  TransformerOptions& layer = options.transformer;
  layer.num_query_groups = layer.num_attention_heads;
  layer.value_channels = 5;
  layer.latent.kv_rank = 7;
  layer.latent.q_rank = 9;
  layer.latent.rotated_size = 2;
  return options;
}

// Random masters and moments, and weights that are the rounded masters.
Tensors RandomRun(const ModelOptions& model) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Tensors tensors;
  const auto stage = MakeStage(model, {{DeviceType::kMeta}});
  for (const Parameter* parameter : stage->parameters()) {
    TestTensor tensor = {parameter->sharding.global_shape.dims(), {}};
    tensor.values.resize(static_cast<size_t>(parameter->sharding.global_shape.numel()));
    for (const char* state : {"fp32_param", "exp_avg", "exp_avg_sq"}) {
      for (float& value : tensor.values) value = normal(random);
      tensors[absl::StrCat("optimizer.state.", state, ".", parameter->name)] = tensor;
      if (absl::string_view(state) != "fp32_param") continue;
      TestTensor& weight = tensors[parameter->name] = tensor;
      if (model.transformer.dtype != DType::kBFloat16) continue;
      for (float& value : weight.values) value = ToFloat(ToBFloat16(value));
    }
  }
  return tensors;
}

// An opened checkpoint.
struct Opened {
  std::unique_ptr<DcpWeights> checkpoint;
  absl::StatusOr<OptimizerBuffers> buffers = absl::UnknownError("not opened");
};

class OptimizerBuffersTest : public ::testing::Test {
 protected:
  // Writes a run as ranks of one layout would, and opens it as one of another. `change` changes the
  // text of .metadata.
  Opened Open(const ModelOptions& model, const Tensors& tensors, const BucketTestLayout& written,
              const BucketTestLayout& read, const std::function<void(std::string*)>& change = {}) {
    const std::string directory = Directory();
    EXPECT_THAT(PosixFileSystem().CreateDirs(directory), IsOk());
    DcpWriter writer;
    for (const auto& [name, tensor] : tensors) {
      if (!absl::StartsWith(name, "optimizer."))
        writer.Add(name, tensor, std::vector<int64_t>(tensor.shape.size(), 1));
    }
    AddBuckets(tensors, written, {7}, &writer);
    if (add_ != nullptr) add_(&writer);
    writer.Write(directory);
    if (change != nullptr) {
      std::string metadata = writer.Metadata();
      change(&metadata);
      std::ofstream(JoinPath(directory, ".metadata"), std::ios::binary) << metadata;
    }
    return Reopen(model, read);
  }

  // Opens what is there.
  Opened Reopen(const ModelOptions& model, const BucketTestLayout& read) {
    Opened opened;
    auto checkpoint = DcpWeights::Open(Directory());
    if (!checkpoint.ok()) {
      opened.buffers = checkpoint.status();
      return opened;
    }
    opened.checkpoint = *std::move(checkpoint);
    const auto import = TorchImport::Match(*opened.checkpoint, model);
    if (!import.ok()) {
      opened.buffers = import.status();
      return opened;
    }
    MegatronLayout layout;
    layout.tensor_parallel = static_cast<int>(read.tensor);
    layout.stages = static_cast<int>(read.stages);
    layout.chunks = static_cast<int>(read.chunks);
    layout.expert_parallel = static_cast<int>(read.expert);
    layout.expert_tensor_parallel =
        static_cast<int>(read.expert > 1 ? read.expert_tensor : read.tensor);
    opened.buffers = OptimizerBuffers::Open(*opened.checkpoint, model, layout, import->Blocks());
    return opened;
  }

  std::function<void(DcpWriter*)> add_;  // adds more to what is written

  static std::string Directory() { return JoinPath(testing::TempDir(), "buffers"); }

  void ExpectReads(const ModelOptions& model, const Tensors& tensors,
                   const BucketTestLayout& layout) {
    const Opened opened = Open(model, tensors, layout, layout);
    ASSERT_THAT(opened.buffers, IsOk());
    EXPECT_TRUE(OptimizerBuffers::AreIn(*opened.checkpoint));
    for (const auto& [name, tensor] : tensors) {
      absl::string_view parameter = name;
      if (!absl::ConsumePrefix(&parameter, "optimizer.state.")) continue;
      const absl::string_view state = parameter.substr(0, parameter.find('.'));
      parameter.remove_prefix(state.size() + 1);
      std::vector<float> values(tensor.values.size());
      ASSERT_THAT(opened.buffers->Read(state, std::string(parameter),
                                       Tensor(values.data(), DType::kFloat32, Shape(tensor.shape))),
                  IsOk());
      EXPECT_EQ(values, tensor.values) << name;
    }
  }

  void ExpectRefused(const Opened& opened, absl::StatusCode code, const char* message) {
    EXPECT_THAT(opened.buffers.status(), StatusIs(code, HasSubstr(message)));
  }
};

// The states come back whatever the layout was.
TEST_F(OptimizerBuffersTest, ReadsBuffersOfAnyLayout) {
  const std::vector<BucketTestLayout> layouts = {
      {},
      {/*tensor=*/2, /*stages=*/1, /*chunks=*/1, /*data=*/3},
      {/*tensor=*/1, /*stages=*/2, /*chunks=*/1, /*data=*/2, /*bucket_size=*/2000},
      {/*tensor=*/2, /*stages=*/4, /*chunks=*/1, /*data=*/5, /*bucket_size=*/500},
      {/*tensor=*/2, /*stages=*/2, /*chunks=*/2, /*data=*/1, /*bucket_size=*/300},
      {/*tensor=*/2, /*stages=*/2, /*chunks=*/1, /*data=*/4, /*bucket_size=*/0,
       /*transformer_engine=*/false},
  };
  for (const ModelOptions& model : {Llama(), Gpt()}) {
    const Tensors tensors = RandomRun(model);
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("layout ", i));
      ExpectReads(model, tensors, layouts[i]);
    }
  }
}

// Where ranks have different experts, these have an optimizer of their own.
TEST_F(OptimizerBuffersTest, ReadsBuffersOfExperts) {
  std::vector<BucketTestLayout> layouts(6);
  layouts[1].tensor = layouts[1].stages = 2;
  layouts[2].grouped_experts = false;
  layouts[2].tensor = 2;
  layouts[2].transformer_engine = false;
  layouts[3].expert = 4;
  layouts[3].expert_tensor = 2;
  layouts[3].data = 3;
  // The first part has no experts.
  layouts[4] = {/*tensor=*/2, /*stages=*/2, /*chunks=*/2, /*data=*/1, /*bucket_size=*/300};
  layouts[4].expert = 2;
  layouts[5] = {/*tensor=*/1, /*stages=*/4};
  layouts[5].expert = layouts[5].expert_tensor = 2;
  layouts[5].grouped_experts = false;
  ModelOptions latent_of_hidden = Latent();  // its queries are not made of a latent
  latent_of_hidden.transformer.latent.q_rank = 0;
  for (const ModelOptions& model : {Mixture(), BiasedMixture(), Latent(), latent_of_hidden}) {
    const Tensors tensors = RandomRun(model);
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("layout ", i));
      ExpectReads(model, tensors, layouts[i]);
    }
  }
}

TEST_F(OptimizerBuffersTest, ExpertsThatAreSharedInAnotherWayAreRefused) {
  const ModelOptions model = Mixture();
  const Tensors tensors = RandomRun(model);
  BucketTestLayout two, three;
  two.expert = 2;
  three.expert = 3;
  ExpectRefused(Open(model, tensors, two, {}), absl::StatusCode::kDataLoss,
                "--dist-ckpt-optim-fully-reshardable");
  ExpectRefused(Open(model, tensors, {}, two), absl::StatusCode::kDataLoss,
                "--dist-ckpt-optim-fully-reshardable");
  ExpectRefused(Open(model, tensors, two, three), absl::StatusCode::kInvalidArgument,
                "experts are not even over 3 times");
  // Two experts in the place of each other have the same sizes.
  const std::string master =
      "optimizer.state.fp32_param.decoder.layers.2.mlp.experts.experts.linear_fc2.weight";
  Tensors changed = tensors;
  std::vector<float>& values = changed.at(master).values;
  std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4),
              values.end());
  ExpectRefused(Open(model, changed, two, two), absl::StatusCode::kDataLoss, "does not round");
}

TEST_F(OptimizerBuffersTest, AnotherLayoutIsRefused) {
  const ModelOptions model = Llama();
  const Tensors tensors = RandomRun(model);
  const BucketTestLayout one, two = {/*tensor=*/2}, stages = {/*tensor=*/1, /*stages=*/2};
  ExpectRefused(Open(model, tensors, two, one), absl::StatusCode::kDataLoss,
                "--dist-ckpt-optim-fully-reshardable");
  ExpectRefused(Open(model, tensors, one, two), absl::StatusCode::kDataLoss,
                "--dist-ckpt-optim-fully-reshardable");
  ExpectRefused(Open(model, tensors, two, stages), absl::StatusCode::kDataLoss,
                "--dist-ckpt-optim-fully-reshardable");
  ExpectRefused(Open(model, tensors, one, {/*tensor=*/4}), absl::StatusCode::kInvalidArgument,
                "not even over 4 tensor-parallel ranks");
  ExpectRefused(Open(model, tensors, one, {/*tensor=*/1, /*stages=*/3}),
                absl::StatusCode::kInvalidArgument, "4 layers are not even over 3 stages");
}

// Every error says what to do.
TEST_F(OptimizerBuffersTest, MastersThatAreNotTheWeightsAreRefused) {
  const ModelOptions model = Llama();
  const Tensors tensors = RandomRun(model);
  const std::string master = absl::StrCat("optimizer.state.fp32_param.", kFc1);
  Tensors changed = tensors;
  changed[master].values[5] += 1;
  ExpectRefused(Open(model, changed, {}, {}), absl::StatusCode::kDataLoss,
                "the masters of decoder.layers.1.mlp.linear_fc1.weight are to be does not round");
  ExpectRefused(Open(model, changed, {}, {}), absl::StatusCode::kDataLoss,
                "--dist-ckpt-optim-fully-reshardable");
  // Two layers in the place of each other have the same sizes.
  changed = tensors;
  for (const auto& [name, tensor] : tensors) {
    if (!absl::StrContains(name, "optimizer.state.") || !absl::StrContains(name, ".layers.0."))
      continue;
    const std::string other = absl::StrReplaceAll(name, {{".layers.0.", ".layers.1."}});
    std::swap(changed[name], changed[other]);
  }
  ExpectRefused(Open(model, changed, {}, {}), absl::StatusCode::kDataLoss, "does not round");
  // Half of a unit in the last place of bf16 may be rounded either way.
  changed = tensors;
  changed[master].values[5] = 1.00390625f;  // 1 + 1 / 256
  for (const float weight : {1.0f, 1.0078125f}) {
    changed[kFc1].values[5] = weight;
    EXPECT_THAT(Open(model, changed, {}, {}).buffers, IsOk()) << weight;
  }
  changed[kFc1].values[5] = 1.015625f;
  ExpectRefused(Open(model, changed, {}, {}), absl::StatusCode::kDataLoss, "does not round");
}

TEST_F(OptimizerBuffersTest, ParametersWithoutAKnownPlaceAreRefusedByName) {
  ModelOptions model = Llama();
  model.transformer.sandwich_norm = true;
  Opened opened = Open(Llama(), RandomRun(Llama()), {}, {});
  ASSERT_THAT(opened.buffers, IsOk());
  opened.buffers = OptimizerBuffers::Open(*opened.checkpoint, model, {}, {});
  ExpectRefused(opened, absl::StatusCode::kInvalidArgument, "lies among them is not known here");
}

// Replaces text of one length in the names.
std::function<void(std::string*)> Renamed(const std::string& from, const std::string& to) {
  return [from, to](std::string* metadata) {
    EXPECT_TRUE(absl::StrContains(*metadata, from)) << from;
    *metadata = absl::StrReplaceAll(*metadata, {{from, to}});
  };
}

TEST_F(OptimizerBuffersTest, BucketsThatAreMissingAreRefused) {
  const ModelOptions model = Gpt();
  const Tensors tensors = RandomRun(model);
  const BucketTestLayout layout = {/*tensor=*/1, /*stages=*/1, /*chunks=*/1, /*data=*/2,
                                   /*bucket_size=*/8000};
  const auto refused = [&](const std::string& from, const std::string& to, absl::StatusCode code,
                           const char* message) {
    ExpectRefused(Open(model, tensors, layout, layout, Renamed(from, to)), code, message);
  };
  refused("bucket_idx_1.", "bucket_idx_9.", absl::StatusCode::kDataLoss, "a bucket in front of");
  refused("dp_group_idx_0.gb", "dp_group_idx_7.gb", absl::StatusCode::kDataLoss,
          "dp_group_idx_0.gbuf_idx_0 is missing");
  refused("gbuf_idx_0", "gbuf_idx_1", absl::StatusCode::kDataLoss,
          "dp_group_idx_0.gbuf_idx_0 is missing");
  refused("bucket_idx_1.exp_avg_sq", "bucket_idx_1.exp_avg_s_", absl::StatusCode::kInvalidArgument,
          "exp_avg_s_ is none of Adam's");
  refused("bucket_idx_1.exp_avg_sq", "bucket_idX_1.exp_avg_sq", absl::StatusCode::kDataLoss,
          "a bucket has no exp_avg_sq");
  // Buffers of parameters that the model has not, or has in another type.
  const auto add = [](const std::string& buffer) {
    return [buffer](DcpWriter* writer) {
      for (const char* state : {"param", "exp_avg", "exp_avg_sq"}) {
        writer->AddPiece(
            absl::StrCat("optimizer.distributed.dp_group_idx_0.", buffer, "bucket_idx_0.", state),
            2, 0, {1, 2});
      }
    };
  };
  add_ = add("gbuf_idx_1.dtype_(torch.float32, torch.float32).");
  ExpectRefused(Open(model, tensors, layout, layout), absl::StatusCode::kDataLoss,
                "there are 2 of them, not the 1");
  add_ = add("gbuf_idx_0.dtype_(torch.float16, torch.float32).");
  ExpectRefused(Open(model, tensors, layout, layout), absl::StatusCode::kDataLoss, "of its bucket");
}

// No byte that is changed makes the program end or read elsewhere.
TEST_F(OptimizerBuffersTest, DamagedMetadataIsRefusedOrReadsAsOtherValues) {
  ModelOptions model = Llama();
  model.transformer.num_layers = 1;
  model.transformer.qk_norm = false;
  const Tensors tensors = RandomRun(model);
  const BucketTestLayout layout = {/*tensor=*/2, /*stages=*/1, /*chunks=*/1, /*data=*/2};
  const Opened whole = Open(model, tensors, layout, layout);
  ASSERT_THAT(whole.buffers, IsOk());
  const std::string path = JoinPath(Directory(), ".metadata");
  const std::string metadata = ReadFileToString(PosixFileSystem(), path, 1 << 20).value();
  const std::string parameter = "decoder.layers.0.mlp.linear_fc2.weight";
  const TestTensor& tensor = tensors.at(parameter);
  std::vector<float> values(tensor.values.size());
  for (size_t at = 0; at < metadata.size(); at += 41) {
    std::string damaged = metadata;
    damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0x01 : 0x06));
    std::ofstream(path, std::ios::binary) << damaged;
    const Opened opened = Reopen(model, layout);
    if (!opened.buffers.ok()) continue;
    opened.buffers
        ->Read("exp_avg", parameter, Tensor(values.data(), DType::kFloat32, Shape(tensor.shape)))
        .IgnoreError();
  }
}

}  // namespace
}  // namespace megatron
