#include <string>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "tools/from_megatron/from_megatron_harness.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(DeepSpeedConfigTest, ReadsADeepSpeedConfigAlone) {
  FromMegatronInput input;
  input.deepspeed_source = "ds_zero3.json";
  input.deepspeed = ReadTestFile("ds_zero3.json");
  const auto result = FromMegatron(input);
  ExpectGolden(result, "ds_zero3.textproto");
  EXPECT_FALSE(result->is_same_run);  // the model is missing
  EXPECT_THAT(Texts(*result, Effect::kResults), IsEmpty());
  EXPECT_EQ(result->config.parallel().data_parallel_size(), 8);
  EXPECT_THAT(result->errors, Contains(HasSubstr("model.num_layers: is required")));
}

TEST(DeepSpeedConfigTest, ReadsADeepSpeedConfigThatTheScriptWrites) {
  const auto result = TranslateFile("megatron_deepspeed.sh");
  ExpectGolden(result, "megatron_deepspeed.textproto");
  EXPECT_TRUE(result->is_same_run);
  const config::PretrainConfig& config = result->config;
  EXPECT_EQ(config.parallel().data_parallel_size(), 4);
  EXPECT_EQ(config.optimizer().clip_grad(), 1);  // DeepSpeed's wins over --clip-grad
  EXPECT_EQ(config.precision().initial_loss_scale(), 4096);
  EXPECT_TRUE(config.parallel().use_distributed_optimizer());
  EXPECT_EQ(config.train().train_samples(), 300000000000 / 2048);
}

absl::StatusOr<FromMegatronResult> WithDeepSpeed(const std::string& json) {
  FromMegatronInput input;
  input.source = "line";
  input.script = kSmall;
  input.deepspeed_source = "ds.json";
  input.deepspeed = json;
  return FromMegatron(input);
}

TEST(DeepSpeedConfigTest, DeepSpeedsDefaultsAreWrittenOut) {
  const auto result = WithDeepSpeed("{\"fp16\": {\"enabled\": true}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.precision().initial_loss_scale(), 65536);
  EXPECT_TRUE(result->config.optimizer().has_clip_grad());
  EXPECT_EQ(result->config.optimizer().clip_grad(), 0);
}

TEST(DeepSpeedConfigTest, ZeroStagesAreShardingStrategies) {
  for (int stage = 0; stage <= 3; ++stage) {
    FromMegatronInput input;
    input.source = "line";
    input.script = kSmall;
    input.world_size = 2;
    input.deepspeed_source = "ds.json";
    input.deepspeed = absl::StrCat("{\"zero_optimization\": {\"stage\": ", stage, "}}");
    const auto result = FromMegatron(input);
    ASSERT_THAT(result, IsOk());
    const config::ParallelConfig& parallel = result->config.parallel();
    EXPECT_EQ(parallel.use_distributed_optimizer(), stage > 0);
    EXPECT_EQ(parallel.data_parallel_sharding_strategy(), stage < 2 ? 0 : stage - 1);
  }
}

TEST(DeepSpeedConfigTest, TheTypeInWhichDeepSpeedSendsGradientsIsOurs) {
  const auto sent = [](const std::string& rest) {
    FromMegatronInput input;
    input.source = "line";
    input.script = kSmall;
    input.world_size = 2;
    input.deepspeed_source = "ds.json";
    input.deepspeed = absl::StrCat("{\"gradient_clipping\": 1.0, ", rest, "}");
    return FromMegatron(input);
  };
  const auto half = sent(
      "\"communication_data_type\": \"fp16\", \"prescale_gradients\": false, "
      "\"gradient_predivide_factor\": 4.0");
  ASSERT_THAT(half, IsOk());
  EXPECT_EQ(half->config.parallel().communication_data_type(), config::CommunicationDataType::fp16);
  EXPECT_EQ(half->config.parallel().gradient_predivide_factor(), 4);
  EXPECT_THAT(half->errors, IsEmpty());
  // DeepSpeed does not read the factor then.
  const auto prescaled = sent(
      "\"communication_data_type\": \"bfp16\", \"prescale_gradients\": true, "
      "\"gradient_predivide_factor\": 4.0");
  ASSERT_THAT(prescaled, IsOk());
  EXPECT_EQ(prescaled->config.parallel().communication_data_type(),
            config::CommunicationDataType::bf16);
  EXPECT_TRUE(prescaled->config.parallel().prescale_gradients());
  EXPECT_FALSE(prescaled->config.parallel().has_gradient_predivide_factor());
  EXPECT_THAT(prescaled->errors, IsEmpty());
  const auto whole = sent("\"communication_data_type\": \"fp32\", \"prescale_gradients\": true");
  ASSERT_THAT(whole, IsOk());
  EXPECT_FALSE(whole->config.parallel().has_communication_data_type());
  EXPECT_THAT(Subjects(*whole, Effect::kRounding), ElementsAre("prescale_gradients:"));
  EXPECT_THAT(Subjects(*sent("\"communication_data_type\": \"int8\""), Effect::kResults),
              ElementsAre("communication_data_type:"));
}

TEST(DeepSpeedConfigTest, NamesWhatDeepSpeedHasAndWeDoNot) {
  const auto result = WithDeepSpeed(
      "{\"optimizer\": {\"type\": \"MuAdam\"}, \"scheduler\": {\"type\": \"OneCycle\"},\n"
      "\"no_such_key\": 1, \"gradient_clipping\": 1.0,\n"
      "\"progressive_layer_drop\": {\"enabled\": true, \"theta\": 0.5},\n"
      "\"data_efficiency\": {\"enabled\": false, \"seed\": 1}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(
      Subjects(*result, Effect::kResults),
      UnorderedElementsAre("optimizer.type:", "scheduler.type:", "no_such_key:",
                           "progressive_layer_drop.enabled:", "progressive_layer_drop.theta:"));
}

TEST(DeepSpeedConfigTest, DeepSpeedsElasticityIsOurs) {
  const auto result = WithDeepSpeed(
      "{\"gradient_clipping\": 1.0, \"elasticity\": {\"enabled\": true, \"min_time\": 20,\n"
      "\"max_train_batch_size\": 512, \"micro_batch_sizes\": [4, 8], \"max_gpus\": 64,\n"
      "\"prefer_larger_batch\": false, \"version\": 0.2, \"num_gpus_per_node\": 8,\n"
      "\"model_parallel_size\": 2, \"other\": 1}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults), ElementsAre("elasticity.other:"));
  const config::ElasticityConfig& elasticity = result->config.elasticity();
  EXPECT_TRUE(elasticity.enabled());
  EXPECT_EQ(elasticity.max_train_batch_size(), 512);
  EXPECT_THAT(elasticity.micro_batch_sizes(), ElementsAre(4, 8));
  EXPECT_EQ(elasticity.max_gpus(), 64);
  EXPECT_FALSE(elasticity.prefer_larger_batch());
  EXPECT_EQ(elasticity.num_gpus_per_node(), 8);
  // The command line has batch sizes of its own.
  EXPECT_TRUE(elasticity.ignore_non_elastic_batch_info());
  const auto first = WithDeepSpeed(
      "{\"elasticity\": {\"enabled\": true, \"version\": 0.1, \"num_gpus_per_node\": 8}}");
  ASSERT_THAT(first, IsOk());
  EXPECT_FALSE(first->config.elasticity().has_num_gpus_per_node());
  EXPECT_FALSE(WithDeepSpeed("{\"elasticity\": {\"enabled\": true, \"version\": 0.3}}").ok());
}

TEST(DeepSpeedConfigTest, DeepSpeedsCurriculumBySequenceLengthIsOurs) {
  const auto curriculum = [](const std::string& rest) {
    return WithDeepSpeed(
        absl::StrCat("{\"gradient_clipping\": 1.0, \"curriculum_learning\": {\"enabled\": true, ",
                     "\"min_difficulty\": 8, \"max_difficulty\": 64, ", rest, "}}"));
  };
  const auto root = curriculum(
      "\"curriculum_type\": \"seqlen\", \"schedule_type\": \"fixed_root\", "
      "\"schedule_config\": {\"total_curriculum_step\": 100, \"difficulty_step\": 8, "
      "\"root_degree\": 3}");
  ASSERT_THAT(root, IsOk());
  EXPECT_THAT(Subjects(*root, Effect::kResults), ElementsAre());
  const config::CurriculumConfig& grown = root->config.data().curriculum_learning();
  EXPECT_EQ(grown.schedule_type(), config::CurriculumSchedule::fixed_root);
  EXPECT_EQ(grown.min_difficulty(), 8);
  EXPECT_EQ(grown.max_difficulty(), 64);
  EXPECT_EQ(grown.total_curriculum_step(), 100);
  EXPECT_EQ(grown.difficulty_step(), 8);
  EXPECT_EQ(grown.root_degree(), 3);
  const auto listed = curriculum(
      "\"schedule_type\": \"fixed_discrete\", "
      "\"schedule_config\": {\"difficulty\": [8, 64], \"max_step\": [5]}");
  ASSERT_THAT(listed, IsOk());
  EXPECT_THAT(Subjects(*listed, Effect::kResults), ElementsAre());
  EXPECT_THAT(listed->config.data().curriculum_learning().difficulty(), ElementsAre(8, 64));
  EXPECT_THAT(listed->config.data().curriculum_learning().max_step(), ElementsAre(5));
  EXPECT_FALSE(listed->config.data().curriculum_learning().has_min_difficulty());
  EXPECT_THAT(Subjects(*curriculum("\"schedule_type\": \"custom\""), Effect::kResults),
              ElementsAre("curriculum_learning.schedule_type:"));
}

TEST(DeepSpeedConfigTest, DeepSpeedsRandomLtdIsOurs) {
  const auto random_ltd = [](int layers, const std::string& type) {
    FromMegatronInput input;
    input.source = "line";
    input.script = absl::StrReplaceAll(kSmall, {{"--num-layers 2 ", "--num-layers 24 "}});
    input.deepspeed_source = "ds.json";
    input.deepspeed = absl::StrCat(
        "{\"gradient_clipping\": 1.0, \"data_efficiency\": {\"enabled\": true, \"seed\": 1, ",
        "\"data_sampling\": {\"enabled\": false, \"num_epochs\": 3}, ",
        "\"data_routing\": {\"enabled\": true, \"random_ltd\": {\"enabled\": true, ",
        "\"total_layer_num\": 24, \"random_ltd_layer_num\": ", layers,
        ", \"model_mask_name\": \"attention_mask\", \"random_ltd_schedule\": {\"min_value\": 16, ",
        "\"max_value\": 64, \"schedule_type\": \"", type,
        "\", \"schedule_config\": ", "{\"require_steps\": 100, \"seq_per_step\": 16}}}}}}");
    return FromMegatron(input);
  };
  const auto result = random_ltd(22, "fixed_linear");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults), ElementsAre());
  const config::RandomLtdConfig& fields = result->config.data().random_ltd();
  EXPECT_EQ(fields.min_value(), 16);
  EXPECT_EQ(fields.max_value(), 64);
  EXPECT_EQ(fields.require_steps(), 100);
  EXPECT_EQ(fields.seq_per_step(), 16);
  EXPECT_THAT(Subjects(*random_ltd(12, "fixed_linear"), Effect::kResults),
              ElementsAre("data_efficiency.data_routing.random_ltd.random_ltd_layer_num:"));
  EXPECT_FALSE(random_ltd(22, "fixed_root")->config.data().has_random_ltd());
}

TEST(DeepSpeedConfigTest, DeepSpeedsLambIsOurs) {
  const auto result = WithDeepSpeed(
      "{\"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"Lamb\", \"params\": {"
      "\"lr\": 0.01, \"betas\": [0.8, 0.99], \"eps\": 1e-6, \"max_coeff\": 0.3, "
      "\"min_coeff\": 0.02}}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults), ElementsAre("optimizer.type:"));
  const config::OptimizerConfig& optimizer = result->config.optimizer();
  EXPECT_EQ(optimizer.optimizer(), config::Optimizer::lamb);
  EXPECT_EQ(optimizer.adam_beta1(), 0.8);
  EXPECT_EQ(optimizer.adam_eps(), 1e-6);
  EXPECT_EQ(optimizer.lamb_max_coeff(), 0.3);
  EXPECT_EQ(optimizer.lamb_min_coeff(), 0.02);
}

TEST(DeepSpeedConfigTest, DeepSpeedsOneBitAdamIsOurs) {
  const auto result = WithDeepSpeed(
      "{\"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {"
      "\"lr\": 0.01, \"betas\": [0.8, 0.99], \"eps\": 1e-6, \"freeze_step\": 23, "
      "\"cuda_aware\": false, \"comm_backend_name\": \"nccl\", \"exp_avg_mask\": 1}}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults),
              ElementsAre("optimizer.type:", "optimizer.params.exp_avg_mask:"));
  const config::OptimizerConfig& optimizer = result->config.optimizer();
  EXPECT_EQ(optimizer.optimizer(), config::Optimizer::onebit_adam);
  EXPECT_EQ(optimizer.adam_beta1(), 0.8);
  EXPECT_EQ(optimizer.adam_eps(), 1e-6);
  EXPECT_EQ(optimizer.freeze_step(), 23);
}

TEST(DeepSpeedConfigTest, DeepSpeedsOneBitLambIsOurs) {
  const auto result = WithDeepSpeed(
      "{\"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"OneBitLamb\", \"params\": {"
      "\"lr\": 0.01, \"freeze_step\": 23, \"max_coeff\": 0.3, \"min_coeff\": 0.02, "
      "\"coeff_beta\": 0.8, \"factor_max\": 3.0, \"factor_min\": 0.25, "
      "\"factor_threshold\": 0.2, \"cuda_aware\": false, \"var_freeze_step\": 5}}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults),
              ElementsAre("optimizer.type:", "optimizer.params.var_freeze_step:"));
  const config::OptimizerConfig& optimizer = result->config.optimizer();
  EXPECT_EQ(optimizer.optimizer(), config::Optimizer::onebit_lamb);
  EXPECT_EQ(optimizer.freeze_step(), 23);
  EXPECT_EQ(optimizer.lamb_max_coeff(), 0.3);
  EXPECT_EQ(optimizer.lamb_min_coeff(), 0.02);
  EXPECT_EQ(optimizer.coeff_beta(), 0.8);
  EXPECT_EQ(optimizer.factor_max(), 3);
  EXPECT_EQ(optimizer.factor_min(), 0.25);
  EXPECT_EQ(optimizer.factor_threshold(), 0.2);
}

TEST(DeepSpeedConfigTest, DeepSpeedsZeroOneAdamIsOurs) {
  const auto result = WithDeepSpeed(
      "{\"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"ZeroOneAdam\", \"params\": {"
      "\"lr\": 0.01, \"var_freeze_step\": 12500, \"var_update_scaler\": 8, "
      "\"local_step_scaler\": 1000, \"local_step_clipper\": 4, \"freeze_step\": 5}}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults),
              ElementsAre("optimizer.type:", "optimizer.params.freeze_step:"));
  const config::OptimizerConfig& optimizer = result->config.optimizer();
  EXPECT_EQ(optimizer.optimizer(), config::Optimizer::zero_one_adam);
  EXPECT_EQ(optimizer.var_freeze_step(), 12500);
  EXPECT_EQ(optimizer.var_update_scaler(), 8);
  EXPECT_EQ(optimizer.local_step_scaler(), 1000);
  EXPECT_EQ(optimizer.local_step_clipper(), 4);
}

TEST(DeepSpeedConfigTest, DeepSpeedsOffloadOfStatesIsOurs) {
  const auto offload = [](const std::string& block) {
    return WithDeepSpeed(absl::StrCat("{\"gradient_clipping\": 1.0, \"zero_optimization\": {",
                                      "\"stage\": 0, \"offload_optimizer\": ", block, "}}"));
  };
  const auto nvme = offload(
      "{\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\", \"ratio\": 0.5, "
      "\"pin_memory\": true, \"buffer_count\": 4}");
  ASSERT_THAT(nvme, IsOk());
  EXPECT_TRUE(nvme->config.optimizer().optimizer_cpu_offload());
  EXPECT_EQ(nvme->config.optimizer().optimizer_offload_path(), "/local_nvme");
  EXPECT_EQ(nvme->config.optimizer().optimizer_offload_fraction(), 0.5);
  EXPECT_THAT(Subjects(*nvme, Effect::kSpeed),
              ElementsAre("zero_optimization.offload_optimizer.buffer_count:"));
  const auto cpu = offload("{\"device\": \"cpu\", \"nvme_path\": \"/local_nvme\"}");
  ASSERT_THAT(cpu, IsOk());
  EXPECT_TRUE(cpu->config.optimizer().optimizer_cpu_offload());
  EXPECT_FALSE(cpu->config.optimizer().has_optimizer_offload_path());
  const auto none = offload("{\"device\": \"none\", \"nvme_path\": \"/local_nvme\"}");
  ASSERT_THAT(none, IsOk());
  EXPECT_FALSE(none->config.optimizer().optimizer_cpu_offload());
  const auto old = WithDeepSpeed(
      "{\"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": 0, "
      "\"cpu_offload\": true}}");
  ASSERT_THAT(old, IsOk());
  EXPECT_TRUE(old->config.optimizer().optimizer_cpu_offload());
  EXPECT_THAT(offload("{\"device\": \"nvme\"}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no nvme_path")));
  EXPECT_THAT(offload("{\"device\": \"tape\"}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("none, cpu and nvme")));
}

TEST(DeepSpeedConfigTest, DeepSpeedsOffloadOfParametersIsOurs) {
  const auto offload = [](int stage, const std::string& states, const std::string& parameters) {
    return WithDeepSpeed(absl::StrCat("{\"gradient_clipping\": 1.0, \"zero_optimization\": {",
                                      "\"stage\": ", stage, ", \"offload_optimizer\": ", states,
                                      ", \"offload_param\": ", parameters, "}}"));
  };
  const std::string on_cpu = "{\"device\": \"cpu\"}";
  const auto cpu = offload(3, on_cpu, on_cpu);
  ASSERT_THAT(cpu, IsOk());
  EXPECT_TRUE(cpu->config.parallel().param_cpu_offload());
  EXPECT_THAT(Subjects(*cpu, Effect::kSpeed), testing::IsEmpty());
  const auto nvme = offload(3, on_cpu,
                            "{\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\", "
                            "\"pin_memory\": true, \"buffer_size\": 1e8}");
  ASSERT_THAT(nvme, IsOk());
  EXPECT_TRUE(nvme->config.parallel().param_cpu_offload());
  EXPECT_EQ(nvme->config.parallel().param_offload_path(), "/local_nvme");
  EXPECT_THAT(Subjects(*nvme, Effect::kSpeed),
              ElementsAre("zero_optimization.offload_param.buffer_size:"));
  EXPECT_THAT(offload(3, on_cpu, "{\"device\": \"nvme\"}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nvme_path")));
  EXPECT_FALSE(cpu->config.parallel().has_param_offload_path());
  for (const auto& [stage, states] : {std::pair(2, on_cpu), std::pair(3, std::string("null")),
                                      std::pair(3, std::string("{\"device\": \"none\"}")),
                                      std::pair(3, std::string("{\"device\": \"cpu\", "
                                                               "\"ratio\": 0.5}"))}) {
    const auto stays = offload(stage, states, on_cpu);
    ASSERT_THAT(stays, IsOk());
    EXPECT_FALSE(stays->config.parallel().param_cpu_offload());
    EXPECT_THAT(Subjects(*stays, Effect::kSpeed),
                ElementsAre("zero_optimization.offload_param.device:"));
  }
  const auto none = offload(3, on_cpu, "{\"device\": \"none\"}");
  ASSERT_THAT(none, IsOk());
  EXPECT_FALSE(none->config.parallel().param_cpu_offload());
  EXPECT_THAT(offload(3, on_cpu, "{\"device\": \"tape\"}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("none, cpu and nvme")));
}

TEST(DeepSpeedConfigTest, TheShardGroupsOfMicsAreInstances) {
  const auto mics = [](int world_size, const std::string& shard_size) {
    FromMegatronInput input;
    input.source = "line";
    input.script = kSmall;
    input.world_size = world_size;
    input.deepspeed_source = "ds.json";
    input.deepspeed = absl::StrCat(
        "{\"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": ",
        shard_size, "}}");
    return FromMegatron(input);
  };
  const auto two = mics(4, "2");
  ASSERT_THAT(two, IsOk());
  EXPECT_EQ(two->config.parallel().num_distributed_optimizer_instances(), 2);
  const auto off = mics(4, "-1");
  ASSERT_THAT(off, IsOk());
  EXPECT_FALSE(off->config.parallel().has_num_distributed_optimizer_instances());
  EXPECT_THAT(mics(4, "3"), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("does not divide 4 data-parallel ranks")));
}

TEST(DeepSpeedConfigTest, TheWarmUpOfDeepSpeedIsLogarithmicUnlessItSaysOtherwise) {
  const auto result = WithDeepSpeed(
      "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 90}},"
      "\"gradient_clipping\": 1.0}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults), ElementsAre("scheduler.params.warmup_type:"));
  EXPECT_EQ(result->config.optimizer().lr_warmup_iters(), 1000);
  EXPECT_DOUBLE_EQ(result->config.optimizer().min_lr(), 1e-7);
}

TEST(DeepSpeedConfigTest, AutoIsLeftToTheCommandLine) {
  const auto result = WithDeepSpeed(
      "{\"train_batch_size\": \"auto\", \"bf16\": {\"enabled\": \"auto\"},"
      "\"gradient_clipping\": 1.0}");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.train().global_batch_size(), 4);
  EXPECT_TRUE(result->is_same_run);
}

TEST(DeepSpeedConfigTest, ClippingIsThatOfTheCommandLineIfItIsAuto) {
  const auto clipped = [](const std::string& json, const std::string& flags) {
    FromMegatronInput input;
    input.source = "line";
    input.script = absl::StrCat(kSmall, flags);
    input.deepspeed_source = "ds.json";
    input.deepspeed = json;
    return FromMegatron(input);
  };
  constexpr char kAuto[] = "{\"gradient_clipping\": \"auto\"}";
  auto result = clipped(kAuto, "--clip-grad 0.5");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.optimizer().clip_grad(), 0.5);
  EXPECT_THAT(Texts(*result, Effect::kSaid),
              Contains("gradient_clipping: \"auto\": it is left to the command line"));
  result = clipped(kAuto, "");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.optimizer().clip_grad(), 1);
  // DeepSpeed does not clip without the key, which the report says.
  result = clipped("{}", "--clip-grad 0.5");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.optimizer().clip_grad(), 0);
  EXPECT_THAT(Texts(*result, Effect::kSaid),
              Contains("gradient_clipping: it is not there: DeepSpeed's default, 0, replaces "
                       "optimizer.clip_grad of line:1 --clip-grad"));
}

TEST(DeepSpeedConfigTest, DeepSpeedsOptimizerStatesInBFloat16AreMoments) {
  const auto result = WithDeepSpeed(
      "{\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true,"
      "\"bf16_master_weights_and_grads\": true}, \"gradient_clipping\": 1.0}");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.optimizer().exp_avg_dtype(), config::MomentDtype::bf16);
  EXPECT_EQ(result->config.optimizer().exp_avg_sq_dtype(), config::MomentDtype::bf16);
  EXPECT_THAT(Texts(*result, Effect::kRounding),
              AllOf(Contains(HasSubstr("moments in bf16 are rounded by chance")),
                    Contains(HasSubstr("master weights and gradients are fp32"))));
  const auto without =
      WithDeepSpeed("{\"bf16\": {\"bf16_optimizer_states\": false}, \"gradient_clipping\": 1.0}");
  ASSERT_THAT(without, IsOk());
  EXPECT_EQ(without->config.optimizer().exp_avg_dtype(), config::MomentDtype::fp32);
}

TEST(DeepSpeedConfigTest, RefusesBadDeepSpeedConfigs) {
  const auto refused = [](const std::string& json, const std::string& message) {
    EXPECT_THAT(WithDeepSpeed(json),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ds.json: " + message)));
  };
  refused("{\n\"a\": 1,\n}", "it is no JSON: line 3, column 1: '}' cannot stand here");
  refused("[]", "it is no JSON object");
  refused("{\"a\": 1, \"a\": 2}", "it has the key 'a' twice");
  refused(std::string(1000, '['), "it is nested too deeply");
  refused(std::string((1 << 20) + 1, ' '), "it has 1048577 bytes");
  refused("{\"zero_optimization\": {\"stage\": 4}}", "zero_optimization.stage is none of");
  refused("{\"gradient_clipping\": \"x\"}", "gradient_clipping expects a number");
  refused("{\"train_batch_size\": 1e9}", "train_batch_size is no whole number");
  refused(
      "{\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, "
      "\"gradient_accumulation_steps\": 3}",
      "train_batch_size is 4, but");
}

}  // namespace
}  // namespace megatron
