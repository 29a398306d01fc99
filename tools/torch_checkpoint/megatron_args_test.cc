#include "tools/torch_checkpoint/megatron_args.h"

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using Kind = PickleValue::Kind;

// Arguments as a checkpoint has them.
class Arguments {
 public:
  Arguments() { all_.kind = Kind::kDict; }
  // A copy's values would be those of the original.
  Arguments(Arguments&&) = default;

  Arguments& Set(const std::string& name, int64_t value, Kind kind = Kind::kInt) {
    New(name, kind)->integer = value;
    return *this;
  }
  Arguments& Set(const std::string& name, double value) {
    New(name, Kind::kFloat)->number = value;
    return *this;
  }
  Arguments& Set(const std::string& name, const std::string& value) {
    New(name, Kind::kText)->text = value;
    return *this;
  }
  Arguments& Set(const std::string& name, bool value) {
    return Set(name, static_cast<int64_t>(value), Kind::kBool);
  }
  Arguments& SetList(const std::string& name, const std::vector<int64_t>& values, Kind kind) {
    PickleValue* const list = New(name, kind);
    for (const int64_t value : values) {
      values_.emplace_back();
      values_.back().kind = Kind::kInt;
      values_.back().integer = value;
      list->items.push_back(&values_.back());
    }
    return *this;
  }
  const PickleValue& all() const { return all_; }

 private:
  PickleValue* New(const std::string& name, Kind kind) {
    values_.emplace_back();
    PickleValue* const key = &values_.back();
    key->kind = Kind::kText;
    key->text = name;
    values_.emplace_back();
    PickleValue* const value = &values_.back();
    value->kind = kind;
    all_.entries.emplace_back(key, value);
    return value;
  }

  std::deque<PickleValue> values_;
  PickleValue all_;
};

Arguments Llama() {
  Arguments arguments;
  arguments.Set("num_layers", int64_t{3}).Set("hidden_size", int64_t{32});
  arguments.Set("num_attention_heads", int64_t{4}).Set("ffn_hidden_size", int64_t{24});
  arguments.Set("group_query_attention", true).Set("num_query_groups", int64_t{2});
  arguments.Set("seq_length", int64_t{16}).Set("max_position_embeddings", int64_t{64});
  arguments.Set("position_embedding_type", std::string("rope")).Set("rotary_base", int64_t{500000});
  arguments.Set("normalization", std::string("RMSNorm")).Set("norm_epsilon", 1e-6);
  arguments.Set("swiglu", true).Set("add_bias_linear", false).Set("bf16", true);
  arguments.Set("untie_embeddings_and_output_weights", true);
  arguments.Set("hidden_dropout", 0.0).Set("attention_dropout", 0.0);
  return arguments;
}

TEST(MegatronArgsTest, DescribesTheModel) {
  Arguments arguments = Llama();
  // What says nothing about the model, and what is off.
  arguments.Set("rank", int64_t{5})
      .Set("qk_layernorm", false)
      .Set("num_experts", int64_t{0}, Kind::kNone);
  const auto config = ConfigOfMegatronArgs(arguments.all());
  ASSERT_THAT(config, IsOk());
  const config::ModelConfig& model = config->model();
  EXPECT_EQ(model.num_layers(), 3);
  EXPECT_EQ(model.num_query_groups(), 2);
  EXPECT_EQ(model.position_embedding_type(), config::PositionEmbedding::rope);
  EXPECT_EQ(model.rotary_base(), 500000);
  EXPECT_EQ(model.normalization(), config::Normalization::RMSNorm);
  EXPECT_EQ(model.norm_epsilon(), 1e-6);
  EXPECT_TRUE(model.swiglu());
  EXPECT_TRUE(model.disable_bias_linear());
  EXPECT_FALSE(model.has_num_experts());
  EXPECT_TRUE(config->precision().bf16());
}

TEST(MegatronArgsTest, ReadsListsAndOlderNames) {
  Arguments arguments = Llama();
  arguments.Set("num_experts", int64_t{8}).SetList("moe_layer_freq", {0, 1, 1}, Kind::kList);
  arguments.SetList("window_size", {127, 0}, Kind::kTuple);
  auto config = ConfigOfMegatronArgs(arguments.all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().moe_layer_freq(), "[0,1,1]");
  EXPECT_EQ(config->model().window_size(), 127);
  Arguments old;
  old.Set("num_layers", int64_t{2}).Set("layernorm_epsilon", 1e-4);
  old.Set("normalization", std::string("rmsnorm")).Set("use_rotary_position_embeddings", true);
  config = ConfigOfMegatronArgs(old.all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().norm_epsilon(), 1e-4);
  EXPECT_EQ(config->model().normalization(), config::Normalization::RMSNorm);
  EXPECT_EQ(config->model().position_embedding_type(), config::PositionEmbedding::rope);
}

Arguments Gpt() {
  Arguments arguments;
  arguments.Set("num_layers", int64_t{2}).Set("hidden_size", int64_t{32});
  arguments.Set("num_attention_heads", int64_t{4}).Set("seq_length", int64_t{16});
  arguments.Set("max_position_embeddings", int64_t{64}).Set("swiglu", false);
  return arguments;
}

TEST(MegatronArgsTest, GeluIsExactWithoutTheFusion) {
  auto config = ConfigOfMegatronArgs(Gpt().Set("bias_gelu_fusion", true).all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().activation_func(), config::Activation::gelu_tanh);
  config = ConfigOfMegatronArgs(Gpt().Set("bias_gelu_fusion", false).all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().activation_func(), config::Activation::gelu_erf);
  config = ConfigOfMegatronArgs(Gpt().Set("add_bias_linear", false).all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().activation_func(), config::Activation::gelu_erf);
  config =
      ConfigOfMegatronArgs(Gpt().Set("quick_geglu", true).Set("bias_gelu_fusion", false).all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().activation_func(), config::Activation::quick_gelu);
}

TEST(MegatronArgsTest, YarnHasItsNumbers) {
  const auto yarn = [](const std::string& positions) {
    Arguments arguments = Gpt();
    arguments.Set("position_embedding_type", positions).Set("yarn_rotary_scaling_factor", 32.0);
    arguments.Set("yarn_original_max_position_embeddings", int64_t{2048});
    arguments.Set("yarn_beta_fast", 16.0).Set("yarn_beta_slow", 2.0).Set("yarn_mscale", 0.5);
    arguments.Set("yarn_mscale_all_dim", 0.25).Set("yarn_correction_range_round_to_int", false);
    return ConfigOfMegatronArgs(arguments.all());
  };
  auto config = yarn("yarn");
  ASSERT_THAT(config, IsOk());
  const config::ModelConfig& model = config->model();
  EXPECT_EQ(model.position_embedding_type(), config::PositionEmbedding::yarn);
  EXPECT_EQ(model.yarn_rotary_scaling_factor(), 32);
  EXPECT_EQ(model.yarn_original_max_position_embeddings(), 2048);
  EXPECT_EQ(model.yarn_beta_fast(), 16);
  EXPECT_EQ(model.yarn_beta_slow(), 2);
  EXPECT_EQ(model.yarn_mscale(), 0.5);
  EXPECT_EQ(model.yarn_mscale_all_dim(), 0.25);
  EXPECT_FALSE(model.yarn_correction_range_round_to_int());
  config = yarn("rope");
  ASSERT_THAT(config, IsOk());
  EXPECT_FALSE(config->model().has_yarn_rotary_scaling_factor());
}

TEST(MegatronArgsTest, ABalancedChoiceOfExpertsIsPartOfTheModel) {
  const auto balanced = [](const std::string& by) {
    Arguments arguments = Llama();
    arguments.Set("num_experts", int64_t{4}).Set("moe_router_topk", int64_t{1});
    arguments.Set("moe_router_load_balancing_type", by).Set("moe_router_pre_softmax", true);
    return ConfigOfMegatronArgs(arguments.all());
  };
  auto config = balanced("sinkhorn");
  ASSERT_THAT(config, IsOk());
  ASSERT_EQ(config->model().moe_router_load_balancing_type_size(), 1);
  EXPECT_EQ(config->model().moe_router_load_balancing_type(0),
            config::RouterLoadBalancing::sinkhorn);
  // A loss has no effect on what the model computes.
  config = balanced("aux_loss");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().moe_router_load_balancing_type_size(), 0);
  EXPECT_THAT(balanced("another"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("load-balancing-type")));
}

TEST(MegatronArgsTest, ReadsMegatronDeepSpeedsNames) {
  const auto arguments = [](const std::vector<int64_t>& experts, int64_t groups) {
    Arguments made = Gpt();
    made.SetList("num_experts", experts, Kind::kList).Set("topk", int64_t{1});
    made.Set("use_rotary_position_embeddings", true).Set("rope_theta", int64_t{500000});
    made.Set("num_key_value_heads", groups);
    return made;
  };
  auto config = ConfigOfMegatronRun(arguments({1}, 2).all());
  ASSERT_THAT(config, IsOk());
  EXPECT_FALSE(config->model().has_num_experts());
  EXPECT_EQ(config->model().position_embedding_type(), config::PositionEmbedding::rope);
  EXPECT_EQ(config->model().rotary_base(), 500000);
  EXPECT_TRUE(config->model().group_query_attention());
  EXPECT_EQ(config->model().num_query_groups(), 2);
  // As many as heads are no groups.
  config = ConfigOfMegatronArgs(arguments({1}, 4).all());
  ASSERT_THAT(config, IsOk());
  EXPECT_FALSE(config->model().group_query_attention());
  EXPECT_THAT(ConfigOfMegatronArgs(arguments({8}, 4).all()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("num_experts is a list, [8]: experts of Megatron-DeepSpeed")));
}

TEST(MegatronArgsTest, NumbersOfMupCountWithMupAlone) {
  Arguments arguments = Llama();
  arguments.Set("mup_base_hidden_size", int64_t{32}).Set("mup_embedding_mult", 1.0);
  auto config = ConfigOfMegatronArgs(arguments.all());
  ASSERT_THAT(config, IsOk());
  EXPECT_FALSE(config->model().has_mup_base_hidden_size());
  config = ConfigOfMegatronArgs(arguments.Set("use_mup", true).all());
  ASSERT_THAT(config, IsOk());
  EXPECT_TRUE(config->model().use_mup());
  EXPECT_EQ(config->model().mup_base_hidden_size(), 32);
}

TEST(MegatronArgsTest, SizesOfMixersCountInHybridModelsThatHaveThem) {
  for (const char* const name : {"hybrid_override_pattern", "hybrid_layer_pattern"}) {
    Arguments arguments = Llama();
    arguments.Set("is_hybrid_model", true).Set(name, std::string("M*-"));
    arguments.Set("mamba_state_dim", int64_t{32}).Set("linear_key_head_dim", int64_t{64});
    const auto config = ConfigOfMegatronArgs(arguments.all());
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->model().hybrid_layer_pattern(), "M*-");
    EXPECT_EQ(config->model().mamba_state_dim(), 32);
    EXPECT_FALSE(config->model().has_linear_key_head_dim());
  }
  const auto gated = ConfigOfMegatronArgs(Llama().Set("attention_output_gate", true).all());
  ASSERT_THAT(gated, IsOk());
  EXPECT_TRUE(gated->model().attention_output_gate());
}

// Arguments of a run, as Megatron completes them: with defaults, and with the length in both units.
Arguments TrainingRun() {
  Arguments arguments = Llama();
  arguments.Set("optimizer", std::string("adam")).Set("lr", 3e-4).Set("min_lr", 3e-5);
  arguments.Set("lr_decay_style", std::string("cosine")).Set("lr_warmup_init", 0.0);
  arguments.Set("lr_warmup_iters", int64_t{20}).Set("lr_warmup_samples", int64_t{0});
  arguments.Set("train_iters", int64_t{500}).Set("lr_decay_iters", int64_t{400});
  arguments.Set("weight_decay", 0.1).Set("start_weight_decay", 0.1).Set("end_weight_decay", 0.1);
  arguments.Set("weight_decay_incr_style", std::string("constant"));
  arguments.Set("adam_beta1", 0.9).Set("adam_beta2", 0.95).Set("adam_eps", 1e-8);
  arguments.Set("clip_grad", 1.0).Set("seed", int64_t{7}).Set("split", std::string("99, 1, 0"));
  arguments.Set("micro_batch_size", int64_t{2}).Set("global_batch_size", int64_t{16});
  arguments.Set("eod_mask_loss", true).Set("reset_position_ids", false);
  arguments.Set("lr_wsd_decay_style", std::string("exponential"));
  arguments.Set("initial_loss_scale", 4294967296.0).Set("hysteresis", int64_t{2});
  arguments.Set("train_samples", int64_t{0}, Kind::kNone);
  arguments.Set("moe_aux_loss_coeff", 0.0);
  return arguments;
}

TEST(MegatronArgsTest, DescribesHowTheRunTrains) {
  const auto config = ConfigOfMegatronRun(TrainingRun().all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model().num_layers(), 3);
  const config::OptimizerConfig& optimizer = config->optimizer();
  EXPECT_EQ(optimizer.lr(), 3e-4);
  EXPECT_EQ(optimizer.min_lr(), 3e-5);
  EXPECT_EQ(optimizer.lr_decay_style(), config::LrDecayStyle::cosine);
  EXPECT_EQ(optimizer.lr_decay_iters(), 400);
  EXPECT_EQ(optimizer.lr_warmup_iters(), 20);
  EXPECT_EQ(optimizer.weight_decay(), 0.1);
  EXPECT_EQ(optimizer.adam_beta2(), 0.95);
  EXPECT_EQ(config->train().train_iters(), 500);
  EXPECT_EQ(config->train().global_batch_size(), 16);
  EXPECT_EQ(config->train().seed(), 7);
  // Megatron's default, which is another one here.
  EXPECT_FALSE(config->train().calculate_per_token_loss());
  EXPECT_EQ(config->data().split(), "99,1,0");
  EXPECT_TRUE(config->data().eod_mask_loss());
  EXPECT_FALSE(config->data().has_reset_position_ids());
}

TEST(MegatronArgsTest, ARunCountsInSamplesOrInIterations) {
  Arguments arguments = Llama();
  // Megatron has computed the iterations of the samples.
  arguments.Set("lr", 3e-4).Set("train_samples", int64_t{8000}).Set("train_iters", int64_t{500});
  arguments.Set("lr_decay_samples", int64_t{6400}).Set("lr_warmup_samples", int64_t{320});
  arguments.Set("lr_warmup_iters", int64_t{0}).Set("global_batch_size", int64_t{16});
  arguments.Set("num_experts", int64_t{4}).Set("moe_aux_loss_coeff", 0.01);
  arguments.Set("moe_router_load_balancing_type", std::string("aux_loss"));
  arguments.SetList("rampup_batch_size", {8, 4, 160}, Kind::kList);
  const auto config = ConfigOfMegatronRun(arguments.all());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->train().train_samples(), 8000);
  EXPECT_FALSE(config->train().has_train_iters());
  EXPECT_EQ(config->optimizer().lr_decay_samples(), 6400);
  EXPECT_EQ(config->optimizer().lr_warmup_samples(), 320);
  EXPECT_EQ(config->train().rampup_batch_size().increment(), 4);
  ASSERT_EQ(config->model().moe_aux_loss_coeff_size(), 1);
  EXPECT_EQ(config->model().moe_aux_loss_coeff(0), 0.01);
  // Samples of 16 tokens.
  Arguments tokens = Llama();
  tokens.Set("lr", 3e-4).Set("train_samples", int64_t{8000}).Set("lr_decay_tokens", int64_t{1600});
  tokens.Set("lr_decay_samples", int64_t{1});
  const auto of_tokens = ConfigOfMegatronRun(tokens.all());
  ASSERT_THAT(of_tokens, IsOk());
  EXPECT_EQ(of_tokens->optimizer().lr_decay_samples(), 100);
}

TEST(MegatronArgsTest, ARunWithoutACounterpartIsRefused) {
  EXPECT_THAT(ConfigOfMegatronRun(Llama().Set("split", std::string("1'; b")).all()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split")));
}

TEST(MegatronArgsTest, RefusesWhatHasNoCounterpart) {
  EXPECT_THAT(ConfigOfMegatronArgs(Llama().Set("qk_l2_norm", true).all()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("qk-l2-norm")));
  EXPECT_THAT(ConfigOfMegatronArgs(Llama().Set("moe_apply_probs_on_input", true).all()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("moe-apply-probs-on-input")));
  EXPECT_THAT(
      ConfigOfMegatronArgs(Llama().Set("moe_router_topk_limited_devices", int64_t{2}).all()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("moe-router-topk-limited-devices")));
  EXPECT_THAT(ConfigOfMegatronArgs(Llama().Set("mtp_use_repeated_layer", true).all()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mtp-use-repeated-layer")));
  EXPECT_THAT(ConfigOfMegatronArgs(Arguments().all()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no number of layers")));
  // No value reaches a command line that could end it.
  EXPECT_THAT(ConfigOfMegatronArgs(Llama().Set("softmax_type", std::string("a'; b")).all()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("softmax_type")));
}

}  // namespace
}  // namespace megatron
