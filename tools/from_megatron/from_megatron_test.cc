#include "tools/from_megatron/from_megatron.h"

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/configs/config_loader.h"
#include "tools/from_megatron/flag_table.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::google::protobuf::TextFormat;
using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr char kDirectory[] = "tools/from_megatron/testdata/";

// A model that is complete but for what a test adds.
constexpr char kSmall[] =
    "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 2 "
    "--global-batch-size 4 --train-iters 100 --lr 1e-3 --eval-interval 10 --data-path data "
    "--data-cache-path cache --vocab-file vocab.json --merge-file merges.txt --split 9,1,0 ";

std::string ReadTestFile(const std::string& name) {
  std::ifstream file(kDirectory + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<FromMegatronResult> TranslateFile(const std::string& name,
                                                 const std::vector<std::string>& arguments = {}) {
  FromMegatronInput input;
  input.source = name;
  input.script = ReadTestFile(name);
  input.arguments = arguments;
  return FromMegatron(input);
}

absl::StatusOr<FromMegatronResult> TranslateLine(const std::string& line) {
  FromMegatronInput input;
  input.source = "line";
  input.script = line;
  return FromMegatron(input);
}

// Returns the small model with more flags; fails the test on errors.
FromMegatronResult Small(const std::string& flags) {
  absl::StatusOr<FromMegatronResult> result = TranslateLine(kSmall + flags);
  EXPECT_THAT(result, IsOk());
  return result.ok() ? *std::move(result) : FromMegatronResult();
}

// Returns "subject: text" of the findings.
std::vector<std::string> Texts(const FromMegatronResult& result, Effect effect) {
  std::vector<std::string> texts;
  for (const Finding& finding : result.findings) {
    if (finding.effect == effect)
      texts.push_back(absl::StrCat(finding.subject, ": ", finding.text));
  }
  return texts;
}

// Returns the subjects' first words.
std::vector<std::string> Subjects(const FromMegatronResult& result, Effect effect) {
  std::vector<std::string> subjects;
  for (const Finding& finding : result.findings) {
    if (finding.effect == effect)
      subjects.push_back(std::string(*absl::StrSplit(finding.subject, ' ').begin()));
  }
  return subjects;
}

// Checks that the text is the configuration, and is valid or incomplete as the errors say.
void ExpectTextIsConfig(const FromMegatronResult& result) {
  config::PretrainConfig parsed;
  ASSERT_TRUE(TextFormat::ParseFromString(result.text, &parsed)) << result.text;
  EXPECT_TRUE(MessageDifferencer::Equals(parsed, result.config)) << result.text;
  const auto loaded = LoadConfigFromString(result.text, "text", {}, ConfigPurpose::kDryRun);
  EXPECT_EQ(loaded.ok(), result.errors.empty()) << loaded.status();
}

// The whole output is compared, comments included.
void ExpectGolden(const absl::StatusOr<FromMegatronResult>& result, const std::string& name) {
  ASSERT_THAT(result, IsOk());
  ExpectTextIsConfig(*result);
  EXPECT_EQ(result->text, ReadTestFile(name));
}

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

TEST(FromMegatronTest, GptOssOfMegatronNamesWhatIsNotThere) {
  const auto result = TranslateFile("gptoss.sh");
  ASSERT_THAT(result, IsOk());
  ExpectTextIsConfig(*result);
  EXPECT_FALSE(result->is_same_run);
  EXPECT_THAT(Subjects(*result, Effect::kResults), UnorderedElementsAre("--enable-gpt-oss"));
  const config::ModelConfig& model = result->config.model();
  EXPECT_EQ(model.activation_func(), config::Activation::quick_gelu);
  EXPECT_TRUE(model.gated_linear_unit());
  EXPECT_EQ(model.activation_func_clamp_value(), 7);
  EXPECT_EQ(model.glu_linear_offset(), 1);
  EXPECT_EQ(model.window_size(), 127);
  EXPECT_EQ(model.window_attn_skip_freq(), "2");
  EXPECT_EQ(model.softmax_type(), config::SoftmaxType::learnable);
}

TEST(FromMegatronTest, MambaOfMegatronNamesWhatIsNotThere) {
  const auto result = TranslateFile("mamba.sh");
  ASSERT_THAT(result, IsOk());
  EXPECT_FALSE(result->is_same_run);
  EXPECT_THAT(Subjects(*result, Effect::kResults),
              UnorderedElementsAre("pretrain_mamba.py", "--hybrid-layer-pattern", "--spec"));
}

TEST(FromMegatronTest, DeepSeekOfMegatronNamesWhatIsNotThere) {
  const auto result = TranslateFile("deepseek_v3.sh");
  ASSERT_THAT(result, IsOk());
  EXPECT_FALSE(result->is_same_run);
  EXPECT_THAT(Subjects(*result, Effect::kResults),
              UnorderedElementsAre("--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank",
                                   "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim",
                                   "--rotary-scaling-factor", "--mscale", "--mscale-all-dim",
                                   "--mtp-num-layers", "--mtp-loss-scaling-factor",
                                   "--moe-router-force-load-balancing"));
  EXPECT_EQ(result->config.parallel().data_parallel_size(), 256);
  EXPECT_THAT(result->errors, IsEmpty());
  EXPECT_EQ(result->config.recompute().recompute_modules_size(), 2);
  EXPECT_EQ(result->config.parallel().data_parallel_sharding_strategy(),
            config::DataParallelSharding::optim_grads_params);
  EXPECT_EQ(result->config.model().moe_layer_freq(), "[0]*3+[1]*58");
}

// DeepSpeed.

TEST(FromMegatronTest, ReadsADeepSpeedConfigAlone) {
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

TEST(FromMegatronTest, ReadsADeepSpeedConfigThatTheScriptWrites) {
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

TEST(FromMegatronTest, DeepSpeedsDefaultsAreWrittenOut) {
  const auto result = WithDeepSpeed("{\"fp16\": {\"enabled\": true}}");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.precision().initial_loss_scale(), 65536);
  EXPECT_TRUE(result->config.optimizer().has_clip_grad());
  EXPECT_EQ(result->config.optimizer().clip_grad(), 0);
}

TEST(FromMegatronTest, ZeroStagesAreShardingStrategies) {
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

TEST(FromMegatronTest, TheTypeInWhichDeepSpeedSendsGradientsIsOurs) {
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

TEST(FromMegatronTest, NamesWhatDeepSpeedHasAndWeDoNot) {
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

TEST(FromMegatronTest, DeepSpeedsElasticityIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsCurriculumBySequenceLengthIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsRandomLtdIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsLambIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsOneBitAdamIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsOneBitLambIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsZeroOneAdamIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsOffloadOfStatesIsOurs) {
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

TEST(FromMegatronTest, DeepSpeedsOffloadOfParametersIsOurs) {
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
  EXPECT_THAT(Subjects(*nvme, Effect::kSpeed),
              ElementsAre("zero_optimization.offload_param.buffer_size:",
                          "zero_optimization.offload_param.device:"));
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

TEST(FromMegatronTest, TheShardGroupsOfMicsAreInstances) {
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

TEST(FromMegatronTest, TheWarmUpOfDeepSpeedIsLogarithmicUnlessItSaysOtherwise) {
  const auto result = WithDeepSpeed(
      "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 90}},"
      "\"gradient_clipping\": 1.0}");
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(Subjects(*result, Effect::kResults), ElementsAre("scheduler.params.warmup_type:"));
  EXPECT_EQ(result->config.optimizer().lr_warmup_iters(), 1000);
  EXPECT_DOUBLE_EQ(result->config.optimizer().min_lr(), 1e-7);
}

TEST(FromMegatronTest, AutoIsLeftToTheCommandLine) {
  const auto result = WithDeepSpeed(
      "{\"train_batch_size\": \"auto\", \"bf16\": {\"enabled\": \"auto\"},"
      "\"gradient_clipping\": 1.0}");
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->config.train().global_batch_size(), 4);
  EXPECT_TRUE(result->is_same_run);
}

TEST(FromMegatronTest, DeepSpeedsOptimizerStatesInBFloat16AreMoments) {
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

TEST(FromMegatronTest, RefusesBadDeepSpeedConfigs) {
  const auto refused = [](const std::string& json, const std::string& message) {
    EXPECT_THAT(WithDeepSpeed(json),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ds.json: " + message)));
  };
  refused("{\n\"a\": 1,\n}", "line 3 is no JSON");
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
  EXPECT_FALSE(result.config.model().has_moe_router_load_balancing_type());
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

// The tables.

TEST(FlagTableTest, EveryRowNamesAFieldAndAValueThatItTakes) {
  for (const FlagRow& row : AllFlagRows()) {
    if (!row.path.empty()) {
      EXPECT_THAT(AllPaths(*config::PretrainConfig::descriptor()), Contains(row.path)) << row.flag;
    }
    EXPECT_TRUE(!row.path.empty() || !row.why.empty()) << row.flag;
    EXPECT_THAT(row.flag, Not(HasSubstr("_"))) << "underscores count as dashes";
  }
}

// A field that is added under the name of a flag in the table makes the row wrong.
TEST(FlagTableTest, NoRowHidesAFieldOfItsName) {
  const std::set<absl::string_view> code = {"data-parallel-sharding-strategy"};
  for (const FlagRow& row : AllFlagRows()) {
    if (!row.value.empty() || code.count(row.flag) > 0) continue;
    EXPECT_EQ(FindField(row.flag), "") << "remove the row of --" << row.flag;
  }
}

TEST(FlagTableTest, EveryFlagNamesOneField) {
  std::map<std::string, std::string> paths;
  for (const std::string& path : AllPaths(*config::PretrainConfig::descriptor())) {
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos || IsOurOwnField(path)) continue;
    if (absl::StartsWith(path, "train.rampup_batch_size.")) continue;
    const auto [other, is_new] = paths.emplace(path.substr(dot + 1), path);
    EXPECT_TRUE(is_new) << path << " and " << other->second;
  }
}

// megatron_defaults.txt says for each field of a flag what Megatron does without the flag.
TEST(FlagTableTest, EveryDefaultThatDiffersIsInTheTable) {
  std::map<std::string, std::string> defaults;
  for (absl::string_view line : absl::StrSplit(ReadTestFile("megatron_defaults.txt"), '\n')) {
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    ASSERT_EQ(words.size(), 2) << line;
    EXPECT_TRUE(defaults.emplace(words[0], words[1]).second) << line;
  }
  std::set<std::string> in_table = {"parallel.ddp_bucket_size",  // these two are read by code
                                    "parallel.data_parallel_sharding_strategy"};
  for (const DefaultRow& row : DefaultRows()) in_table.emplace(row.path);
  const config::PretrainConfig empty;
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    if (IsOurOwnField(path)) {
      EXPECT_EQ(defaults.count(path), 0) << path << " is our own field";
      continue;
    }
    const auto known = defaults.find(path);
    ASSERT_TRUE(known != defaults.end())
        << path << " is new: write Megatron's default into testdata/megatron_defaults.txt, or the "
        << "field into kOurOwn of flag_table.cc";
    const FieldRef ref = Resolve(empty, path);
    const std::string ours = ref.field->has_default_value() ? ValueText(ref) : "none";
    const std::string& theirs = known->second;
    EXPECT_EQ(theirs != ours, in_table.count(path) > 0)
        << path << " is " << theirs << " in Megatron and " << ours
        << " here: DefaultRows() of flag_table.cc says it where it differs";
    defaults.erase(known);
  }
  for (const auto& [path, value] : defaults) ADD_FAILURE() << "there is no field " << path;
}

}  // namespace
}  // namespace megatron
