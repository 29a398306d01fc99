#include "tools/from_megatron/from_megatron.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/configs/config_loader.h"
#include "tools/from_megatron/from_megatron_harness.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(FromMegatronTest, Gpt3OfMegatronIsTheSameRun) {
  const auto result =
      TranslateFile("gpt3_175b.sh", {"ckpt", "tb", "vocab.json", "merges.txt", "my_text_document"});
  ExpectGolden(result, "gpt3_175b.textproto");
  EXPECT_TRUE(result->is_same_run);
  EXPECT_EQ(result->config.parallel().data_parallel_size(), 1);
  EXPECT_EQ(result->config.train().step_batch_size_schedule(),
            "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536");
  EXPECT_EQ(result->config.model().make_vocab_size_divisible_by(), 1024);
}

// 24 layers cannot be shared out evenly over the 16 stages that the script asks for.
TEST(FromMegatronTest, BertOfMegatronHasMoreStagesThanFitItsLayers) {
  const auto result = TranslateFile("bert_340m.sh");
  ExpectGolden(result, "bert_340m.textproto");
  EXPECT_FALSE(result->is_same_run);
  EXPECT_THAT(result->errors, ElementsAre(HasSubstr("model.num_layers = 24: must be divisible by "
                                                    "parallel.pipeline_model_parallel_size = 16")));
  EXPECT_THAT(Texts(*result, Effect::kResults), IsEmpty());
  EXPECT_EQ(result->config.data().tokenizer_type(), config::Tokenizer::BertWordPieceLowerCase);
  EXPECT_THAT(Texts(*result, Effect::kToDo),
              Contains("--data-path $DATA_PATH: the value is the variable DATA_PATH, which the "
                       "script does not set; give it by --variables=DATA_PATH=..., or write it "
                       "into data.data_path"));
}

TEST(FromMegatronTest, T5OfMegatronIsTheSameRun) {
  const auto result = TranslateFile("t5_220m.sh");
  ExpectGolden(result, "t5_220m.textproto");
  EXPECT_TRUE(result->is_same_run);
  EXPECT_EQ(result->config.parallel().data_parallel_size(), 8);
}

TEST(FromMegatronTest, MixtralOfMegatronIsTheSameRun) {
  const auto result = TranslateFile("mixtral_8x7b.sh", {"ckpt", "tokenizer.model", "data"});
  ExpectGolden(result, "mixtral_8x7b.textproto");
  EXPECT_TRUE(result->is_same_run);
  EXPECT_EQ(result->config.parallel().data_parallel_size(), 8);
  // A sequence cannot be divided over one tensor-parallel rank.
  EXPECT_FALSE(result->config.parallel().sequence_parallel());
  EXPECT_THAT(Subjects(*result, Effect::kNothing), Contains("parallel.sequence_parallel"));
}

TEST(FromMegatronTest, Llama3OfMegatronIsTheSameRun) {
  const auto result = TranslateFile("llama3_8b.sh");
  ExpectGolden(result, "llama3_8b.textproto");
  EXPECT_TRUE(result->is_same_run);
  EXPECT_THAT(result->errors, IsEmpty());
  EXPECT_EQ(result->config.train().train_samples(), 1953125000);
  EXPECT_TRUE(result->config.train().calculate_per_token_loss());
  EXPECT_TRUE(result->config.data().mock_data());
}

TEST(FromMegatronTest, GptOssOfMegatronIsTheSameRun) {
  const auto result = TranslateFile("gptoss.sh");
  ASSERT_THAT(result, IsOk());
  ExpectTextIsConfig(*result);
  EXPECT_TRUE(result->is_same_run);
  EXPECT_THAT(result->errors, IsEmpty());
  EXPECT_THAT(Subjects(*result, Effect::kNothing), Contains("--enable-gpt-oss"));
  const config::ModelConfig& model = result->config.model();
  EXPECT_EQ(model.position_embedding_type(), config::PositionEmbedding::rope);
  EXPECT_EQ(model.activation_func(), config::Activation::quick_gelu);
  EXPECT_TRUE(model.gated_linear_unit());
  EXPECT_EQ(model.activation_func_clamp_value(), 7);
  EXPECT_EQ(model.glu_linear_offset(), 1);
  EXPECT_EQ(model.window_size(), 127);
  EXPECT_EQ(model.window_attn_skip_freq(), "2");
  EXPECT_EQ(model.softmax_type(), config::SoftmaxType::learnable);
}

TEST(FromMegatronTest, MambaOfMegatronIsTheSameRun) {
  const auto result = TranslateFile("mamba.sh");
  ASSERT_THAT(result, IsOk());
  ExpectTextIsConfig(*result);
  EXPECT_TRUE(result->is_same_run);
  EXPECT_THAT(result->errors, IsEmpty());
  config::PretrainConfig resolved = result->config;
  ResolveDefaults(&resolved);
  EXPECT_EQ(resolved.model().num_layers(), 56);
  EXPECT_EQ(resolved.model().mamba_num_heads(), 128);
  EXPECT_EQ(resolved.model().activation_func(), config::Activation::gelu_erf);
  EXPECT_EQ(Small("--hybrid-override-pattern M*-").config.model().hybrid_layer_pattern(), "M*-");
}

TEST(FromMegatronTest, DeepSeekOfMegatronIsTheShippedModel) {
  const auto result = TranslateFile("deepseek_v3.sh");
  ASSERT_THAT(result, IsOk());
  EXPECT_FALSE(result->is_same_run);
  EXPECT_THAT(Subjects(*result, Effect::kResults),
              UnorderedElementsAre("--moe-router-force-load-balancing"));
  EXPECT_EQ(result->config.parallel().data_parallel_size(), 256);
  EXPECT_THAT(result->errors, IsEmpty());
  EXPECT_EQ(result->config.recompute().recompute_modules_size(), 4);
  EXPECT_EQ(result->config.parallel().data_parallel_sharding_strategy(),
            config::DataParallelSharding::optim_grads_params);
  const auto shipped = LoadConfig("deepseek_v3", {}, ConfigPurpose::kDryRun);
  ASSERT_THAT(shipped, IsOk());
  config::PretrainConfig translated = result->config;
  ResolveDefaults(&translated);
  EXPECT_TRUE(MessageDifferencer::Equivalent(translated.model(), shipped->config.model()))
      << translated.model().DebugString() << shipped->config.model().DebugString();
}

TEST(FromMegatronTest, PlainRotationOfLatentAttentionHasNoScale) {
  const auto result = Small(
      "--multi-latent-attention --rope-type rope --rotary-scaling-factor 40 --kv-channels 64");
  EXPECT_EQ(result.config.model().position_embedding_type(), config::PositionEmbedding::rope);
  EXPECT_FALSE(result.config.model().has_yarn_rotary_scaling_factor());
  EXPECT_FALSE(result.config.model().has_kv_channels());
}

// Flags.

TEST(FromMegatronTest, ASmallCommandLineIsTheSameRun) {
  const FromMegatronResult result = Small("");
  EXPECT_TRUE(result.is_same_run) << result.report;
  ExpectTextIsConfig(result);
}

TEST(FromMegatronTest, StatesMegatronsDefaults) {
  const FromMegatronResult result = Small("");
  EXPECT_THAT(result.text, HasSubstr("calculate_per_token_loss: false  # Megatron's default; here "
                                     "it is true"));
  EXPECT_EQ(result.config.data().tokenizer_type(), config::Tokenizer::GPT2BPETokenizer);
  EXPECT_TRUE(Small("--calculate-per-token-loss").config.train().calculate_per_token_loss());
  EXPECT_TRUE(Small("--dataloader-type cyclic").config.data().data_sharding());
  EXPECT_FALSE(Small("--dataloader-type cyclic --no-data-sharding").config.data().data_sharding());
  // It has no effect without experts, and would be refused.
  EXPECT_EQ(result.config.model().moe_router_load_balancing_type_size(), 0);
}

TEST(FromMegatronTest, ListsAreListsWhateverDividesThem) {
  const FromMegatronResult result = Small(
      "--num-experts 4 --disable-bias-linear --moe-router-load-balancing-type seq_aux_loss "
      "global_aux_loss --moe-aux-loss-coeff 0.01 0.002 --phase-transition-iterations 2,5,8 "
      "--moe-layer-recompute");
  const config::ModelConfig& model = result.config.model();
  ASSERT_EQ(model.moe_router_load_balancing_type_size(), 2) << result.report;
  EXPECT_EQ(model.moe_router_load_balancing_type(1), config::RouterLoadBalancing::global_aux_loss);
  ASSERT_EQ(model.moe_aux_loss_coeff_size(), 2);
  EXPECT_EQ(model.moe_aux_loss_coeff(1), 0.002);
  const auto& phases = result.config.train().phase_transition_iterations();
  EXPECT_EQ(std::vector<int64_t>(phases.begin(), phases.end()), (std::vector<int64_t>{2, 5, 8}));
  ASSERT_EQ(result.config.recompute().recompute_modules_size(), 1);
  EXPECT_EQ(result.config.recompute().recompute_modules(0), config::RecomputeModule::moe);
}

TEST(FromMegatronTest, ScalingRecipesAreMup) {
  const FromMegatronResult result =
      Small("--scaling-recipe mup --scaling-base-hidden-size 16 --mup-output-mult 1.0");
  EXPECT_TRUE(result.is_same_run) << result.report;
  EXPECT_TRUE(result.config.model().use_mup());
  EXPECT_EQ(result.config.model().mup_base_hidden_size(), 16);
  EXPECT_FALSE(result.config.model().has_mup_output_mult());
  EXPECT_THAT(Subjects(Small("--scaling-recipe depth"), Effect::kResults),
              Contains("--scaling-recipe"));
}

TEST(FromMegatronTest, TakesFlagsInBothSpellings) {
  const FromMegatronResult result =
      Small("--weight-decay=0.5 --adam_beta2 .9 --lr-decay-style inverse-square-root");
  EXPECT_EQ(result.config.optimizer().weight_decay(), 0.5);
  EXPECT_EQ(result.config.optimizer().adam_beta2(), 0.9);
  EXPECT_EQ(result.config.optimizer().lr_decay_style(), config::LrDecayStyle::inverse_square_root);
}

TEST(FromMegatronTest, MomentsInFloat16AreKeptInBFloat16) {
  const FromMegatronResult result =
      Small("--bf16 --use-precision-aware-optimizer --exp-avg-dtype fp16 --exp-avg-sq-dtype fp8");
  EXPECT_EQ(result.config.optimizer().exp_avg_dtype(), config::MomentDtype::bf16);
  EXPECT_EQ(result.config.optimizer().exp_avg_sq_dtype(), config::MomentDtype::fp8);
  EXPECT_THAT(Texts(result, Effect::kRounding),
              AllOf(Contains(HasSubstr("or bf16, which is rounded by chance")),
                    Contains(HasSubstr("moments in fp8 have no scale"))));
}

TEST(FromMegatronTest, TakesTheLastOfSeveral) {
  const FromMegatronResult result = Small("--seed 1 --seed 2");
  EXPECT_EQ(result.config.train().seed(), 2);
  EXPECT_THAT(Texts(result, Effect::kSaid), Contains("--seed 1: it is given again at line 1"));
}

TEST(FromMegatronTest, TurnsSwitchesAround) {
  const FromMegatronResult result = Small("--no-bias-gelu-fusion --no-mmap-bin-files");
  EXPECT_EQ(result.config.model().activation_func(), config::Activation::gelu_erf);
  EXPECT_FALSE(result.config.data().mmap_bin_files());
  EXPECT_EQ(Small("--recompute-activations").config.recompute().recompute_granularity(),
            config::RecomputeGranularity::selective);
}

TEST(FromMegatronTest, GeluIsExactWhereNothingFusesItWithABias) {
  const auto activation = [](const std::string& flags) {
    return Small(flags).config.model().activation_func();
  };
  EXPECT_FALSE(Small("").config.model().has_activation_func());
  const FromMegatronResult result = Small("--disable-bias-linear");
  EXPECT_EQ(result.config.model().activation_func(), config::Activation::gelu_erf);
  EXPECT_THAT(Texts(result, Effect::kSaid), Contains(HasSubstr("--disable-bias-linear: Megatron "
                                                               "computes the exact GELU")));
  EXPECT_TRUE(result.is_same_run) << result.report;
  EXPECT_EQ(activation("--disable-bias-linear --no-bias-gelu-fusion"),
            config::Activation::gelu_erf);
  // Other activations stay as they are, in whatever order the flags are given.
  EXPECT_FALSE(Small("--swiglu --disable-bias-linear --no-bias-gelu-fusion")
                   .config.model()
                   .has_activation_func());
  EXPECT_EQ(activation("--disable-bias-linear --squared-relu --no-bias-gelu-fusion"),
            config::Activation::squared_relu);
  EXPECT_EQ(activation("--quick-geglu --disable-bias-linear --no-bias-gelu-fusion"),
            config::Activation::quick_gelu);
}

TEST(FromMegatronTest, TheOtherMappingOfRanksIsAnOrder) {
  FromMegatronInput input;
  input.source = "line";
  input.script = absl::StrCat(kSmall, "--use-tp-pp-dp-mapping --tensor-model-parallel-size 2");
  input.world_size = 4;
  const auto result = FromMegatron(input);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.parallel().rank_order(), "tp-cp-ep-pp-dp");
}

TEST(FromMegatronTest, RampUpTakesThreeNumbers) {
  const config::RampupBatchSize rampup =
      Small("--rampup-batch-size 2 2 100").config.train().rampup_batch_size();
  EXPECT_EQ(rampup.start(), 2);
  EXPECT_EQ(rampup.increment(), 2);
  EXPECT_EQ(rampup.samples(), 100);
}

TEST(FromMegatronTest, LengthsInSamplesStayInSamples) {
  const auto translated = TranslateLine(absl::StrCat(
      absl::StrReplaceAll(kSmall, {{"--train-iters 100 ", ""}}),
      "--train-samples 800 --lr-warmup-samples 41 --lr-decay-samples 700 --decoupled-lr 2e-3 "
      "--decoupled-min-lr 1e-5 --iterations-to-skip 3 7 --save-retain-interval 50 --save c "
      "--save-interval 25 "
      "--step-batch-size-schedule '0:2 1K:4'"));
  ASSERT_THAT(translated, IsOk());
  const FromMegatronResult& result = *translated;
  EXPECT_TRUE(result.is_same_run) << result.report;
  EXPECT_THAT(result.errors, IsEmpty());
  EXPECT_EQ(result.config.train().train_samples(), 800);
  EXPECT_EQ(result.config.optimizer().lr_warmup_samples(), 41);
  EXPECT_EQ(result.config.optimizer().lr_decay_samples(), 700);
  EXPECT_EQ(result.config.optimizer().decoupled_lr(), 2e-3);
  EXPECT_EQ(result.config.optimizer().decoupled_min_lr(), 1e-5);
  EXPECT_THAT(result.config.train().iterations_to_skip(), ElementsAre(3, 7));
  EXPECT_EQ(result.config.train().step_batch_size_schedule(), "0:2 1K:4");
  EXPECT_EQ(result.config.checkpoint().save_retain_interval(), 50);
}

TEST(FromMegatronTest, DecoupledRateWithoutAnEndFallsToMinLr) {
  const FromMegatronResult result = Small("--decoupled-lr 1e-2 --min-lr 1.5e-4");
  EXPECT_TRUE(result.is_same_run) << result.report;
  config::PretrainConfig resolved = result.config;
  ResolveDefaults(&resolved);
  EXPECT_EQ(resolved.optimizer().decoupled_min_lr(), 1.5e-4);
}

TEST(FromMegatronTest, FieldsWithoutEffectAreLeftOut) {
  const FromMegatronResult result = Small("--sequence-parallel --overlap-grad-reduce");
  EXPECT_TRUE(result.is_same_run) << result.report;
  EXPECT_FALSE(result.config.parallel().sequence_parallel());
  EXPECT_THAT(Subjects(result, Effect::kNothing), AllOf(Contains("parallel.sequence_parallel"),
                                                        Contains("parallel.overlap_grad_reduce")));
}

TEST(FromMegatronTest, AKernelThatCannotBeHadIsLeftOut) {
  const FromMegatronResult result = Small("--attention-backend fused");
  EXPECT_FALSE(result.config.system().has_attention_backend());
  EXPECT_THAT(Subjects(result, Effect::kRounding), Contains("system.attention_backend"));
  EXPECT_TRUE(result.is_same_run);
}

TEST(FromMegatronTest, AValueWithoutCounterpartIsNamed) {
  const FromMegatronResult result = Small("--optimizer soap --position-embedding-type mrope");
  EXPECT_FALSE(result.is_same_run);
  EXPECT_THAT(Texts(result, Effect::kResults),
              UnorderedElementsAre(
                  "--optimizer soap: there is one of adam, sgd, lion, muon, lamb, onebit_adam, "
                  "zero_one_adam, onebit_lamb, no 'soap'",
                  "--position-embedding-type mrope: there is one of learned_absolute, rope, none, "
                  "relative, yarn, no 'mrope'"));
}

TEST(FromMegatronTest, AWindowHasTwoEnds) {
  EXPECT_EQ(Small("--window-size '(31,0)'").config.model().window_size(), 31);
  EXPECT_EQ(Small("--window-size 31,0 --softmax-type off-by-one").config.model().softmax_type(),
            config::SoftmaxType::off_by_one);
  EXPECT_FALSE(Small("--window-size -1,0").config.model().has_window_size());
  EXPECT_THAT(Texts(Small("--window-size 31,31"), Effect::kResults),
              ElementsAre("--window-size 31,31: a query sees itself and keys before it"));
}

TEST(FromMegatronTest, MuonsFlagsAreFields) {
  const FromMegatronResult result = Small(
      "--optimizer dist_muon --muon-momentum 0.9 --muon-nesterov --muon-no-split-qkv "
      "--muon-tp-mode distributed --muon-scale-mode unit_rms_norm --muon-fp32-matmul-prec high "
      "--muon-coefficient-type quintic --muon-scalar-optimizer adam --qk-clip "
      "--qk-clip-threshold 50 --qk-clip-alpha 0.25");
  EXPECT_TRUE(result.is_same_run);
  EXPECT_THAT(Subjects(result, Effect::kSpeed), Contains("--optimizer"));
  const config::OptimizerConfig& optimizer = result.config.optimizer();
  EXPECT_EQ(optimizer.optimizer(), config::Optimizer::muon);
  EXPECT_EQ(optimizer.muon_momentum(), 0.9);
  EXPECT_TRUE(optimizer.muon_use_nesterov());
  EXPECT_FALSE(optimizer.muon_split_qkv());
  EXPECT_EQ(optimizer.muon_tp_mode(), config::MuonTpMode::distributed);
  EXPECT_EQ(optimizer.muon_scale_mode(), config::MuonScaleMode::unit_rms_norm);
  EXPECT_EQ(optimizer.muon_fp32_matmul_prec(), config::MatmulPrecision::high);
  EXPECT_TRUE(optimizer.qk_clip());
  EXPECT_EQ(optimizer.qk_clip_threshold(), 50);
  EXPECT_EQ(optimizer.qk_clip_alpha(), 0.25);
  EXPECT_THAT(Subjects(Small("--muon-scalar-optimizer lion"), Effect::kResults),
              Contains("--muon-scalar-optimizer"));
}

TEST(FromMegatronTest, AnUnknownFlagIsNamedWithTheNearestOne) {
  EXPECT_THAT(Texts(Small("--lr-decay-stile cosine --no-such-thing"), Effect::kResults),
              UnorderedElementsAre("--lr-decay-stile cosine: no flag of that name is known; the "
                                   "nearest is --lr-decay-style",
                                   "--no-such-thing: no flag of that name is known"));
}

TEST(FromMegatronTest, OurOwnFieldsAreNoFlagsOfMegatrons) {
  EXPECT_THAT(Subjects(Small("--heartbeat-timeout-seconds 3 --prompt a"), Effect::kResults),
              UnorderedElementsAre("--heartbeat-timeout-seconds", "--prompt"));
}

TEST(FromMegatronTest, RefusesBadValuesWithTheirLines) {
  const auto result = TranslateLine(
      "python pretrain_gpt.py \\\n --num-layers two \\\n --hidden-size 1 2 \\\n --lr \\\n --bf16 1 "
      "\\\n --train-iters $N");
  EXPECT_THAT(
      result,
      StatusIs(absl::StatusCode::kInvalidArgument,
               "line:2: --num-layers two: expects an integer from 1 to 10000, not 'two'\n"
               "line:3: --hidden-size 1 2: takes one value, and has 2: the second is '2'\n"
               "line:4: --lr: needs a value\n"
               "line:5: --bf16 1: takes no value, and has 1\n"
               "line:6: --train-iters $N: the value is the variable N, which the script does not "
               "set; give it by --variables=N=..."));
}

TEST(FromMegatronTest, TheLayoutMustFitTheRanks) {
  EXPECT_THAT(TranslateLine(absl::StrCat(kSmall, "--tensor-model-parallel-size 4")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 rank cannot be shared out over a layout of 4")));
  FromMegatronInput input;
  input.source = "line";
  input.script = absl::StrCat(kSmall, "--tensor-model-parallel-size 4");
  input.world_size = 8;
  const auto result = FromMegatron(input);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.parallel().data_parallel_size(), 2);
  EXPECT_EQ(result->config.model().make_vocab_size_divisible_by(), 512);
}

TEST(FromMegatronTest, TheValidationsErrorsAreShownWithTheScriptsLines) {
  const FromMegatronResult result = Small("\\\n--num-query-groups 3 --group-query-attention");
  EXPECT_FALSE(result.is_same_run);
  EXPECT_THAT(result.errors,
              ElementsAre("line:1 --num-attention-heads: model.num_attention_heads = 4: must be "
                          "divisible by model.num_query_groups = 3 (line:2 --num-query-groups)"));
  EXPECT_THAT(result.text, HasSubstr("# The programs refuse it:"));
}

TEST(FromMegatronTest, AVariableOfFlagsThatIsNotSetIsEmpty) {
  const FromMegatronResult result = Small("--bf16 $EXTRA_ARGS");
  EXPECT_TRUE(result.is_same_run) << result.report;
  EXPECT_TRUE(result.config.precision().bf16());
  EXPECT_THAT(Subjects(result, Effect::kSaid), Contains("$EXTRA_ARGS"));
}

TEST(FromMegatronTest, CommentsHoldNoForeignLines) {
  const FromMegatronResult result = Small("--spec $'a\nmodel { num_layers: 7 }'");
  ExpectTextIsConfig(result);
  EXPECT_EQ(result.config.model().num_layers(), 2);
}

TEST(FromMegatronTest, FsdpSharesWeightsOut) {
  FromMegatronInput input;
  input.source = "line";
  input.world_size = 4;
  const auto strategy = [&](const std::string& flags) {
    input.script = kSmall + flags;
    const auto result = FromMegatron(input);
    EXPECT_THAT(result, IsOk());
    return result->config.parallel().data_parallel_sharding_strategy();
  };
  EXPECT_EQ(strategy("--use-megatron-fsdp"), config::DataParallelSharding::optim_grads_params);
  EXPECT_EQ(strategy("--data-parallel-sharding-strategy optim_grads --use-megatron-fsdp"),
            config::DataParallelSharding::optim_grads);
  EXPECT_EQ(strategy("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward"),
            config::DataParallelSharding::optim_grads);
  EXPECT_EQ(strategy("--use-distributed-optimizer"), config::DataParallelSharding::optim);
}

}  // namespace
}  // namespace megatron
