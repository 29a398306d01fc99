#include "megatron/train/validate/validate.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGood[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 10 }\n"
    "data { mock_data: true }\n";

// Curriculums for it.
constexpr char kGrows[] =
    "data.curriculum_learning={schedule_type: fixed_linear min_difficulty: 8 "
    "total_curriculum_step: 5}";
constexpr char kListed[] =
    "data.curriculum_learning={schedule_type: fixed_discrete difficulty: [8, 16, 32] max_step: [3, "
    "4]}";

constexpr char kDrops[] = "data.random_ltd={min_value: 8 require_steps: 5}";

constexpr char kSparse[] = "parallel.sparse_gradients=true",
               kUntied[] = "model.untie_embeddings_and_output_weights=true";

constexpr char kServer[] = "diloco.server_address=a:1", kSecret[] = "diloco.secret_file=s";
constexpr char kSquare[] = "parallel.tensor_parallel_mode=2d",
               kFour[] = "parallel.tensor_model_parallel_size=4";
constexpr char kSquares[] = "parallel.tensor_parallel_mode=2.5d",
               kTwoLevels[] = "parallel.tensor_parallel_depth=2",
               kCube[] = "parallel.tensor_parallel_mode=3d",
               kEight[] = "parallel.tensor_model_parallel_size=8";

// Checks the valid configuration with these overrides.
std::vector<std::string> ErrorsWith(const ConfigOverrides& overrides,
                                    ConfigPurpose purpose = ConfigPurpose::kDryRun) {
  return ErrorsOf(kGood, overrides, purpose);
}

TEST(ValidateTest, AcceptsAGoodConfig) {
  EXPECT_THAT(ErrorsWith({}), IsEmpty());
  EXPECT_THAT(ErrorsWith({}, ConfigPurpose::kRun), IsEmpty());
}

TEST(ValidateTest, AcceptsGridsOfTensorParallelRanks) {
  EXPECT_THAT(ErrorsWith({kSquare, kFour}), IsEmpty());
  EXPECT_THAT(ErrorsWith({kSquares, kTwoLevels, kEight, "train.micro_batch_size=4"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({kCube, kEight, "train.micro_batch_size=4"}), IsEmpty());
}

TEST(ValidateTest, AcceptsWhatItCompletedItself) {
  ParsedConfig parsed =
      ParseConfig(kGood, "x", {"checkpoint.save=d", "recompute.recompute_granularity=selective"});
  ResolveDefaults(&parsed.config);
  EXPECT_THAT(Validate(parsed.config, parsed.locations), IsEmpty());
}

TEST(ValidateTest, AsksForWhatIsRequired) {
  const ParsedConfig parsed = ParseConfig("model { num_layers: 1 }", "x");
  std::vector<std::string> texts;
  for (const ConfigError& error : Validate(parsed.config, parsed.locations))
    texts.push_back(ToString(error));
  EXPECT_THAT(
      texts,
      ElementsAre("x:1:1: model.hidden_size: is required: an integer from 1 to 1048576",
                  "x:1:1: model.num_attention_heads: is required: an integer from 1 to 65536",
                  "x:1:1: model.seq_length: is required: an integer from 1 to 16777216",
                  "x: optimizer.lr: is required: a number from 0 to 1000",
                  "x: train.micro_batch_size: is required: an integer from 1 to 1048576",
                  "x: train.train_iters: is required, or train.train_samples: an integer from 1 to "
                  "1000000000000",
                  "x: data.data_path: there is no data: set data.data_path, data.stories or "
                  "data.mock_data"));
}

TEST(ValidateTest, NamesBothFieldsAndBothPlacesWhereTwoDisagree) {
  EXPECT_THAT(
      ErrorsWith({"model.num_attention_heads=6"}),
      ElementsAre(
          "x:1:23: model.hidden_size = 64: must be divisible by model.num_attention_heads = 6 "
          "(--set model.num_attention_heads=6), or model.kv_channels be set"));
  EXPECT_THAT(ErrorsWith({"model.num_attention_heads=6", "model.kv_channels=16"}), IsEmpty());
}

TEST(ValidateTest, DoesNotJudgeByAFieldThatIsWrongItself) {
  EXPECT_THAT(ErrorsWith({"model.num_attention_heads=0"}),
              ElementsAre("--set model.num_attention_heads=0: model.num_attention_heads = 0: "
                          "expects an integer from 1 to 65536"));
  const ParsedConfig parsed = ParseConfig(kGood, "x", {"model.num_attention_heads=many"});
  EXPECT_EQ(parsed.errors.size(), 1);
  EXPECT_THAT(Validate(parsed.config, parsed.locations), IsEmpty());
}

TEST(ValidateTest, ComputesNothingFromAFieldThatIsOutOfRange) {
  constexpr char kLargest[] = "9223372036854775807";
  EXPECT_EQ(ErrorsWith({absl::StrCat("model.hidden_size=", kLargest),
                        absl::StrCat("train.micro_batch_size=", kLargest),
                        absl::StrCat("parallel.data_parallel_size=", kLargest)})
                .size(),
            3);
}

// Each case breaks one rule, and has a piece of the only error that must result.
TEST(ValidateTest, RefusesEachBrokenRuleByName) {
  struct Case {
    std::vector<std::string> overrides;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"model.num_query_groups=2"}, "needs model.group_query_attention: true"},
      {{"model.group_query_attention=true"}, "needs model.num_query_groups"},
      {{"parallel.data_parallel_size=2", "parallel.rank_order=tp-dp"},
       "names tp, cp, ep, dp and pp, each once"},
      {{"parallel.rank_order=tp-cp-ep-pp-dp"}, "has no effect with"},
      {{"model.group_query_attention=true", "model.num_query_groups=3"},
       "must be divisible by model.num_query_groups = 3"},
      {{"model.max_position_embeddings=16"}, "must be at least model.seq_length = 32"},
      {{"model.rotary_base=500000"},
       "has no effect with model.position_embedding_type = learned_absolute (default)"},
      {{"model.position_embedding_type=rope", "model.rope_scaling_factor=4"},
       "has no effect with model.use_rope_scaling"},
      {{"model.position_embedding_type=rope", "model.rotary_percent=0.2"}, "rotates 3 channels"},
      {{"model.position_embedding_type=yarn", "model.use_rope_scaling=true"},
       "has no effect with model.position_embedding_type = yarn"},
      {{"model.position_embedding_type=yarn", "model.yarn_beta_slow=40"},
       "must be less than model.yarn_beta_fast = 32"},
      {{"model.position_embedding_type=rope", "model.yarn_rotary_scaling_factor=8"},
       "has no effect with model.position_embedding_type = rope"},
      {{"model.no_rope_freq=\"2\""},
       "has no effect with model.position_embedding_type = learned_absolute (default)"},
      {{"model.position_embedding_type=rope", "model.no_rope_freq=\"[1]*3\""},
       "says it of fewer than"},
      {{"model.position_embedding_type=rope", "model.no_rope_freq=\"1\""},
       "leaves no layer that rotates"},
      {{"model.window_attn_skip_freq=\"2\""}, "has no effect without model.window_size"},
      {{"model.window_size=8", "model.window_attn_skip_freq=\"1\""},
       "leaves no layer with a window"},
      {{"model.window_size=8", "model.window_attn_skip_freq=\"[1,2]\""},
       "expects a number, or lists of 0 and 1"},
      {{"model.window_size=8", "model.rotary_base_local=1000"},
       "has no effect with model.position_embedding_type = learned_absolute (default)"},
      {{"model.window_size=0"}, "expects an integer from 1 to 16777216"},
      {{"model.swiglu=true", "model.activation_func=gelu_erf"},
       "has no effect with model.swiglu = true"},
      {{"model.add_qkv_bias=true"}, "has no effect with model.disable_bias_linear = false"},
      {{"model.activation_func_clamp_value=7"}, "has no effect with model.swiglu = false"},
      {{"model.glu_linear_offset=1"}, "has no effect with model.swiglu = false"},
      {{"model.init_method_xavier_uniform=true", "model.init_method_std=0.5"},
       "has no effect with model.init_method_xavier_uniform = true"},
      {{"optimizer.freeze=[\"a(\"]"}, "is no regular expression"},
      {{"optimizer.freeze=a", "optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4"},
       "averages the momentum of all parameters"},
      {{"optimizer.freeze=a", "gradient_compression.type=int8", "parallel.data_parallel_size=2"},
       "keeps errors of all gradients"},
      {{"optimizer.freeze=a", "optimizer.qk_clip=true"}, "scales the weights of queries and keys"},
      {{"optimizer.freeze=a", kSquare, kFour, "train.micro_batch_size=2"},
       "its layers compute all gradients"},
      {{"model.norm_epsilon=nan"}, "expects a number from 0 (excluded) to 1"},
      {{"model.hidden_dropout=1"}, "expects a number from 0 to 1 (excluded)"},
      {{"parallel.tensor_model_parallel_size=8"},
       "must be divisible by parallel.tensor_model_parallel_size = 8"},
      {{"parallel.pipeline_model_parallel_size=3"},
       "must be divisible by parallel.pipeline_model_parallel_size = 3"},
      {{"model.num_attention_heads=12", "model.hidden_size=96", "model.group_query_attention=true",
        "model.num_query_groups=3", "parallel.tensor_model_parallel_size=4"},
       "must divide, or be divisible by, parallel.tensor_model_parallel_size = 4"},
      {{"parallel.data_parallel_sharding_strategy=optim_grads"},
       "with parallel.use_distributed_optimizer = false (default)"},
      {{"parallel.num_distributed_optimizer_instances=2", "parallel.data_parallel_size=2"},
       "with parallel.use_distributed_optimizer = false (default)"},
      {{"parallel.num_distributed_optimizer_instances=3", "parallel.data_parallel_size=2",
        "parallel.context_parallel_size=2", "parallel.use_distributed_optimizer=true"},
       "must divide the 4 ranks with the same weights"},
      {{"parallel.collective_algorithm=ring"}, "has no effect with"},
      {{"parallel.collective_algorithm=tree", "parallel.data_parallel_size=2", "system.device=cuda",
        "parallel.distributed_backend=nccl"},
       "NCCL chooses its own, by NCCL_ALGO"},
      {{"parallel.hierarchical_collectives_ranks_per_host=2"}, "has no effect with"},
      {{"parallel.hierarchical_collectives_ranks_per_host=3", "parallel.data_parallel_size=4"},
       "3 ranks per host do not divide 4 ranks"},
      {{"parallel.hierarchical_collectives_ranks_per_host=4", "parallel.data_parallel_size=4"},
       "no group of data-parallel ranks has several ranks on each of several hosts"},
      {{"parallel.hierarchical_collectives_ranks_per_host=4",
        "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
        "parallel.data_parallel_size=3"},
       "group dp-cp-0 has 2 of its 3 ranks on host 0 and 1 on host 1"},
      {{"parallel.zero_hpz_partition_size=2", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true"},
       "has no effect with parallel.data_parallel_sharding_strategy = optim (default)"},
      {{"parallel.zero_hpz_partition_size=3", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params"},
       "must divide, and be less than, the 4 ranks with the same weights"},
      {{"parallel.zero_hpz_partition_size=4", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params"},
       "must divide, and be less than, the 4 ranks with the same weights"},
      {{"parallel.zero_hpz_partition_size=2", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params",
        "parallel.num_distributed_optimizer_instances=2"},
       "does not go with parallel.num_distributed_optimizer_instances = 2"},
      {{"parallel.zero_quantized_weights=true", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params",
        "parallel.num_distributed_optimizer_instances=2"},
       "does not go with parallel.num_distributed_optimizer_instances = 2"},
      {{"gradient_compression.type=int8"}, "has no effect with one data-parallel rank"},
      {{"gradient_compression.type=topk", "parallel.data_parallel_size=4",
        "gradient_compression.density=0.3"},
       "must be at most 0.25 with 4 ranks"},
      {{"gradient_compression.type=int8", "parallel.data_parallel_size=4",
        "gradient_compression.start_iteration=1000000"},
       "or no gradient is compressed"},
      {{"gradient_compression.type=int8", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads"},
       "gradients that are sharded are summed in each micro-batch"},
      {{"gradient_compression.type=powersgd", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.num_distributed_optimizer_instances=2"},
       "instances sum shards, which cut matrices"},
      {{"gradient_compression.type=int8", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true", "parallel.num_distributed_optimizer_instances=2",
        "diloco.sync_every=2"},
       "islands send no gradients"},
      {{"gradient_compression.type=topk", "parallel.data_parallel_size=4", "system.device=cuda"},
       "it has no kernels for GPUs"},
      {{"gradient_compression.type=topk", "parallel.data_parallel_size=4", "precision.fp16=true"},
       "in units of a loss scale that changes"},
      {{"gradient_compression.type=threshold", "parallel.data_parallel_size=4"},
       "gradient_compression.threshold: is required with gradient_compression.type = threshold"},
      {{"gradient_compression.type=threshold", "parallel.data_parallel_size=4",
        "gradient_compression.threshold=1e-4", "gradient_compression.max_density=0.3"},
       "must be at most 0.25 with 4 ranks"},
      {{"gradient_compression.type=threshold", "parallel.data_parallel_size=4",
        "gradient_compression.threshold=1e-4", "system.device=cuda"},
       "it has no kernels for GPUs"},
      {{"gradient_compression.type=topk", "parallel.data_parallel_size=4",
        "gradient_compression.threshold=1e-4"},
       "has no effect with gradient_compression.type = topk"},
      {{"gradient_compression.type=int8", "parallel.data_parallel_size=4",
        "parallel.communication_data_type=fp16"},
       "gradients are rounded once, by one of the two"},
      {{kSparse, "parallel.data_parallel_size=4"},
       "has no effect with model.untie_embeddings_and_output_weights = false (default)"},
      {{kSparse, kUntied}, "has no effect with parallel.data_parallel_size = 1"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads"},
       "gradients that are sharded are summed in each micro-batch"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.num_distributed_optimizer_instances=2"},
       "instances sum shards, which cut rows"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4", "parallel.ddp_bucket_size=1000"},
       "the word table would be in one message with other blocks"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4", "parallel.communication_data_type=bf16"},
       "rows are sent in fp32"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4", "gradient_compression.type=int8"},
       "the word table is sent in one of the two ways"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4", "optimizer.optimizer=onebit_adam",
        "optimizer.freeze_step=4"},
       "it sends signs of momentum in place of gradients"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4", "train.auto_layout=true"},
       "it chooses whether gradients are sharded"},
      {{kSparse, kUntied, "parallel.data_parallel_size=4", "system.device=cuda"},
       "there are no kernels for GPUs"},
      {{kSparse, kUntied, kSquare, kFour, "parallel.data_parallel_size=2"},
       "its tables are cut along both dims"},
      {{"parallel.communication_data_type=fp16"},
       "has no effect with parallel.data_parallel_size = 1"},
      {{"parallel.communication_data_type=fp16", "parallel.data_parallel_size=4",
        "precision.bf16=true", "parallel.grad_reduce_in_bf16=true"},
       "has no effect with parallel.grad_reduce_in_bf16 = true"},
      {{"parallel.prescale_gradients=true", "parallel.data_parallel_size=4"},
       "has no effect with parallel.communication_data_type = fp32 (default)"},
      {{"parallel.communication_data_type=fp16", "parallel.data_parallel_size=4",
        "parallel.prescale_gradients=true", "parallel.gradient_predivide_factor=2"},
       "has no effect with parallel.prescale_gradients = true"},
      {{"parallel.communication_data_type=fp16", "parallel.data_parallel_size=4",
        "optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4"},
       "signs are sent in place of gradients"},
      {{"parallel.communication_data_type=fp16", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params",
        "parallel.zero_quantized_gradients=true"},
       "has no effect with parallel.zero_quantized_gradients = true"},
      {{"optimizer.optimizer=onebit_adam"}, "must be less than train.train_iters"},
      {{"optimizer.optimizer=adam", "optimizer.freeze_step=4"},
       "has no effect with optimizer.optimizer = adam"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4",
        "optimizer.exp_avg_dtype=bf16"},
       "has no effect with optimizer.optimizer = onebit_adam"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4",
        "parallel.data_parallel_size=4", "parallel.use_distributed_optimizer=true"},
       "each rank needs the whole momentum"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4",
        "optimizer.optimizer_cpu_offload=true"},
       "momentum is averaged where gradients are"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4",
        "parallel.data_parallel_size=4", "gradient_compression.type=int8"},
       "it sends signs of momentum in place of gradients"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4", "system.device=cuda"},
       "it has no kernels for GPUs"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4", "model.num_experts=4",
        "model.disable_bias_linear=true"},
       "experts lie on other ranks than the rest"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4",
        "logging.diagnostics_interval=1"},
       "there is no gradient of the whole batch"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4",
        "logging.log_num_zeros_in_grad=true"},
       "there is no gradient of the whole batch"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4", "train.auto_layout=true"},
       "their number changes results"},
      {{"optimizer.optimizer=onebit_lamb"}, "must be less than train.train_iters"},
      {{"optimizer.optimizer=onebit_lamb", "optimizer.freeze_step=4", "optimizer.factor_min=5"},
       "must be at most optimizer.factor_max"},
      {{"optimizer.optimizer=onebit_lamb", "optimizer.freeze_step=4",
        "optimizer.lamb_min_coeff=11"},
       "must be at most optimizer.lamb_max_coeff"},
      {{"optimizer.optimizer=onebit_lamb", "optimizer.freeze_step=4",
        "parallel.data_parallel_size=4", "parallel.use_distributed_optimizer=true"},
       "each rank needs the whole momentum"},
      {{"optimizer.optimizer=onebit_lamb", "optimizer.freeze_step=4", kSquare,
        "parallel.tensor_model_parallel_size=4"},
       "tensors that are cut along one dim at most"},
      {{"optimizer.optimizer=onebit_lamb", "optimizer.freeze_step=4",
        "model.group_query_attention=true", "model.num_query_groups=2", kFour},
       "queries have another ratio than keys"},
      {{"optimizer.optimizer=onebit_adam", "optimizer.freeze_step=4",
        "optimizer.factor_threshold=0.2"},
       "has no effect with optimizer.optimizer = onebit_adam"},
      {{"optimizer.optimizer=zero_one_adam", "optimizer.freeze_step=4"},
       "has no effect with optimizer.optimizer = zero_one_adam"},
      {{"optimizer.optimizer=zero_one_adam", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true"},
       "each rank needs the whole momentum"},
      {{"optimizer.optimizer=zero_one_adam", "parallel.data_parallel_size=4",
        "parallel.check_weight_hash_across_dp_replicas_interval=5"},
       "weights of their own between synchronizations"},
      {{"optimizer.optimizer=zero_one_adam", "optimizer.decoupled_lr=0.5"},
       "one sum of learning rates"},
      {{"optimizer.optimizer=zero_one_adam", "optimizer.qk_clip=true"},
       "weights of their own between synchronizations"},
      {{"parallel.zero_quantized_gradients=true", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params", "precision.bf16=true",
        "parallel.grad_reduce_in_bf16=true"},
       "has no effect with parallel.zero_quantized_gradients = true"},
      {{"parallel.zero_quantized_gradients=true", "parallel.data_parallel_size=4",
        "parallel.use_distributed_optimizer=true"},
       "has no effect with parallel.data_parallel_sharding_strategy = optim (default)"},
      {{"parallel.overlap_param_gather=true"},
       "with parallel.use_distributed_optimizer = false (default)"},
      {{"parallel.grad_reduce_in_bf16=true", "parallel.data_parallel_size=2"},
       "needs precision.bf16: true"},
      {{"parallel.use_distributed_optimizer=true", "parallel.ddp_bucket_size=1000",
        "parallel.data_parallel_sharding_strategy=optim_grads", "parallel.data_parallel_size=2"},
       "has no effect with parallel.data_parallel_sharding_strategy = optim_grads"},
      {{"parallel.overlap_grad_reduce=true", "parallel.data_parallel_size=2", "system.device=cuda",
        "parallel.distributed_backend=host"},
       "on GPUs NCCL alone overlaps"},
      {{"parallel.distributed_backend=host", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"parallel.sum_in_rank_order=true", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.gemm_plan_file=plans", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.time_gemm_kernels=true", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.attention_backend=fused", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.attention_backend=fused", "model.attention_dropout=0"},
       "cuDNN does not take fp32; set precision.bf16 or precision.fp16"},
      {{"system.attention_backend=fused", "precision.bf16=true", "model.attention_dropout=0.1"},
       "no effect with model.attention_dropout = 0.1"},
      {{"system.attention_backend=fused", "precision.bf16=true", "model.attention_dropout=0",
        "parallel.context_parallel_size=2"},
       "no effect with parallel.context_parallel_size = 2 (--set "
       "parallel.context_parallel_size=2)"},
      {{"system.attention_backend=fused", "precision.fp16=true", "model.attention_dropout=0",
        "model.position_embedding_type=relative", "model.model_type=t5",
        "model.decoder_seq_length=16"},
       "cuDNN has no learned bias"},
      {{"system.attention_plan_file=plans", "system.attention_backend=local"},
       "has no effect with system.attention_backend = local"},
      {{"system.attention_backend=flash", "precision.bf16=true", "model.attention_dropout=0",
        "model.kv_channels=32"},
       "takes heads of 64 and 128; it would have no effect with model.kv_channels = 32"},
      {{"system.deterministic_mode=true", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.deterministic_mode=true", "system.time_gemm_kernels=true"},
       "against system.deterministic_mode = true"},
      {{"system.fuse_bias_gradients=true", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.fuse_gelu=backward", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.fuse_gelu=both", "model.swiglu=true"},
       "has no effect with model.swiglu = true (--set model.swiglu=true)"},
      {{"system.fuse_gelu=both", "model.activation_func=gelu_erf"},
       "has no effect with model.activation_func = gelu_erf"},
      {{"system.fuse_gelu=backward", "precision.bf16=true", "precision.fp8_format=hybrid"},
       "has no effect with precision.fp8_format = hybrid"},
      {{"system.fuse_gelu=backward", "model.num_experts=4", "model.disable_bias_linear=true"},
       "has no effect with model.num_experts = 4"},
      {{"system.time_gemm_kernels=true", "parallel.ranks_as=processes",
        "parallel.data_parallel_size=2"},
       "parallel.ranks_as: threads"},
      {{"system.cuda_graph_impl=local", "system.device=cpu"},
       "with system.device = cpu (--set system.device=cpu)"},
      {{"system.cuda_graph_warmup_steps=5"}, "with system.cuda_graph_impl = none"},
      {{"system.cuda_graph_impl=local", "parallel.tensor_model_parallel_size=2",
        "parallel.distributed_backend=host"},
       "cannot be used with parallel.tensor_model_parallel_size = 2"},
      {{"system.cuda_graph_impl=local", "parallel.context_parallel_size=2",
        "parallel.distributed_backend=host"},
       "cannot be used with parallel.context_parallel_size = 2"},
      {{"system.cuda_graph_impl=local", "model.num_experts=4", "model.disable_bias_linear=true"},
       "the host reads how many rows each expert gets"},
      {{"system.cuda_graph_impl=local", "parallel.overlap_grad_reduce=true",
        "parallel.data_parallel_size=2"},
       "cannot be used with parallel.overlap_grad_reduce = true"},
      {{"system.cuda_graph_impl=local", "parallel.use_distributed_optimizer=true",
        "parallel.overlap_param_gather=true", "parallel.data_parallel_size=2"},
       "cannot be used with parallel.overlap_param_gather = true"},
      {{"system.cuda_graph_impl=local", "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_size=2", "parallel.data_parallel_sharding_strategy=optim_grads"},
       "lie elsewhere in each pass"},
      {{"diloco.outer_lr=0.5"}, "has no effect with diloco.sync_every = 0 (default)"},
      {{"diloco.sync_every=5", "diloco.outer_momentum=0", "diloco.nesterov=false"},
       "has no effect with diloco.outer_momentum = 0"},
      {{"diloco.sync_every=4"}, "must divide train.train_iters = 10"},
      {{"diloco.num_fragments=2"}, "has no effect with diloco.sync_every = 0 (default)"},
      {{"diloco.sync_every=5", "diloco.num_fragments=2"},
       "must be divisible by diloco.num_fragments = 2"},
      {{"diloco.sync_every=10", "diloco.num_fragments=10"}, "must be at most model.num_layers = 4"},
      {{"diloco.sync_every=10", "diloco.num_fragments=2", "diloco.fragment_sync_delay=5"},
       "must be less than 5, which is diloco.sync_every = 10"},
      {{"diloco.sync_every=5", "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_size=2", "parallel.num_distributed_optimizer_instances=2",
        "parallel.outer_dp_sharding_strategy=optim"},
       "cannot be used with parallel.outer_dp_sharding_strategy = optim"},
      {{"diloco.sync_every=5", "parallel.use_distributed_optimizer=true",
        "parallel.context_parallel_size=2", "parallel.num_distributed_optimizer_instances=2"},
       "ranks 0 and 1 work on the same samples, and would be in islands 0 and 1"},
      {{"diloco.sync_every=5", "optimizer.optimizer_cpu_offload=true"},
       "cannot be used with optimizer.optimizer_cpu_offload = true"},
      {{"diloco.sync_every=5", "precision.bf16=true", "precision.fp8_format=hybrid",
        "precision.fp8_recipe=delayed"},
       "cannot be used with precision.fp8_recipe = delayed"},
      {{"diloco.sync_every=5", "logging.diagnostics_interval=5"},
       "cannot be used with logging.diagnostics_interval = 5"},
      {{"diloco.server_address=a:1"}, "has no effect with diloco.sync_every = 0 (default)"},
      {{"diloco.sync_every=5", "diloco.island=1"}, "has no effect without diloco.server_address"},
      {{"diloco.sync_every=5", "diloco.server_address=a", "diloco.secret_file=s"},
       "must be HOST:PORT of an outer_server"},
      {{"diloco.sync_every=5", "diloco.server_address=a:1"}, "needs diloco.secret_file"},
      {{"diloco.sync_every=5", "diloco.server_address=a:1", "diloco.secret_file=s",
        "diloco.island=2", "diloco.num_islands=2"},
       "must be less than diloco.num_islands = 2"},
      {{"diloco.sync_every=10", "diloco.server_address=a:1", "diloco.secret_file=s",
        "diloco.num_fragments=2"},
       "cannot be used with diloco.num_fragments = 2"},
      {{"diloco.sync_every=5", "diloco.server_address=a:1", "diloco.secret_file=s",
        "parallel.use_distributed_optimizer=true", "parallel.data_parallel_size=2",
        "parallel.num_distributed_optimizer_instances=2"},
       "the run is one island"},
      {{"diloco.sync_every=5", "federated.clip_norm=1"},
       "has no effect without diloco.server_address"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.noise_multiplier=1"},
       "has no effect without federated.clip_norm"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.clip_norm=1", "federated.delta=1e-6"},
       "has no effect with federated.noise_multiplier = 0"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.clip_norm=1",
        "diloco.outer_gradient_dtype=int8"},
       "cannot be used with diloco.outer_gradient_dtype = int8"},
      {{kServer, kSecret, "diloco.sync_every=5", "federated.clip_norm=1",
        "federated.noise_multiplier=1", "federated.max_epsilon=4.7"},
       "one round more would make it 4.729"},
      {{"diloco.sync_every=5", "train.auto_layout=true"},
       "cannot be used with train.auto_layout = true"},
      {{"parallel.check_weight_hash_across_dp_replicas_interval=5"}, "has no effect with"},
      {{"parallel.check_weight_hash_across_dp_replicas_interval=5", "parallel.data_parallel_size=2",
        "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params"},
       "no weight is on two ranks"},
      {{"parallel.check_weight_hash_across_dp_replicas_interval=5", "parallel.data_parallel_size=2",
        "parallel.use_distributed_optimizer=true", "precision.bf16=true",
        "precision.fp8_format=hybrid", "precision.fp8_param_gather=true"},
       "cannot be used with precision.fp8_param_gather = true"},
      {{"parallel.check_collectives=true", "parallel.distributed_backend=host"},
       "with parallel.distributed_backend = host"},
      {{"model.seq_length=31", "parallel.tensor_model_parallel_size=2",
        "parallel.sequence_parallel=true"},
       "must be divisible by parallel.tensor_model_parallel_size = 2"},
      {{"parallel.context_parallel_size=3"},
       "must be divisible by 2 * parallel.context_parallel_size = 3"},
      {{"model.seq_length=4", "parallel.context_parallel_size=2", "parallel.sequence_parallel=true",
        "parallel.tensor_model_parallel_size=4"},
       "must be divisible by parallel.context_parallel_size = 2"},
      {{"model.model_type=bert", "model.seq_length=12", "parallel.context_parallel_size=2"},
       "must be divisible by 4 * parallel.context_parallel_size = 2"},
      {{"parallel.cp_comm_type=a2a"}, "has no effect with parallel.context_parallel_size = 1"},
      {{"parallel.cp_comm_type=a2a", "parallel.context_parallel_size=8"},
       "must be divisible by parallel.context_parallel_size = 8"},
      {{"model.group_query_attention=true", "model.num_query_groups=2",
        "parallel.context_parallel_size=4", "parallel.cp_comm_type=a2a"},
       "must be divisible by parallel.context_parallel_size = 4"},
      {{"parallel.cp_comm_type=a2a_p2p", "parallel.context_parallel_size=4"},
       "must be two numbers whose product is parallel.context_parallel_size = 4"},
      {{"parallel.cp_comm_type=a2a_p2p", "parallel.context_parallel_size=4",
        "parallel.hierarchical_context_parallel_sizes=[4, 2]"},
       "must be two numbers whose product is parallel.context_parallel_size = 4"},
      {{"parallel.cp_comm_type=a2a_p2p", "parallel.context_parallel_size=8",
        "parallel.hierarchical_context_parallel_sizes=[8, 1]"},
       "must be divisible by parallel.hierarchical_context_parallel_sizes = "},
      {{"parallel.context_parallel_size=4", "parallel.hierarchical_context_parallel_sizes=[2, 2]"},
       "has no effect with parallel.cp_comm_type = p2p"},
      {{"parallel.context_parallel_size=1024", "parallel.tensor_model_parallel_size=4",
        "parallel.data_parallel_size=8192", "model.seq_length=2048"},
       "at most 1048576"},
      {{"parallel.num_layers_per_virtual_pipeline_stage=1"},
       "has no effect with parallel.pipeline_model_parallel_size = 1"},
      {{"model.num_layers=8", "parallel.pipeline_model_parallel_size=2",
        "parallel.num_layers_per_virtual_pipeline_stage=3", "train.global_batch_size=4"},
       "must divide model.num_layers = 8"},
      {{"model.num_layers=8", "parallel.pipeline_model_parallel_size=2",
        "parallel.num_layers_per_virtual_pipeline_stage=2"},
       "makes 1 micro-batches"},
      {{"parallel.pipeline_model_parallel_size=2",
        "parallel.num_layers_per_virtual_pipeline_stage=2", "train.global_batch_size=4"},
       "leave it out"},
      {{"model.num_layers=8", "parallel.pipeline_model_parallel_size=3",
        "parallel.decoder_first_pipeline_num_layers=1"},
       "leaves 7 of model.num_layers = 8"},
      {{"model.num_layers=8", "parallel.pipeline_model_parallel_size=2",
        "parallel.decoder_first_pipeline_num_layers=3",
        "parallel.decoder_last_pipeline_num_layers=4"},
       "leaves 1 of model.num_layers = 8"},
      {{"precision.fp16=true", "precision.bf16=true"},
       "contradicts precision.bf16 = true (--set precision.bf16=true)"},
      {{"precision.loss_scale=2"}, "has no effect with precision.fp16 = false (default)"},
      {{"precision.hysteresis=3"}, "has no effect with precision.fp16 = false (default)"},
      {{"precision.fp16=true", "precision.loss_scale=2", "precision.hysteresis=3"},
       "has no effect with precision.loss_scale = 2"},
      {{"precision.fp16=true", "precision.initial_loss_scale=2", "precision.min_loss_scale=4"},
       "must be at most precision.initial"},
      {{"recompute.recompute_method=block"},
       "has no effect with recompute.recompute_granularity = none"},
      {{"recompute.recompute_granularity=full", "recompute.recompute_num_layers=5"},
       "must be at most model.num_layers = 4"},
      {{"recompute.recompute_modules=mlp"},
       "has no effect with recompute.recompute_granularity = none"},
      {{"recompute.recompute_granularity=selective", "recompute.recompute_modules=mlp,mlp"},
       "names a module twice"},
      {{"recompute.mlp_chunk_tokens=64", "recompute.recompute_granularity=selective",
        "recompute.recompute_modules=[core_attn, mlp]"},
       "names mlp, which has no effect with recompute.mlp_chunk_tokens = 64"},
      {{"recompute.mlp_chunk_tokens=64", "model.num_experts=4", "model.disable_bias_linear=true"},
       "has no effect with model.num_experts = 4"},
      {{"recompute.mlp_chunk_tokens=64", "precision.fp8_format=e4m3", "precision.bf16=true"},
       "is not available with precision.fp8_format = e4m3"},
      {{"recompute.attention_chunk_tokens=64", "precision.fp8_format=e4m3", "precision.bf16=true"},
       "attention_chunk_tokens = 64: is not available with precision.fp8_format = e4m3"},
      {{"recompute.attention_chunk_tokens=64", "parallel.tensor_model_parallel_size=2",
        "parallel.sequence_parallel=true"},
       "is not available with parallel.sequence_parallel = true"},
      {{"recompute.attention_chunk_tokens=64", "parallel.context_parallel_size=2"},
       "is not available with parallel.cp_comm_type = p2p"},
      {{"recompute.attention_chunk_tokens=60", "parallel.context_parallel_size=2",
        "parallel.cp_comm_type=a2a"},
       "must be divisible by 4 * parallel.context_parallel_size = 2"},
      {{"recompute.attention_chunk_tokens=64", "parallel.context_parallel_size=2",
        "parallel.cp_comm_type=a2a", "model.seq_length=12"},
       "must be divisible by 4 * parallel.context_parallel_size = 2"},
      {{"recompute.attention_chunk_tokens=64", "model.model_type=t5",
        "model.decoder_seq_length=16"},
       "has no effect with model.model_type = t5"},
      {{"recompute.attention_chunks_on_host=true"}, "recompute.attention_chunk_tokens"},
      {{"recompute.attention_chunk_tokens=64", "recompute.attention_chunks_on_host=true",
        "recompute.cpu_offloading_num_layers=1"},
       "cannot be used with recompute.cpu_offloading_num_layers = 1"},
      {{"recompute.attention_chunk_tokens=64", "recompute.attention_chunks_on_host=true",
        "system.cuda_graph_impl=local"},
       "cannot be used with system.cuda_graph_impl = local"},
      {{"recompute.attention_chunk_tokens=64", "recompute.attention_chunks_on_host=true",
        "parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=zb_h1"},
       "cannot be used with parallel.pipeline_schedule = \"zb_h1\""},
      {{"recompute.cpu_offloading_num_layers=5"},
       "must be at most 4, the most layers that a part of the model has"},
      {{"recompute.cpu_offloading_num_layers=3", "parallel.pipeline_model_parallel_size=2"},
       "must be at most 2, the most layers that a part of the model has"},
      {{"recompute.cpu_offloading_num_layers=2", "parallel.pipeline_model_parallel_size=2",
        "parallel.pipeline_schedule=zb_h1"},
       "cannot be used with parallel.pipeline_schedule = \"zb_h1\""},
      {{"recompute.cpu_offloading_num_layers=1", "parallel.pipeline_model_parallel_size=2",
        "parallel.pipeline_schedule=zb_v"},
       "cannot be used with parallel.pipeline_schedule = \"zb_v\""},
      {{"recompute.cpu_offloading_num_layers=2", "system.cuda_graph_impl=local"},
       "cannot be used with system.cuda_graph_impl = local"},
      {{"recompute.cpu_offloading_num_layers=2", "model.model_type=t5",
        "model.decoder_seq_length=16"},
       "cannot be used with model.model_type = t5"},
      {{"optimizer.min_lr=1"}, "must be at most optimizer.lr = 0.001 (x:2:13)"},
      {{"optimizer.lr_warmup_init=1"}, "must be at most optimizer.lr"},
      {{"optimizer.lr_warmup_iters=10"},
       "must be less than optimizer.lr_decay_iters = 10 (computed); lower "
       "optimizer.lr_warmup_iters or raise train.train_iters"},
      {{"optimizer.lr_warmup_iters=5", "optimizer.lr_decay_iters=5"},
       "lower optimizer.lr_warmup_iters or raise optimizer.lr_decay_iters"},
      {{"optimizer.lr_warmup_iters=1", "optimizer.lr_warmup_fraction=0.5"},
       "contradicts optimizer.lr_warmup_iters = 1"},
      {{"optimizer.lr_wsd_decay_iters=3"}, "has no effect with optimizer.lr_decay_style = linear"},
      {{"optimizer.lr_decay_style=WSD"}, "is required by optimizer.lr_decay_style = WSD"},
      {{"optimizer.lr_decay_style=WSD", "optimizer.lr_wsd_decay_iters=11"},
       "must be at most optimizer.lr_decay_iters = 10"},
      {{"optimizer.end_weight_decay=1"}, "differs from optimizer.weight_decay = 0.01 (default)"},
      {{"optimizer.weight_decay_incr_style=linear", "optimizer.end_weight_decay=1"},
       "needs optimizer.start_weight_decay"},
      {{"optimizer.sgd_momentum=0.5"}, "has no effect with optimizer.optimizer = adam"},
      {{"optimizer.optimizer=sgd", "optimizer.adam_eps=0.5"},
       "has no effect with optimizer.optimizer = sgd"},
      {{"optimizer.optimizer=lion", "optimizer.adam_beta1=0.5"},
       "has no effect with optimizer.optimizer = lion"},
      {{"optimizer.lion_beta2=0.5"}, "has no effect with optimizer.optimizer = adam"},
      {{"optimizer.muon_momentum=0.5"}, "has no effect with optimizer.optimizer = adam"},
      {{"optimizer.optimizer=lamb", "optimizer.exp_avg_dtype=bf16"},
       "has no effect with optimizer.optimizer = lamb"},
      {{"optimizer.exp_avg_sq_dtype=fp8", "optimizer.adam_eps=1e-15"},
       "needs an optimizer.adam_eps of at least 1e-08, not optimizer.adam_eps = 1e-15"},
      {{"optimizer.exp_avg_dtype=fp8", "optimizer.clip_grad=0"},
       "needs an optimizer.clip_grad above 0 and at most 16, not optimizer.clip_grad = 0"},
      {{"optimizer.exp_avg_dtype=fp8", "optimizer.clip_grad=17"},
       "needs an optimizer.clip_grad above 0 and at most 16, not optimizer.clip_grad = 17"},
      {{"optimizer.store_param_remainders=true"}, "has no effect with precision.bf16 = false"},
      {{"optimizer.store_param_remainders=true", "precision.bf16=true", "optimizer.optimizer=lion"},
       "has no effect with optimizer.optimizer = lion"},
      {{"optimizer.store_param_remainders=true", "precision.bf16=true",
        "optimizer.optimizer_cpu_offload=true"},
       "cannot be used with optimizer.optimizer_cpu_offload = true"},
      {{"optimizer.store_param_remainders=true", "precision.bf16=true", "optimizer.qk_clip=true"},
       "cannot be used with optimizer.qk_clip = true"},
      {{"optimizer.store_param_remainders=true", "precision.bf16=true", "diloco.sync_every=5"},
       "cannot be used with diloco.sync_every = 5"},
      {{"optimizer.optimizer=muon", "optimizer.optimizer_cpu_offload=true"},
       "cannot be used with optimizer.optimizer = muon"},
      {{"optimizer.optimizer=lamb", "optimizer.optimizer_cpu_offload=true"},
       "cannot be used with optimizer.optimizer = lamb"},
      {{"optimizer.optimizer=lamb", "optimizer.lamb_min_coeff=11"},
       "must be at most optimizer.lamb_max_coeff = 10 (default)"},
      {{"optimizer.optimizer=muon", "optimizer.muon_tp_mode=distributed",
        "optimizer.muon_split_qkv=false", "parallel.tensor_model_parallel_size=2",
        "model.group_query_attention=true", "model.num_query_groups=1"},
       "must be true, or optimizer.muon_tp_mode blockwise"},
      {{"optimizer.qk_clip_threshold=50"}, "has no effect with optimizer.qk_clip = false"},
      {{"optimizer.qk_clip=true", "optimizer.qk_clip_threshold=0"}, "from 0 (excluded)"},
      {{"optimizer.qk_clip=true", "optimizer.optimizer_cpu_offload=true"},
       "cannot be used with optimizer.optimizer_cpu_offload = true"},
      {{"optimizer.qk_clip=true", "model.qk_layernorm=true"},
       "has no effect with model.qk_layernorm = true"},
      {{"optimizer.optimizer_offload_path=d"},
       "optimizer.optimizer_offload_path = \"d\": has no effect with "
       "optimizer.optimizer_cpu_offload = false"},
      {{"parallel.param_cpu_offload=true"},
       "has no effect with optimizer.optimizer_cpu_offload = false"},
      {{"parallel.param_cpu_offload=true", "optimizer.optimizer_cpu_offload=true",
        "optimizer.optimizer_offload_fraction=0.5"},
       "weights in host memory are updated there"},
      {{"parallel.param_cpu_offload=true", "optimizer.optimizer_cpu_offload=true",
        "parallel.data_parallel_size=2"},
       "cannot be used with parallel.use_distributed_optimizer = false (default): ranks with the "
       "same weights share them out, by optim_grads_params"},
      {{"parallel.param_cpu_offload=true", "optimizer.optimizer_cpu_offload=true",
        "parallel.data_parallel_size=2", "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads"},
       "all weights are on the GPU then"},
      {{"parallel.param_cpu_offload=true", "optimizer.optimizer_cpu_offload=true",
        "parallel.data_parallel_size=4", "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params",
        "parallel.num_distributed_optimizer_instances=2",
        "parallel.outer_dp_sharding_strategy=optim"},
       "instances gather weights on the GPU"},
      {{"parallel.param_cpu_offload=true", "optimizer.optimizer_cpu_offload=true",
        "parallel.data_parallel_size=2", "parallel.use_distributed_optimizer=true",
        "parallel.data_parallel_sharding_strategy=optim_grads_params", "precision.bf16=true",
        "precision.fp8_format=e4m3", "precision.fp8_param_gather=true"},
       "largest weights are found on the GPU"},
      {{"parallel.param_cpu_offload=true", "optimizer.optimizer_cpu_offload=true",
        "system.cuda_graph_impl=local"},
       "what another stream does meanwhile is not captured"},
      {{"parallel.param_cpu_offload=true", "optimizer.optimizer_cpu_offload=true",
        "optimizer.optimizer=muon"},
       "cannot be used with optimizer.optimizer = muon"},
      {{"optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_path=d",
        "optimizer.optimizer_offload_fraction=0"},
       "has no effect with optimizer.optimizer_offload_fraction = 0"},
      {{"optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_path=d",
        "optimizer.optimizer=sgd", "optimizer.sgd_momentum=0"},
       "the optimizer keeps nothing"},
      {{"train.global_batch_size=3"},
       "must be divisible by train.micro_batch_size = 2 (x:3:9) times parallel.data_parallel"},
      {{"train.train_iters=1000000000000", "train.global_batch_size=1000000"},
       "more tokens than 64 bits"},
      {{"model.seq_length=16777216", "train.micro_batch_size=65", "train.global_batch_size=65"},
       "makes micro-batches of 1090519040 tokens; at most 1073741824 are possible"},
      {{"train.global_batch_size=4", "train.rampup_batch_size={start: 2 increment: 2}"},
       "train.rampup_batch_size.samples: is required"},
      {{"train.rampup_batch_size={start: 2 increment: 2 samples: 8}"},
       "must be less than train.global_batch_size = 2"},
      {{"train.global_batch_size=12", "train.rampup_batch_size={start: 2 increment: 4 samples: 8}"},
       "which is 10"},
      {{"train.global_batch_size=4194304",
        "train.rampup_batch_size={start: 2 increment: 2 samples: 8}"},
       "at most 1000000 increments of 2 do not lead from 2 to 4194304"},
      {{"train.train_iters=", "train.train_samples=1"}, "must be at least the first batch size, 2"},
      {{"train.train_samples=100"}, "contradicts train.train_samples = 100"},
      {{"train.train_iters=", "train.train_samples=100", "optimizer.lr_decay_iters=8"},
       "has no effect with train.train_samples"},
      {{"train.train_samples=100", "train.train_iters=", "optimizer.lr_warmup_samples=100"},
       "must be less than optimizer.lr_decay_samples = 100 (computed); lower "
       "optimizer.lr_warmup_samples or raise train.train_samples"},
      {{"optimizer.lr_warmup_samples=100"}, "has no effect without train.train_samples"},
      {{"train.train_samples=100", "train.train_iters=", "optimizer.lr_decay_style=WSD"},
       "optimizer.lr_wsd_decay_samples: is required by optimizer.lr_decay_style = WSD"},
      {{"train.step_batch_size_schedule=0:2 x:4"}, "'x:4' is not a number of tokens, a colon"},
      {{"train.step_batch_size_schedule=0:1 1K:2"},
       "must be divisible by train.micro_batch_size = 2"},
      {{"train.step_batch_size_schedule=0:2 1K:4", "train.global_batch_size=6"},
       "must be the last size of train.step_batch_size_schedule"},
      {{"train.global_batch_size=4", "train.step_batch_size_schedule=0:2 1K:4",
        "train.rampup_batch_size={start: 2 increment: 2 samples: 8}"},
       "cannot be used with train.rampup_batch_size"},
      {{"data.curriculum_learning={schedule_type: fixed_linear min_difficulty: 8 "
        "total_curriculum_step: 10}",
        "train.step_batch_size_schedule=0:2 1K:4"},
       "cannot be used with train.step_batch_size_schedule: both"},
      {{"optimizer.decoupled_lr=1e-4", "optimizer.decoupled_min_lr=1e-3"},
       "optimizer.decoupled_min_lr = 0.001"},
      {{"optimizer.decoupled_min_lr=1e-3"}, "has no effect without optimizer.decoupled_lr"},
      {{"checkpoint.save_retain_interval=5"}, "has no effect without checkpoint.save"},
      {{"checkpoint.save=s", "checkpoint.save_retain_interval=5"},
       "has no effect without checkpoint.save_interval"},
      {{"checkpoint.save=s", "checkpoint.save_interval=2", "checkpoint.save_retain_interval=5"},
       "must be a multiple of checkpoint.save_interval = 2"},
      {{"checkpoint.save=s", "checkpoint.save_interval=5", "checkpoint.keep_last=0",
        "checkpoint.save_retain_interval=5"},
       "has no effect with checkpoint.keep_last = 0"},
      {{"train.iterations_to_skip=[99999999]"}, "has 99999999, and the run's last iteration is"},
      {{"train.seed=-1"}, "expects an integer from 0 to 4294967295"},
      {{"data.mock_data=false"}, "there is no data"},
      {{"data.curriculum_learning={}"}, "data.curriculum_learning.schedule_type: is required"},
      {{"data.curriculum_learning={schedule_type: custom}"}, "is not available"},
      {{"data.curriculum_learning={schedule_type: fixed_root min_difficulty: 8}"},
       "data.curriculum_learning.total_curriculum_step: is required, unless"},
      {{kGrows, "data.curriculum_learning.difficulty=[8]"}, "has no effect with"},
      {{kGrows, "data.curriculum_learning.root_degree=3"}, "has no effect with"},
      {{kGrows, "data.curriculum_learning.max_difficulty=8"},
       "data.curriculum_learning.min_difficulty = 8: must be less than "
       "data.curriculum_learning.max_difficulty = 8"},
      {{kGrows, "data.curriculum_learning.max_difficulty=40"}, "must be at most model.seq_length"},
      {{kGrows, "data.curriculum_learning.min_difficulty=9"},
       "must be divisible by data.curriculum_learning.difficulty_step = 8"},
      {{kGrows, "parallel.context_parallel_size=8"},
       "data.curriculum_learning.difficulty_step = 8: must be divisible by 16, so that samples can "
       "be shared out with parallel.context_parallel_size = 8"},
      {{kGrows, "data.curriculum_learning.difficulty_step=1", "parallel.sequence_parallel=true",
        "parallel.tensor_model_parallel_size=2"},
       "must be divisible by 2, so that samples can be shared out with parallel.sequence_parallel"},
      {{kGrows, "train.global_batch_size=4",
        "train.rampup_batch_size={start: 2 increment: 2 samples: 8}"},
       "cannot be used with train.rampup_batch_size"},
      {{kGrows, "model.model_type=bert"}, "has no effect with model.model_type = bert"},
      {{kListed, "data.curriculum_learning.max_step=[3, 3]"}, "must ascend"},
      {{kListed, "data.curriculum_learning.difficulty=[16, 8, 32]"}, "must ascend"},
      {{kListed, "data.curriculum_learning.max_step=[3]"}, "one number less than"},
      {{kListed, "data.curriculum_learning.difficulty=[8, 16, 64]"}, "must be at most"},
      {{kListed, "parallel.context_parallel_size=8"}, "must be divisible by 16"},
      {{kListed, "data.curriculum_learning.min_difficulty=8"}, "has no effect with"},
      {{"parallel.tensor_parallel_mode=2d"},
       "has no effect with parallel.tensor_model_parallel_size = 1"},
      {{"parallel.tensor_parallel_mode=2.5", "parallel.tensor_model_parallel_size=4"},
       "parallel.tensor_parallel_mode = \"2.5\": expects one of \"1d\", \"2d\", \"2.5d\", \"3d\"; "
       "did "
       "you mean \"2.5d\"?"},
      {{"parallel.tensor_parallel_mode=cubes", "parallel.tensor_model_parallel_size=8"},
       "expects one of \"1d\", \"2d\", \"2.5d\", \"3d\""},
      {{"parallel.tensor_parallel_mode=3d", "parallel.tensor_model_parallel_size=4"},
       "needs a cubic number of ranks: 8, 27, 64, ..., with parallel.tensor_model_parallel_size = "
       "4"},
      {{kSquares, kTwoLevels, "parallel.tensor_model_parallel_size=6"},
       "needs a square number of ranks, 4, 9, 16, ..., times the depth, with "
       "parallel.tensor_model_parallel_size = 6 (--set parallel.tensor_model_parallel_size=6) and "
       "parallel.tensor_parallel_depth = 2"},
      {{kSquares, kTwoLevels, kEight},
       "train.micro_batch_size = 2: must be divisible by 4, the rows on all levels of"},
      {{"parallel.tensor_parallel_mode=2.5d", kFour},
       "must be more than 1 with parallel.tensor_parallel_mode = \"2.5d\""},
      {{kSquare, kFour, "parallel.tensor_parallel_depth=2"},
       "parallel.tensor_parallel_depth = 2: has no effect with parallel.tensor_parallel_mode"},
      {{kCube, kEight},
       "train.micro_batch_size = 2: must be divisible by 4, the rows on all levels of"},
      {{kCube, kEight, "train.micro_batch_size=4", "model.swiglu=true"},
       "cannot be used with model.disable_bias_linear = false"},
      {{kCube, kEight, "train.micro_batch_size=4", "model.num_attention_heads=2",
        "model.kv_channels=33"},
       "model.kv_channels = 33: times model.num_attention_heads = 2 (--set "
       "model.num_attention_heads=2) must be divisible by 4, the rows on all levels of"},
      {{kCube, kEight, "train.micro_batch_size=4", "parallel.sequence_parallel=true"},
       "cannot be used with parallel.sequence_parallel"},
      {{"parallel.tensor_parallel_mode=2d", "parallel.tensor_model_parallel_size=2"},
       "needs a square number of ranks: 4, 9, 16, ..., with parallel.tensor_model_parallel_size"},
      {{kSquare, kFour, "train.micro_batch_size=1"},
       "train.micro_batch_size = 1: must be divisible by 2, the rows and columns of"},
      {{kSquare, "parallel.tensor_model_parallel_size=9", "model.hidden_size=66",
        "model.num_attention_heads=6", "model.ffn_hidden_size=66", "train.micro_batch_size=3"},
       "model.make_vocab_size_divisible_by = 128: must be divisible by 3"},
      {{kSquare, kFour, "model.group_query_attention=true", "model.num_query_groups=1"},
       "model.num_query_groups = 1: must be divisible by 2"},
      {{kSquare, kFour, "parallel.sequence_parallel=true"},
       "cannot be used with parallel.sequence_parallel"},
      {{kSquare, kFour, "parallel.tp_comm_overlap=true"},
       "cannot be used with parallel.tp_comm_overlap"},
      {{kSquare, kFour, "parallel.context_parallel_size=2"},
       "cannot be used with parallel.context_parallel_size = 2"},
      {{kSquare, kFour, "model.num_experts=4", "model.disable_bias_linear=true"},
       "cannot be used with model.num_experts"},
      {{kSquare, kFour, "model.model_type=bert"}, "cannot be used with model.model_type"},
      {{kSquare, kFour, "precision.bf16=true", "precision.fp8_format=e4m3"},
       "cannot be used with precision.fp8_format"},
      {{kSquare, kFour, "recompute.mlp_chunk_tokens=8"},
       "cannot be used with recompute.mlp_chunk_tokens"},
      {{kSquare, kFour, "recompute.attention_chunk_tokens=8"},
       "cannot be used with recompute.attention_chunk_tokens"},
      {{kSquare, kFour, "train.logits_chunk_tokens=8"},
       "cannot be used with train.logits_chunk_tokens"},
      {{kSquare, kFour, "train.calculate_per_token_loss=false"},
       "cannot be used with train.calculate_per_token_loss"},
      {{kSquare, kFour, kDrops}, "cannot be used with data.random_ltd"},
      {{kSquare, kFour, "model.softmax_type=learnable"},
       "cannot be used with model.softmax_type = learnable"},
      {{kSquare, kFour, "optimizer.optimizer=muon"}, "cannot be used with optimizer.optimizer"},
      {{kSquare, kFour, "optimizer.optimizer=lamb"}, "cannot be used with optimizer.optimizer"},
      {{kSquare, kFour, "logging.diagnostics_interval=2"},
       "cannot be used with logging.diagnostics_interval"},
      {{kSquare, kFour, "parallel.topology_file=machines.txt"},
       "cannot be used with parallel.topology_file"},
      {{kSquare, kFour, "train.auto_layout=true"}, "cannot be used with train.auto_layout"},
      {{kSquare, kFour, "optimizer.optimizer_cpu_offload=true", "parallel.param_cpu_offload=true"},
       "cannot be used with parallel.param_cpu_offload"},
      {{kSquare, kFour, "system.device=cuda", "system.cuda_graph_impl=local"},
       "cannot be used with system.cuda_graph_impl"},
      {{kSquare, kFour, "diloco.sync_every=5", "parallel.data_parallel_size=2",
        "parallel.use_distributed_optimizer=true",
        "parallel.num_distributed_optimizer_instances=2"},
       "cannot be used with diloco.sync_every"},
      {{kSquare, kFour, "gradient_compression.type=int8", "parallel.data_parallel_size=2"},
       "cannot be used with gradient_compression.type"},
      {{"data.random_ltd={min_value: 8}"}, "data.random_ltd.require_steps: is required"},
      {{kDrops, "model.window_size=8"}, "cannot be used with model.window_size = 8"},
      {{kDrops, "data.random_ltd.max_value=8"}, "must be less than data.random_ltd.max_value = 8"},
      {{kDrops, "data.random_ltd.max_value=40"}, "must be at most model.seq_length"},
      {{kDrops, "data.random_ltd.seq_per_step=16"},
       "data.random_ltd.min_value = 8: must be divisible by data.random_ltd.seq_per_step = 16"},
      {{kDrops, "model.num_layers=2"}, "data.random_ltd: has no effect with model.num_layers = 2"},
      {{kDrops, "parallel.context_parallel_size=2", "data.random_ltd.seq_per_step=2"},
       "data.random_ltd.seq_per_step = 2: must be divisible by 4, so that samples can be shared "
       "out with parallel.context_parallel_size = 2"},
      {{kDrops, "parallel.context_parallel_size=2", "data.reset_position_ids=true"},
       ": with data.reset_position_ids no rank has the positions of the tokens that it gets"},
      {{kDrops, "precision.bf16=true", "precision.fp8_format=e4m3"},
       "cannot be used with precision.fp8_format"},
      {{kDrops, "data.reset_attention_mask=true"}, "a document might lose all of its own"},
      {{kDrops, "recompute.attention_chunk_tokens=8"},
       "cannot be used with recompute.attention_chunk_tokens"},
      {{kDrops, "logging.diagnostics_interval=2"},
       "cannot be used with logging.diagnostics_interval"},
      {{"data.stories={}"}, "contradicts data.mock_data = true (x:4:8)"},
      {{"data.data_path=a"}, "data.mock_data = true (x:4:8) contradicts data.data_path = [\"a\"]"},
      {{"data.split=1,x"}, "expects up to three shares"},
      {{"data.split=1,2,3,4"}, "expects up to three shares"},
      {{"data.split=0,0"}, "gives nothing"},
      {{"data.vocab_size=5"}, "has no effect with data.tokenizer_type = ByteLevel"},
      {{"data.tokenizer_type=NullTokenizer"},
       "data.vocab_size: is required by data.tokenizer_type"},
      {{"data.tokenizer_type=NullTokenizer", "data.vocab_size=9", "generation={}"}, "prints text"},
      {{"data.tokenizer_type=GPT2BPETokenizer", "data.vocab_file=vocab.json"},
       "data.merge_file: is required by data.tokenizer_type = GPT2BPETokenizer"},
      {{"data.tokenizer_type=HuggingFaceTokenizer", "data.tokenizer_model="},
       "data.tokenizer_model: is required by data.tokenizer_type"},
      {{"data.tokenizer_type=Llama2Tokenizer", "data.tokenizer_model=m", "data.vocab_extra_ids=9"},
       "data.vocab_extra_ids = 9: has no effect with data.tokenizer_type = Llama2Tokenizer"},
      {{"checkpoint.save_interval=5"}, "has no effect without checkpoint.save"},
      {{"checkpoint.finetune=true"}, "has no effect without checkpoint.load"},
      {{"checkpoint.save=d", "checkpoint.finetune=true"},
       "checkpoint.load = \"d\" (computed) is where it saves"},
      {{"checkpoint.load=d", "checkpoint.finetune=true", "checkpoint.no_load_optim=true"},
       "has no effect with checkpoint.finetune"},
  };
  for (const Case& test : cases) {
    EXPECT_THAT(ErrorsWith(test.overrides), ElementsAre(HasSubstr(test.error)))
        << test.overrides.back();
  }
}

TEST(ValidateTest, SaysHowToRemoveAFieldWithoutEffectThatIsInTheFile) {
  const std::string config = std::string(kGood) + "checkpoint { async_save: true }\n";
  EXPECT_THAT(ErrorsOf(config, {}, ConfigPurpose::kDryRun),
              ElementsAre("x:5:14: checkpoint.async_save = true: has no effect without "
                          "checkpoint.save; --set checkpoint.async_save= removes it"));
  EXPECT_THAT(ErrorsOf(config, {"checkpoint.async_save="}, ConfigPurpose::kDryRun), IsEmpty());
  EXPECT_THAT(ErrorsOf(config, {"checkpoint.async_save=true"}, ConfigPurpose::kDryRun),
              ElementsAre("--set checkpoint.async_save=true: checkpoint.async_save = true: has no "
                          "effect without checkpoint.save"));
}

// With one rank, work, gradients and weights cannot be divided.
TEST(ValidateTest, RefusesFieldsThatNeedSeveralRanks) {
  EXPECT_THAT(
      ErrorsWith({"parallel.sequence_parallel=true"}),
      ElementsAre("--set parallel.sequence_parallel=true: parallel.sequence_parallel = true: "
                  "has no effect with parallel.tensor_model_parallel_size = 1 (default)"));
  for (const std::string field :
       {"use_distributed_optimizer=true", "overlap_grad_reduce=true", "ddp_bucket_size=1000"}) {
    const std::string setting = absl::StrCat("parallel.", field);
    EXPECT_THAT(ErrorsWith({setting, "parallel.tensor_model_parallel_size=2"}),
                ElementsAre(HasSubstr(
                    "has no effect with parallel.data_parallel_size = 1 (default), with "
                    "parallel.context_parallel_size = 1 (default) and without model.num_experts")));
    EXPECT_THAT(ErrorsWith({setting, "parallel.data_parallel_size=2"}), IsEmpty());
    EXPECT_THAT(ErrorsWith({setting, "parallel.context_parallel_size=2"}), IsEmpty());
    const std::vector<std::string> experts = {setting, "model.num_experts=4",
                                              "model.disable_bias_linear=true"};
    EXPECT_THAT(ErrorsWith(experts), ElementsAre(HasSubstr("no weight has copies on other ranks")));
    std::vector<std::string> copied = experts;
    copied.push_back("parallel.tensor_model_parallel_size=2");
    EXPECT_THAT(ErrorsWith(copied), ElementsAre(HasSubstr("no weight has copies on other ranks")));
    copied.push_back("parallel.expert_tensor_parallel_size=1");
    EXPECT_THAT(ErrorsWith(copied), IsEmpty());
  }
}

TEST(ValidateTest, RefusesHowRanksRunWhereThereIsOne) {
  for (const std::string field : {"ranks_as=processes", "distributed_timeout_minutes=5",
                                  "distributed_timeout_seconds_after_init=5",
                                  "heartbeat_timeout_seconds=5", "stuck_rank_timeout_seconds=5"}) {
    const std::string setting = absl::StrCat("parallel.", field);
    EXPECT_THAT(ErrorsWith({setting}),
                ElementsAre(HasSubstr(
                    "has no effect with parallel.tensor_model_parallel_size = 1 (default), with "
                    "parallel.context_parallel_size = 1 (default), with "
                    "parallel.pipeline_model_parallel_size = 1 (default) and with "
                    "parallel.data_parallel_size = 1 (default)")));
    for (const std::string axis : {"tensor_model", "context", "pipeline_model", "data"}) {
      EXPECT_THAT(ErrorsWith({setting, absl::StrCat("parallel.", axis, "_parallel_size=2")}),
                  IsEmpty());
    }
  }
}

TEST(ValidateTest, AConditionAboutABrokenFieldRefusesNothing) {
  EXPECT_THAT(ErrorsWith({"model.num_experts=1", "model.moe_router_topk=1",
                          "model.disable_bias_linear=true", "model.moe_router_pre_softmax=true"}),
              ElementsAre(HasSubstr("expects an integer from 2 to 1024")));
}

TEST(ValidateTest, TellsAllErrorsAtOnce) {
  EXPECT_EQ(ErrorsWith({"precision.fp16=true", "precision.bf16=true", "optimizer.min_lr=1",
                        "model.hidden_dropout=2", "train.global_batch_size=3"})
                .size(),
            4);
}

TEST(ValidateTest, RefusesNcclInAProgramWithoutIt) {
  const std::vector<std::string> nccl = {"parallel.distributed_backend=nccl"};
  EXPECT_THAT(ErrorsWith(nccl, ConfigPurpose::kDryRun), IsEmpty());
  if (NcclLibrary() != nullptr) return;
  EXPECT_THAT(ErrorsWith(nccl, ConfigPurpose::kRun),
              ElementsAre(HasSubstr("has no effect with system.device = cpu (computed)"),
                          HasSubstr("this program was built without NCCL")));
}

TEST(ValidateTest, RefusesToRunWhatCanOnlyBePlanned) {
  const std::vector<std::string> too_much = {"parallel.data_parallel_size=300",
                                             "system.device=cuda"};
  EXPECT_THAT(ErrorsWith(too_much, ConfigPurpose::kDryRun), IsEmpty());
  EXPECT_THAT(ErrorsWith(too_much, ConfigPurpose::kRun),
              ElementsAre(HasSubstr("makes 300 ranks"),
                          HasSubstr("system.device = cuda: there is no GPU here")));
  EXPECT_THAT(
      ErrorsWith({"parallel.tensor_model_parallel_size=2",
                  "parallel.pipeline_model_parallel_size=2", "parallel.data_parallel_size=2"},
                 ConfigPurpose::kRun),
      IsEmpty());
}

TEST(ResolveDefaultsTest, ComputesWhatMegatronComputes) {
  config::PretrainConfig config =
      ParseConfig(kGood, "x", {"parallel.data_parallel_size=3", "checkpoint.save=run/"}).config;
  ResolveDefaults(&config);
  EXPECT_EQ(config.model().ffn_hidden_size(), 256);
  EXPECT_EQ(config.model().kv_channels(), 16);
  EXPECT_EQ(config.model().num_query_groups(), 4);
  EXPECT_EQ(config.model().max_position_embeddings(), 32);
  EXPECT_EQ(config.model().embedding_init_method_std(), 0.02);
  EXPECT_EQ(config.optimizer().lr_decay_iters(), 10);
  EXPECT_EQ(config.optimizer().end_weight_decay(), 0.01);
  EXPECT_EQ(config.train().global_batch_size(), 6);
  EXPECT_EQ(config.checkpoint().load(), "run/");
  EXPECT_EQ(config.logging().metrics_file(), "run/metrics.jsonl");
  EXPECT_EQ(config.logging().tensorboard_dir(), "run/tensorboard");
}

TEST(ResolveDefaultsTest, KnowsTheFfnSizeOfLlama) {
  EXPECT_EQ(DefaultFfnHiddenSize(4096, /*swiglu=*/true), 10880);  // int(16384 * 2/3 / 64) * 64
  EXPECT_EQ(DefaultFfnHiddenSize(768, /*swiglu=*/true), 2048);
  EXPECT_EQ(DefaultFfnHiddenSize(8, /*swiglu=*/true), 64);
  EXPECT_EQ(DefaultFfnHiddenSize(768, /*swiglu=*/false), 3072);
}

}  // namespace
}  // namespace megatron
