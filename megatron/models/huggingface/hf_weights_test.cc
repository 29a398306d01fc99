#include "megatron/models/huggingface/hf_weights.h"

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/models/huggingface/hf_family_models.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

std::vector<HfFamilyModel> Models() {
  std::vector<ModelOptions> models = {SmallGpt2(),  SmallGpt2(), SmallLlama(),       SmallLlama(),
                                      SmallLlama(), SmallBert(), SmallPostNormBert()};
  models[1].tied_embeddings = false;
  models[2].transformer.kv_channels = 6;
  models[3].tied_embeddings = true;
  models[3].transformer.qkv_bias = true;
  models[3].transformer.rotary_options.interleaved = true;
  models[4].transformer.qkv_bias = models[4].transformer.linear_bias = true;
  models[4].transformer.num_query_groups = 1;
  std::vector<HfFamilyModel> all;
  for (const ModelOptions& options : models) all.push_back({"", options});
  for (const HfFamilyModel& family : HfFamilyModels()) {
    all.push_back(family);
    if (family.options.transformer.is_latent()) continue;  // it is interleaved
    all.push_back(family);
    bool& interleaved = all.back().options.transformer.rotary_options.interleaved;
    interleaved = !interleaved;
  }
  return all;
}

// The number of the first row of the tensor's part.
int64_t FirstRow(const HfTensor& tensor) {
  return tensor.part * tensor.part_shape().numel() / tensor.columns;
}

TEST(HfWeightsTest, EachRowOfEachParameterIsInOneTensor) {
  for (const HfFamilyModel& model : Models()) {
    const ModelOptions& options = model.options;
    std::map<std::string, Shape> shapes;
    const auto stage = MakeStage(options, {{DeviceType::kMeta}});
    for (Parameter* parameter : stage->parameters()) {
      shapes.emplace(parameter->name, parameter->sharding.global_shape);
    }
    std::map<std::string, std::set<int64_t>> rows;
    for (const HfTensor& tensor : HfTensors(options, model.model_type)) {
      if (tensor.is_state) continue;
      ASSERT_EQ(shapes.count(tensor.parameter), 1u) << tensor.parameter;
      EXPECT_EQ(shapes[tensor.parameter], tensor.parameter_shape);
      for (int64_t r = 0; r < tensor.rows; ++r) {
        EXPECT_TRUE(rows[tensor.parameter].insert(FirstRow(tensor) + tensor.row(r)).second)
            << tensor.name << " " << r;
      }
      const int64_t all = tensor.parameter_shape.numel() / tensor.columns;
      EXPECT_EQ(tensor.parameter_shape.numel() % tensor.columns, 0);
      EXPECT_LT(*rows[tensor.parameter].rbegin(), all);
    }
    ASSERT_EQ(rows.size(), shapes.size());
    for (const auto& [name, shape] : shapes) {
      const bool vocabulary =
          name == "embedding.word_embeddings.weight" || absl::StartsWith(name, "output_layer.");
      const int64_t columns = shape.rank() == 1 || absl::StrContains(name, "bias") ||
                                      absl::StrContains(name, "norm") ||
                                      absl::StrContains(name, "softmax_offset")
                                  ? 1
                                  : shape[-1];
      EXPECT_EQ(static_cast<int64_t>(rows[name].size()),
                vocabulary ? options.vocab_size : shape.numel() / columns)
          << name;
    }
  }
}

TEST(HfWeightsTest, CopyingThereAndBackIsTheIdentity) {
  for (const HfFamilyModel& model : Models()) {
    for (int64_t size : {1, 2, 4, 8}) {
      for (const HfTensor& tensor : HfTensors(model.options, model.model_type)) {
        std::vector<char> theirs(static_cast<size_t>(tensor.rows * tensor.columns * size));
        for (size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<char>(i * 31 + i / 256);
        std::vector<char> ours(static_cast<size_t>(tensor.part_shape().numel() * size));
        std::vector<char> back(theirs.size());
        CopyFromHf(tensor, size, theirs.data(), ours.data());
        CopyToHf(tensor, size, ours.data(), back.data());
        EXPECT_EQ(back, theirs) << tensor.name;
      }
    }
  }
}

TEST(HfWeightsTest, ABertWithoutTokenTypesHasZerosForThem) {
  ModelOptions options = SmallBert();
  options.num_token_types = 0;
  std::vector<std::string> without;
  for (const HfTensor& tensor : HfTensors(options)) {
    if (!tensor.parameter.empty()) continue;
    without.push_back(tensor.name);
    EXPECT_THAT(tensor.shape, ElementsAre(2, options.transformer.hidden_size));
  }
  EXPECT_THAT(without, ElementsAre("bert.embeddings.token_type_embeddings.weight"));
}

// The rows of the first tensor of that name.
std::vector<int64_t> RowsOf(const ModelOptions& options, const std::string& name) {
  std::vector<int64_t> rows;
  for (const HfTensor& tensor : HfTensors(options)) {
    if (tensor.name != name) continue;
    for (int64_t r = 0; r < tensor.rows; ++r) rows.push_back(tensor.row(r));
  }
  return rows;
}

TEST(HfWeightsTest, QueriesKeysAndValuesAreTakenOutOfTheirGroups) {
  ModelOptions options = SmallLlama();
  options.transformer.num_attention_heads = 4;
  options.transformer.num_query_groups = 2;
  options.transformer.kv_channels = 2;
  const std::string prefix = "model.layers.0.self_attn.";
  EXPECT_THAT(RowsOf(options, prefix + "q_proj.weight"), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(RowsOf(options, prefix + "k_proj.weight"), ElementsAre(4, 5, 12, 13));
  EXPECT_THAT(RowsOf(options, prefix + "v_proj.weight"), ElementsAre(6, 7, 14, 15));
  options.transformer.kv_channels = 4;
  options.transformer.rotary_options.interleaved = true;
  EXPECT_THAT(RowsOf(options, prefix + "k_proj.weight"), ElementsAre(8, 10, 9, 11, 24, 26, 25, 27));
  EXPECT_THAT(RowsOf(options, prefix + "v_proj.weight"),
              ElementsAre(12, 13, 14, 15, 28, 29, 30, 31));
}

TEST(HfWeightsTest, Conv1dIsTransposed) {
  ModelOptions options = SmallGpt2();
  for (const HfTensor& tensor : HfTensors(options)) {
    if (tensor.name != "transformer.h.1.mlp.c_fc.weight") continue;
    EXPECT_THAT(tensor.shape, ElementsAre(32, 48));
    std::vector<uint16_t> ours(48 * 32), theirs(48 * 32);
    for (size_t i = 0; i < ours.size(); ++i) ours[i] = static_cast<uint16_t>(i);
    CopyToHf(tensor, 2, reinterpret_cast<const char*>(ours.data()),
             reinterpret_cast<char*>(theirs.data()));
    EXPECT_EQ(theirs[5 * 48 + 7], ours[7 * 32 + 5]);
    return;
  }
  FAIL() << "there is no c_fc";
}

// The tensor of that name; the model type is that of the options.
HfTensor Named(const ModelOptions& options, const std::string& name) {
  for (const HfTensor& tensor : HfTensors(options)) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "there is no " << name;
  return HfTensor();
}

const ModelOptions& FamilyModel(const std::string& model_type) {
  static const auto* const models = new std::vector<HfFamilyModel>(HfFamilyModels());
  for (const HfFamilyModel& model : *models) {
    if (model.model_type == model_type) return model.options;
  }
  ADD_FAILURE() << model_type;
  return models->front().options;
}

TEST(HfWeightsTest, AnExpertOfMixtralIsPartOfTheParameterOfAll) {
  const ModelOptions& options = FamilyModel("mixtral");
  const HfTensor up = Named(options, "model.layers.1.block_sparse_moe.experts.3.w3.weight");
  EXPECT_EQ(up.parameter, "decoder.layers.1.mlp.experts.experts.linear_fc1.weight");
  EXPECT_THAT(up.shape, ElementsAre(24, 32));
  EXPECT_EQ(up.part_shape(), (Shape{1, 2, 24, 32}));
  EXPECT_EQ(up.part_offset(), (Shape{3, 0, 0, 0}));
  EXPECT_EQ(up.row(5), 24 + 5);
  EXPECT_EQ(Named(options, "model.layers.1.block_sparse_moe.experts.3.w1.weight").row(5), 5);
}

TEST(HfWeightsTest, GatesAndUpsOfGptOssTakeTurns) {
  const ModelOptions& options = FamilyModel("gpt_oss");
  const HfTensor tensor = Named(options, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_THAT(tensor.shape, ElementsAre(5, 32, 48));
  std::vector<uint32_t> ours(5 * 2 * 24 * 32), theirs(ours.size());
  for (size_t i = 0; i < ours.size(); ++i) ours[i] = static_cast<uint32_t>(i);
  CopyToHf(tensor, 4, reinterpret_cast<const char*>(ours.data()),
           reinterpret_cast<char*>(theirs.data()));
  // Expert 2, input 7, gate 10 and up 10.
  EXPECT_EQ(theirs[(2 * 32 + 7) * 48 + 20], ours[((2 * 2 + 0) * 24 + 10) * 32 + 7]);
  EXPECT_EQ(theirs[(2 * 32 + 7) * 48 + 21], ours[((2 * 2 + 1) * 24 + 10) * 32 + 7]);
}

TEST(HfWeightsTest, ARotatedShareOfAHeadIsReordered) {
  ModelOptions options = FamilyModel("phi3");  // six of eight channels rotate
  options.transformer.rotary_options.interleaved = true;
  const HfTensor tensor = Named(options, "model.layers.0.self_attn.qkv_proj.weight");
  std::vector<int64_t> channels;
  for (int64_t r = 0; r < 8; ++r) channels.push_back(tensor.row(r));
  EXPECT_THAT(channels, ElementsAre(0, 2, 4, 1, 3, 5, 6, 7));
}

// Two groups of a key head of 6 channels and two value heads of 10.
TEST(HfWeightsTest, MixersOfQwen3NextAreCutByGroupsHere) {
  const ModelOptions& options = FamilyModel("qwen3_next");
  const std::string theirs = "model.layers.1.linear_attn";
  const HfTensor vectors = Named(options, theirs + ".in_proj_qkvz.weight");
  EXPECT_EQ(vectors.parameter, "decoder.layers.2.self_attention.in_proj.weight");
  EXPECT_THAT(vectors.shape, ElementsAre(2 * 52, 32));
  EXPECT_EQ(vectors.row(51), 51);
  EXPECT_EQ(vectors.row(52), 56);  // the second group's first query channel
  const HfTensor scalars = Named(options, theirs + ".in_proj_ba.weight");
  EXPECT_EQ(scalars.row(0), 52);
  EXPECT_EQ(scalars.row(4), 56 + 52);
  const HfTensor taps = Named(options, theirs + ".conv1d.weight");
  EXPECT_THAT(taps.shape, ElementsAre(2 * 32, 1, 4));
  EXPECT_EQ(taps.row(6), 32);        // the second group's first query channel
  EXPECT_EQ(taps.row(12), 6);        // the first key channel
  EXPECT_EQ(taps.row(24), 12);       // the first value channel
  EXPECT_EQ(taps.row(44), 32 + 12);  // a row of the second group
}

// Two groups of two heads of 16 channels.
TEST(HfWeightsTest, AGateStandsBehindEachQueryThereAndBehindAllOfItsGroupHere) {
  const ModelOptions& options = FamilyModel("qwen3_next");
  const HfTensor queries = Named(options, "model.layers.2.self_attn.q_proj.weight");
  EXPECT_EQ(queries.parameter, "decoder.layers.4.self_attention.linear_qkv.weight");
  EXPECT_EQ(queries.parameter_shape, (Shape{2, 6, 16, 32}));
  EXPECT_EQ(queries.row(16), 2 * 16);  // the first head's gate
  EXPECT_EQ(queries.row(32), 1 * 16);  // the second head
  EXPECT_EQ(queries.row(48), 3 * 16);
  EXPECT_EQ(queries.row(64), 6 * 16);  // the first head of the second group
  EXPECT_EQ(Named(options, "model.layers.2.self_attn.k_proj.weight").row(16), (6 + 4) * 16);
  EXPECT_EQ(Named(options, "model.layers.2.self_attn.v_proj.weight").row(0), 5 * 16);
}

// Two groups of two heads of 16 channels, with states of 6 channels: a group has 78 rows of the
// projection and 44 channels of the convolution.
TEST(HfWeightsTest, PartsOfGroupsStandTogetherHereAndThoseOfAllGroupsThere) {
  ModelOptions options = FamilyModel("mamba2");
  options.transformer.mamba.num_groups = 2;
  options.transformer.mamba.norm_all_groups = true;
  const auto rows_are = [&](const char* name, const std::map<int64_t, int64_t>& ours_of_theirs) {
    const HfTensor tensor = Named(options, std::string("backbone.layers.0.mixer.") + name);
    for (const auto& [theirs, ours] : ours_of_theirs)
      EXPECT_EQ(tensor.row(theirs), ours) << name << " " << theirs;
  };
  rows_are("in_proj.weight", {{31, 31},        // gates
                              {32, 78},        // those of the second group
                              {64, 32},        // x
                              {96, 78 + 32},   //
                              {128, 64},       // B
                              {134, 78 + 64},  //
                              {140, 70},       // C
                              {146, 78 + 70},  //
                              {153, 77},       // steps
                              {155, 78 + 77}});
  for (const char* name : {"conv1d.weight", "conv1d.bias"}) {
    rows_are(name, {{31, 31}, {32, 44}, {64, 32}, {70, 44 + 32}, {76, 38}, {87, 44 + 43}});
  }
  rows_are("norm.weight", {{32, 32}, {63, 63}});
}

// Six of twelve channels rotate.
TEST(HfWeightsTest, NeighboursThatRotateThereMayBeHalvesHere) {
  ModelOptions options = FamilyModel("glm");
  const auto channels = [&] {
    const HfTensor tensor = Named(options, "model.layers.0.self_attn.q_proj.weight");
    std::vector<int64_t> rows;
    for (int64_t r = 0; r < 8; ++r) rows.push_back(tensor.row(r));
    return rows;
  };
  EXPECT_THAT(channels(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  options.transformer.rotary_options.interleaved = false;
  EXPECT_THAT(channels(), ElementsAre(0, 3, 1, 4, 2, 5, 6, 7));
}

TEST(HfWeightsTest, NamesOfOtherMlpsAndNorms) {
  const std::string layer = "model.layers.1.";
  const HfTensor up = Named(FamilyModel("starcoder2"), layer + "mlp.c_fc.bias");
  EXPECT_EQ(up.parameter, "decoder.layers.1.mlp.linear_fc1.bias");
  const HfTensor bias = Named(FamilyModel("nemotron"), layer + "post_attention_layernorm.bias");
  EXPECT_EQ(bias.parameter, "decoder.layers.1.mlp.linear_fc1.layer_norm_bias");
  EXPECT_EQ(Named(FamilyModel("nemotron"), "model.norm.bias").parameter,
            "decoder.final_layernorm.bias");
  EXPECT_EQ(Named(FamilyModel("glm4"), layer + "post_self_attn_layernorm.weight").parameter,
            "decoder.layers.1.post_self_attn_layernorm.weight");
  EXPECT_EQ(Named(FamilyModel("glm4"), layer + "post_attention_layernorm.weight").parameter,
            "decoder.layers.1.mlp.linear_fc1.layer_norm_weight");
  const HfTensor gates = Named(FamilyModel("glm4"), layer + "mlp.gate_up_proj.weight");
  EXPECT_THAT(gates.shape, ElementsAre(48, 32));
}

TEST(HfWeightsTest, BiasesOfGptJAreThoseOfMlpsAndCoheresNormsHaveNone) {
  const auto names = [](const char* model_type, const std::string& suffix) {
    std::vector<std::string> found;
    for (const HfTensor& tensor : HfTensors(FamilyModel(model_type))) {
      const bool other_layer =
          absl::StrContains(tensor.name, ".1.") || absl::StrContains(tensor.name, ".2.");
      if (!other_layer && absl::EndsWith(tensor.name, suffix)) found.push_back(tensor.name);
    }
    return found;
  };
  const std::string gptj = "transformer.h.0.";
  EXPECT_THAT(names("gptj", ".bias"),
              ElementsAre(gptj + "ln_1.bias", gptj + "mlp.fc_in.bias", gptj + "mlp.fc_out.bias",
                          "transformer.ln_f.bias", "lm_head.bias"));
  EXPECT_THAT(names("gptj", "proj.weight"),
              ElementsAre(gptj + "attn.q_proj.weight", gptj + "attn.k_proj.weight",
                          gptj + "attn.v_proj.weight", gptj + "attn.out_proj.weight"));
  EXPECT_THAT(names("cohere", ".bias"), ElementsAre());
  EXPECT_THAT(names("cohere", "norm.weight"),
              ElementsAre("model.layers.0.input_layernorm.weight", "model.norm.weight"));
}

TEST(HfWeightsTest, GptBigCodeHasGpt2sNamesAndRowsInOurOrder) {
  const ModelOptions& options = FamilyModel("gpt_bigcode");
  const HfTensor qkv = Named(options, "transformer.h.1.attn.c_attn.weight");
  EXPECT_THAT(qkv.shape, ElementsAre((4 + 2) * 8, 32));
  EXPECT_EQ(qkv.transposed, 0);
  for (int64_t r = 0; r < qkv.rows; ++r) EXPECT_EQ(qkv.row(r), r);
  EXPECT_THAT(Named(options, "transformer.wpe.weight").shape, ElementsAre(64, 32));
  EXPECT_EQ(Named(options, "transformer.h.2.ln_2.bias").parameter,
            "decoder.layers.2.mlp.linear_fc1.layer_norm_bias");
}

// Four query heads and two key heads of eight channels.
TEST(HfWeightsTest, GainsOfHeadsAreOneTensorOrOneOfEach) {
  ModelOptions cohere = FamilyModel("cohere");
  cohere.transformer.qk_norm = cohere.transformer.qk_norm_each_head = true;
  const HfTensor queries = Named(cohere, "model.layers.1.self_attn.q_norm.weight");
  EXPECT_EQ(queries.parameter, "decoder.layers.1.self_attention.q_layernorm.weight");
  EXPECT_EQ(queries.parameter_shape, (Shape{4, 8}));
  EXPECT_THAT(queries.shape, ElementsAre(4, 8));
  EXPECT_EQ(queries.row(13), 13);
  // With the halves of what rotates here, the second channel of a head is the first one's partner.
  cohere.transformer.rotary_options.interleaved = false;
  EXPECT_EQ(Named(cohere, "model.layers.1.self_attn.q_norm.weight").row(8 + 1), 8 + 4);

  ModelOptions stablelm = FamilyModel("stablelm");
  stablelm.transformer.qk_norm = stablelm.transformer.qk_norm_each_head = true;
  const HfTensor key = Named(stablelm, "model.layers.2.self_attn.k_layernorm.norms.1.weight");
  EXPECT_EQ(key.parameter, "decoder.layers.2.self_attention.k_layernorm.weight");
  EXPECT_THAT(key.shape, ElementsAre(8));
  EXPECT_EQ(key.part_shape(), (Shape{1, 8}));
  EXPECT_EQ(key.part_offset(), (Shape{1, 0}));
  EXPECT_EQ(Named(stablelm, "model.layers.2.self_attn.q_layernorm.norms.3.weight").part, 3);
}

TEST(HfWeightsTest, AllExpertsOfGraniteAreOneTensorInOurOrder) {
  for (const HfFamilyModel& model : HfFamilyModels()) {
    if (model.model_type != "granitemoehybrid" || model.options.transformer.moe.num_experts == 0)
      continue;
    const HfTensor inputs =
        Named(model.options, "model.layers.1.block_sparse_moe.input_linear.weight");
    EXPECT_EQ(inputs.parameter, "decoder.layers.3.mlp.experts.experts.linear_fc1.weight");
    EXPECT_THAT(inputs.shape, ElementsAre(5, 48, 32));
    const HfTensor mixer = Named(model.options, "model.layers.0.mamba.in_proj.weight");
    EXPECT_EQ(mixer.parameter_shape, (Shape{1, 2 * 64 + 2 * 6 + 4, 32}));
    return;
  }
  ADD_FAILURE() << "no Granite with experts";
}

TEST(HfWeightsTest, GroupsOfQueriesKeysAndValuesAreInOurOrder) {
  const auto layers = [](const ModelOptions& options, const char* suffix) {
    std::vector<std::string> parameters;
    for (const HfTensor& tensor : HfTensors(options)) {
      if (absl::EndsWith(tensor.name, suffix)) parameters.push_back(tensor.parameter);
    }
    return parameters;
  };
  ModelOptions falcon = FamilyModel("falcon");
  const std::string name = "transformer.h.1.self_attention.query_key_value.weight";
  HfTensor qkv = Named(falcon, name);
  EXPECT_EQ(qkv.parameter, "decoder.layers.1.self_attention.linear_qkv.weight");
  EXPECT_THAT(qkv.shape, ElementsAre(6 * 8, 32));
  for (int64_t r = 0; r < qkv.rows; ++r) EXPECT_EQ(qkv.row(r), r);
  // With other pairs here, channels of queries and keys change places, and those of values do not.
  falcon.transformer.rotary_options.interleaved = true;
  qkv = Named(falcon, name);
  EXPECT_EQ(qkv.row(1), 2);
  EXPECT_EQ(qkv.row(4 * 8 + 4), 4 * 8 + 1);
  EXPECT_EQ(qkv.row(5 * 8 + 1), 5 * 8 + 1);
  // One norm stands in front of both branches, or one of each.
  const std::string attention = "decoder.layers.2.self_attention.linear_qkv.layer_norm_bias",
                    mlp = "decoder.layers.2.mlp.linear_fc1.layer_norm_bias";
  EXPECT_THAT(layers(falcon, "h.2.input_layernorm.bias"), ElementsAre(attention));
  EXPECT_THAT(layers(falcon, "layernorm.bias"), testing::SizeIs(3));
  falcon.transformer.parallel_shared_norm = false;
  EXPECT_THAT(layers(falcon, "h.2.ln_attn.bias"), ElementsAre(attention));
  EXPECT_THAT(layers(falcon, "h.2.ln_mlp.bias"), ElementsAre(mlp));
  EXPECT_THAT(layers(FamilyModel("phi"), "lm_head.bias"), ElementsAre("output_layer.bias"));
  const ModelOptions& neox = FamilyModel("gpt_neox");
  EXPECT_THAT(layers(neox, "layers.2.post_attention_layernorm.bias"), ElementsAre(mlp));
  EXPECT_THAT(layers(neox, "embed_out.weight"), ElementsAre("output_layer.weight"));
  EXPECT_THAT(Named(neox, "gpt_neox.layers.0.attention.query_key_value.bias").shape,
              ElementsAre(4 * 3 * 8));
}

TEST(HfWeightsTest, KnowsNamesOfOtherVersions) {
  EXPECT_EQ(HfNameWithoutHead(HfTensors(SmallGpt2())[0]), "wte.weight");
  EXPECT_EQ(HfNameWithoutHead(HfTensors(SmallLlama())[0]), "");
  EXPECT_TRUE(IsHfBuffer("h.3.attn.bias"));
  EXPECT_TRUE(IsHfBuffer("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsHfBuffer("h.3.attn.c_attn.bias"));
  EXPECT_TRUE(IsHfBuffer("gpt_neox.layers.3.attention.bias"));
  EXPECT_TRUE(IsHfBuffer("gpt_neox.layers.3.attention.masked_bias"));
  EXPECT_FALSE(IsHfBuffer("gpt_neox.layers.3.attention.dense.bias"));
  EXPECT_EQ(HfCopiedParameter("embed_out.weight"), "embedding.word_embeddings.weight");
  EXPECT_TRUE(IsHfBuffer("bert.embeddings.position_ids"));
  EXPECT_EQ(HfCopiedParameter("lm_head.weight"), "embedding.word_embeddings.weight");
  EXPECT_EQ(HfCopiedParameter("cls.predictions.decoder.bias"), "output_layer.bias");
  EXPECT_EQ(HfCopiedParameter("cls.predictions.bias"), "");
}

}  // namespace
}  // namespace megatron
