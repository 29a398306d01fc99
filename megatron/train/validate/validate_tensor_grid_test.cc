#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

constexpr char kSquare[] = "parallel.tensor_parallel_mode=2d";
constexpr char kFour[] = "parallel.tensor_model_parallel_size=4";
constexpr char kSquares[] = "parallel.tensor_parallel_mode=2.5d";
constexpr char kTwoLevels[] = "parallel.tensor_parallel_depth=2";
constexpr char kCube[] = "parallel.tensor_parallel_mode=3d";
constexpr char kEight[] = "parallel.tensor_model_parallel_size=8";

TEST(ValidateTensorGridTest, RefusesEachBrokenRuleByName) {
  ExpectOnlyError({
      {{"optimizer.freeze=a", kSquare, kFour, "train.micro_batch_size=2"},
       "its layers compute all gradients"},
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
      {{kCube, kEight, "train.micro_batch_size=4", "model.swiglu=true",
        "model.disable_bias_linear=true", "model.add_mlp_bias=true"},
       "cannot be used with model.add_mlp_bias = true"},
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
      {{kSquare, kFour, "model.add_output_bias=true"},
       "cannot be used with model.add_output_bias = true"},
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
      {{kSquare, kFour, "model.softmax_type=learnable"},
       "cannot be used with model.softmax_type = learnable"},
      {{kSquare, kFour, "optimizer.optimizer=muon"}, "cannot be used with optimizer.optimizer"},
      {{kSquare, kFour, "optimizer.optimizer=lamb"}, "cannot be used with optimizer.optimizer"},
      {{kSquare, kFour, "logging.diagnostics_interval=2"},
       "cannot be used with logging.diagnostics_interval"},
      {{kSquare, kFour, "parallel.topology_file=machines.txt"},
       "cannot be used with parallel.topology_file"},
      {{kSquare, kFour, "optimizer.optimizer_cpu_offload=true", "parallel.param_cpu_offload=true"},
       "cannot be used with parallel.param_cpu_offload"},
      {{kSquare, kFour, "system.device=cuda", "system.cuda_graph_impl=local"},
       "cannot be used with system.cuda_graph_impl"},
      {{kSquare, kFour, "diloco.sync_every=5", "parallel.data_parallel_size=2",
        "parallel.use_distributed_optimizer=true",
        "parallel.num_distributed_optimizer_instances=2"},
       "cannot be used with diloco.sync_every"},
  });
}

}  // namespace
}  // namespace megatron
