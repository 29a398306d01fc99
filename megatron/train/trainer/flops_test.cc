#include "megatron/train/trainer/flops.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

config::ModelConfig Model(const std::string& name, std::vector<std::string> overrides = {}) {
  const auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return loaded->config.model();
}

TEST(CountParametersTest, CountsGpt2AsItsAuthorsDid) {
  EXPECT_EQ(CountParameters(Model("gpt2_124m"), 50257), 124439808);
}

TEST(CountParametersTest, CountsLlama) {
  const config::ModelConfig llama2_7b =
      Model("llama_tiny",
            {"model.num_layers=32", "model.hidden_size=4096", "model.ffn_hidden_size=11008",
             "model.num_attention_heads=32", "model.num_query_groups=32", "model.seq_length=4096"});
  EXPECT_EQ(CountParameters(llama2_7b, 32000), 6738415616);
}

TEST(CountParametersTest, CountsTheBiasesAndNormsThatAreAskedFor) {
  const int64_t plain = CountParameters(Model("llama_tiny"), 384);
  // 4 layers; (4 + 2 * 2) heads of 32 channels have a bias; two norms over 32 channels, without
  // biases.
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.add_qkv_bias=true"}), 384),
            plain + 4 * 8 * 32);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.qk_layernorm=true"}), 384),
            plain + 4 * 2 * 32);
  // A gain for each channel of the 4 query heads and the 2 key heads.
  EXPECT_EQ(CountParameters(Model("llama_tiny",
                                  {"model.qk_layernorm=true", "model.qk_layernorm_all_heads=true"}),
                            384),
            plain + 4 * 6 * 32);
  EXPECT_EQ(
      CountParameters(
          Model("llama_tiny", {"model.qk_layernorm=true", "model.qk_layernorm_each_head=true",
                               "model.normalization=LayerNorm", "model.disable_bias_norm=true"}),
          384),
      plain + 4 * 6 * 32);
  EXPECT_EQ(CountParameters(
                Model("llama_tiny", {"model.qk_layernorm=true", "model.qk_layernorm_each_head=true",
                                     "model.normalization=LayerNorm"}),
                384),
            plain + 4 * 6 * 32 + (4 * 2 + 1) * 128);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.reordered_norm=true"}), 384), plain);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.parallel_residual=true"}), 384), plain);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.parallel_residual=true",
                                                 "model.parallel_residual_shared_norm=true"}),
                            384),
            plain - 4 * 128);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.add_output_bias=true"}), 384), plain + 384);
  // A gate and a factor of 320 channels, and what the MLP gives.
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.add_mlp_bias=true"}), 384),
            plain + 4 * (2 * 320 + 128));
  // Two norms of each of 4 layers, and the last one.
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.normalization=LayerNorm"}), 384),
            plain + (4 * 2 + 1) * 128);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.normalization=LayerNorm",
                                                 "model.disable_bias_norm=true"}),
                            384),
            plain);
  // A gate for each of 4 query heads of 32 channels, from a width of 128.
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.attention_output_gate=true"}), 384),
            plain + 4 * 4 * 32 * 128);
  EXPECT_EQ(CountParameters(Model("llama_tiny",
                                  {"model.attention_output_gate=true", "model.add_qkv_bias=true"}),
                            384),
            plain + 4 * (4 * 32 * 128 + (8 + 4) * 32));
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.sandwich_norm=true"}), 384),
            plain + 4 * 2 * 128);
}

// Of hybrid_tiny, by hand: widths of 128, two Mamba-2 layers, a gated delta net, one layer of
// attention, four MLPs.
TEST(CountParametersTest, CountsLayersOfOneBranch) {
  const int64_t mlps = 4 * 2 * 128 * 384;
  // z and x of 8 heads of 32 channels, B and C of 2 groups with states of 32, a step each head; the
  // convolution with its biases; dt_bias, A_log, D; the norm.
  const int64_t mamba =
      128 * (2 * 256 + 2 * 2 * 32 + 8) + 256 * 128 + 5 * (256 + 2 * 2 * 32) + 3 * 8 + 256;
  // q and k of 4 heads of 32 channels, v and gates of 8, betas and decays; dt_bias, A_log; the norm
  // of a head.
  const int64_t delta =
      128 * (2 * 128 + 2 * 256 + 2 * 8) + 256 * 128 + 4 * (2 * 128 + 256) + 2 * 8 + 32;
  const int64_t attention = 128 * 128 + 128 * 2 * 64 + 128 * 128;
  const int64_t norms = 9 * 128, tables = 2 * 384 * 128;
  const int64_t all = mlps + 2 * mamba + delta + attention + norms + tables;
  EXPECT_EQ(CountParameters(Model("hybrid_tiny"), 384), all);
  EXPECT_EQ(all, 912864);
  // An MLP's two biases, and those of attention.
  EXPECT_EQ(CountParameters(Model("hybrid_tiny", {"model.disable_bias_linear=false"}), 384),
            all + 4 * (384 + 128) + (128 + 2 * 64 + 128));
}

// The model of 8 billion parameters of R. Waleffe et al., arXiv 2406.07887, as Megatron's example
// trains it; the vocabulary has 256,000 words.
TEST(CountParametersTest, CountsTheMamba2Hybrid) {
  const std::string pattern = "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-";
  const config::ModelConfig hybrid =
      Model("hybrid_tiny",
            {"model.hybrid_layer_pattern=" + pattern, "model.hidden_size=4096",
             "model.ffn_hidden_size=16384", "model.num_attention_heads=32",
             "model.num_query_groups=8", "model.seq_length=4096", "model.mamba_state_dim=128",
             "model.mamba_head_dim=64", "model.mamba_num_groups=8", "model.linear_key_head_dim=128",
             "model.linear_value_head_dim=128", "model.linear_num_key_heads=16",
             "model.linear_num_value_heads=32"});
  EXPECT_EQ(hybrid.num_layers(), 56);
  EXPECT_EQ(CountParameters(hybrid, 256000), 8654517248);
}

// The closed form of Narayanan et al. (2021), per token.
TEST(FlopsPerTokenTest, AgreesWithThePublishedFormula) {
  const config::ModelConfig gpt3 = Model("gpt3_857m");
  const double h = 1024, L = 24, s = 2048, V = 50304;
  EXPECT_DOUBLE_EQ(FlopsPerToken(gpt3, 50304, FlopsConvention::kClassic),
                   72 * L * h * h * (1 + s / (6 * h) + V / (12 * h * L)));
}

// Megatron counts 7 operations for each channel and element of a state of Mamba-2, and 8 for each
// element of one of a gated delta net.
TEST(FlopsPerTokenTest, CountsLayersOfOneBranch) {
  const double mlps = 4 * 2 * 128 * 384;
  const double mamba = 128 * (2 * 256 + 2 * 2 * 32 + 8) + 256 * 128 + 3.5 * 256 * 32;
  const double delta =
      128 * (2 * 128 + 2 * 256 + 2 * 8) + 256 * 128 + 4 * (2 * 128 + 256) + 4 * 8 * 32 * 32;
  const double attention = 128 * 128 + 128 * 2 * 64 + 128 * 128 + 2 * 128 * 128;
  EXPECT_DOUBLE_EQ(FlopsPerToken(Model("hybrid_tiny"), 384, FlopsConvention::kCausalHalved),
                   6 * (mlps + 2 * mamba + delta + attention + 384 * 128));
}

TEST(FlopsPerTokenTest, HalvesAttentionAloneForTheCausalMask) {
  const config::ModelConfig gpt3 = Model("gpt3_857m");
  const double attention = 12.0 * 24 * 1024 * 2048;  // 12 L h s
  EXPECT_DOUBLE_EQ(FlopsPerToken(gpt3, 50304, FlopsConvention::kClassic) -
                       FlopsPerToken(gpt3, 50304, FlopsConvention::kCausalHalved),
                   attention / 2);
}

TEST(FlopsPerTokenTest, CountsGroupedQueriesAndGates) {
  const config::ModelConfig llama = Model("llama_tiny");
  const double weights =
      4 * (128.0 * 128 * 2 + 128 * 64 * 2 + 128.0 * llama.ffn_hidden_size() * 3) + 384 * 128;
  EXPECT_DOUBLE_EQ(FlopsPerToken(llama, 384, FlopsConvention::kCausalHalved),
                   6 * weights + 6.0 * 4 * 256 * 128);
}

// Of 256 positions each sees the 64 up to its own, as far as there are any, in every second layer.
TEST(FlopsPerTokenTest, CountsWhatWindowsShow) {
  const std::vector<std::string> windows = {"model.window_size=63",
                                            "model.window_attn_skip_freq=2"};
  const config::ModelConfig whole = Model("llama_tiny"), windowed = Model("llama_tiny", windows);
  const double seen = 64 - 64.0 * 64 / (2 * 256);
  for (const auto& [convention, times] : {std::pair{FlopsConvention::kCausalHalved, 1.0},
                                          std::pair{FlopsConvention::kClassic, 2.0}}) {
    EXPECT_DOUBLE_EQ(
        FlopsPerToken(whole, 384, convention) - FlopsPerToken(windowed, 384, convention),
        6 * 2 * 2 * 128 * times * (256.0 / 2 - seen));
  }
}

TEST(CountParametersTest, CountsAdapters) {
  const config::ModelConfig tiny = Model("llama_tiny");
  const int64_t hidden = tiny.hidden_size(), ffn = tiny.ffn_hidden_size();
  const int64_t queries = tiny.num_attention_heads() * tiny.kv_channels();
  const int64_t keys = tiny.num_query_groups() * tiny.kv_channels();
  // The inputs and outputs of linear_qkv, linear_proj, linear_fc1, a pair, and linear_fc2.
  const int64_t features =
      (hidden + queries + 2 * keys) + (queries + hidden) + (hidden + 2 * ffn) + (ffn + hidden);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.lora.dim=8"}), 384),
            CountParameters(tiny, 384) + tiny.num_layers() * 8 * features);
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.lora={dim: 8 target_modules: "
                                                 "\"linear_proj\"}"}),
                            384),
            CountParameters(tiny, 384) + tiny.num_layers() * 8 * (queries + hidden));
}

TEST(CountParametersTest, CountsSinks) {
  EXPECT_EQ(CountParameters(Model("llama_tiny", {"model.softmax_type=learnable"}), 384),
            CountParameters(Model("llama_tiny"), 384) + 4 * 4);
}

const std::vector<std::string> kLatent = {"model.multi_latent_attention=true",
                                          "model.group_query_attention=false",
                                          "model.num_query_groups=",
                                          "model.q_lora_rank=48",
                                          "model.kv_lora_rank=40",
                                          "model.qk_head_dim=24",
                                          "model.qk_pos_emb_head_dim=16",
                                          "model.v_head_dim=20",
                                          "model.qk_layernorm=true"};

// Four heads; what is made from latents, down and up, and back. Grouped attention goes.
TEST(FlopsPerTokenTest, CountsLatentAttention) {
  const config::ModelConfig plain = Model("llama_tiny"), latent = Model("llama_tiny", kLatent);
  const double weights = 128.0 * (48 + 40 + 16) + 48 * 4 * 40 + 40 * 4 * (24 + 20) + 4 * 20 * 128;
  const double grouped = 128.0 * 128 * 2 + 128 * 64 * 2, scores = 4 * 40 + 4 * 20;
  EXPECT_DOUBLE_EQ(FlopsPerToken(latent, 384, FlopsConvention::kCausalHalved) -
                       FlopsPerToken(plain, 384, FlopsConvention::kCausalHalved),
                   6 * 4 * (weights - grouped) + 6 * 4 * (256 / 2) * (scores - 2 * 128));
  EXPECT_EQ(CountParameters(latent, 384) - CountParameters(plain, 384),
            4 * static_cast<int64_t>(weights - grouped + 48 + 40));
}

TEST(FlopsPerTokenTest, CountsValuesOfTheirOwnWidth) {
  const config::ModelConfig plain = Model("llama_tiny"),
                            narrow = Model("llama_tiny", {"model.v_head_dim=20"});
  // Two of four heads' values are made; four outputs are read.
  const double weights = 128.0 * (2 + 4) * (32 - 20);
  EXPECT_DOUBLE_EQ(FlopsPerToken(plain, 384, FlopsConvention::kCausalHalved) -
                       FlopsPerToken(narrow, 384, FlopsConvention::kCausalHalved),
                   6 * 4 * weights + 6 * 4 * (256 / 2) * 4 * (32 - 20));
  EXPECT_EQ(CountParameters(plain, 384) - CountParameters(narrow, 384), 4 * weights);
}

// A layer like the others, a projection from both of its inputs, and the head once more.
TEST(FlopsPerTokenTest, CountsMultiTokenPrediction) {
  const config::ModelConfig plain = Model("llama_tiny"),
                            longer = Model("llama_tiny", {"model.num_layers=6"}),
                            mtp = Model("llama_tiny", {"model.mtp_num_layers=2"});
  const auto flops = [](const config::ModelConfig& model) {
    return FlopsPerToken(model, 384, FlopsConvention::kCausalHalved);
  };
  EXPECT_DOUBLE_EQ(flops(mtp) - flops(longer), 6.0 * 2 * (2 * 128 * 128 + 384 * 128));
  EXPECT_EQ(CountParameters(mtp, 384) - CountParameters(longer, 384),
            2 * (2 * 128 * 128 + 3 * 128));
  EXPECT_GT(flops(longer), flops(plain));
}

TEST(FlopsPerTokenTest, CountsOfExpertsThoseThatATokenGoesTo) {
  const std::vector<std::string> moe = {
      "model.num_experts=8", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=96",
      "model.moe_shared_expert_intermediate_size=64", "model.moe_layer_freq=\"[0]+[1]*3\""};
  const config::ModelConfig dense = Model("llama_tiny"), experts = Model("llama_tiny", moe);
  const int64_t mlp = 3 * 128 * dense.ffn_hidden_size();
  EXPECT_EQ(CountParameters(experts, 384) - CountParameters(dense, 384),
            3 * (3 * 128 * (8 * 96 + 64) + 8 * 128 - mlp));
  EXPECT_DOUBLE_EQ(FlopsPerToken(experts, 384, FlopsConvention::kClassic) -
                       FlopsPerToken(dense, 384, FlopsConvention::kClassic),
                   6.0 * 3 * (3 * 128 * (2 * 96 + 64) + 8 * 128 - static_cast<double>(mlp)));
}

// BERT-Base with its heads, as its authors' (Hugging Face) weights: 110,106,428 numbers.
TEST(CountParametersTest, CountsBert) {
  const config::ModelConfig base =
      Model("bert_345m", {"model.num_layers=12", "model.hidden_size=768",
                          "model.num_attention_heads=12", "model.post_norm=true"});
  EXPECT_EQ(CountParameters(base, 30522), 110106428);
}

// BERT's tokens see all others by either convention, and its head has a layer of its own.
TEST(FlopsPerTokenTest, CountsBert) {
  const config::ModelConfig bert = Model("bert_345m");
  const double h = 1024, L = 24, s = 512, V = 30592;
  for (const FlopsConvention convention :
       {FlopsConvention::kClassic, FlopsConvention::kCausalHalved}) {
    EXPECT_DOUBLE_EQ(FlopsPerToken(bert, 30592, convention),
                     6 * (L * (12 * h * h + 2 * s * h) + h * h + V * h));
  }
}

// T5 1.1 small as its authors' (Hugging Face) weights: 76,961,152 numbers, vocabulary 32,128.
TEST(CountParametersTest, CountsT5) {
  const config::ModelConfig small =
      Model("t5_220m",
            {"model.encoder_num_layers=8", "model.decoder_num_layers=8", "model.hidden_size=512",
             "model.ffn_hidden_size=1024", "model.num_attention_heads=6", "model.kv_channels=64",
             "model.position_embedding_type=relative", "model.normalization=RMSNorm",
             "model.disable_bias_linear=true", "model.gated_linear_unit=true",
             "model.untie_embeddings_and_output_weights=true"});
  EXPECT_EQ(CountParameters(small, 32128), 76961152);
}

// 8 products of the encoder's attention and MLP weights with what it reads, and so on, written out.
TEST(FlopsPerTokenTest, CountsWhatT5ReadsAndWrites) {
  const config::ModelConfig t5 = Model("t5_220m");
  const double h = 768, L = 12, read = 512, written = 128, V = 30720;
  const double encoder = L * read * 12 * h * h, decoder = L * written * (12 + 2) * h * h,
               keys = L * read * 2 * h * h, head = written * V * h;
  const double scores = 2 * h * L * (read * read + written * written / 2 + written * read);
  EXPECT_DOUBLE_EQ(FlopsPerToken(t5, 30720, FlopsConvention::kCausalHalved),
                   6 * (encoder + decoder + keys + head + scores) / read);
}

TEST(PeakFlopsTest, KnowsAcceleratorsByTheirDriversNames) {
  EXPECT_EQ(PeakFlopsPerSecond("NVIDIA H200", MatmulPrecision::kHalf), 989e12);
  EXPECT_EQ(PeakFlopsPerSecond("NVIDIA H100 80GB HBM3", MatmulPrecision::kHalf), 989e12);
  EXPECT_EQ(PeakFlopsPerSecond("NVIDIA H100 PCIe", MatmulPrecision::kHalf), 756e12);
  EXPECT_EQ(PeakFlopsPerSecond("NVIDIA A100-SXM4-80GB", MatmulPrecision::kFp32), 19.5e12);
  EXPECT_EQ(PeakFlopsPerSecond("AMD EPYC 7B13", MatmulPrecision::kFp32), std::nullopt);
}

}  // namespace
}  // namespace megatron
