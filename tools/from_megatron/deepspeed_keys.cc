#include "tools/from_megatron/deepspeed_keys.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace megatron {
namespace {

constexpr char kSent[] = "messages are sent in the way that docs/data_parallel.md describes";
constexpr char kStates[] =
    "states move between memory, disk and GPU in the way that docs/offload.md describes";
constexpr char kWritten[] = "metrics.jsonl and logging.profile have what is measured";
constexpr char kTracked[] =
    "bazel run //tools:track sends a run's metrics to W&B, MLflow or trackio";
constexpr char kRecomputed[] = "a rank keeps the input of what it recomputes in its own memory";
constexpr char kTorch[] = "it is about PyTorch or Python";
constexpr char kQuantized[] = "weights and gradients are sent as they are";

constexpr KeyRow kKeys[] = {
    {"gradient_clipping", "optimizer.clip_grad", "", Effect::kNothing, ""},
    {"steps_per_print", "train.log_interval", "", Effect::kNothing, ""},
    {"wall_clock_breakdown", "", "false", Effect::kSpeed, kWritten},
    {"memory_breakdown", "", "false", Effect::kSpeed, kWritten},
    {"dump_state", "", "false", Effect::kSpeed, kWritten},
    {"comms_logger.*", "", "", Effect::kSpeed, kWritten},
    {"flops_profiler.*", "", "", Effect::kSpeed, kWritten},
    {"wandb.*", "", "", Effect::kSpeed, kTracked},
    {"comet.*", "", "", Effect::kSpeed, kTracked},
    {"csv_monitor.*", "", "", Effect::kSpeed, kWritten},
    {"data_types.grad_accum_dtype", "optimizer.main_grads_dtype", "", Effect::kNothing, ""},
    {"sparse_gradients", "", "false", Effect::kSpeed,
     "parallel.sparse_gradients sends the rows of an untied word table that occur, and is off"},
    {"disable_allgather", "", "false", Effect::kSpeed, kSent},
    {"zero_allow_untested_optimizer", "", "", Effect::kNothing,
     "every optimizer here can be sharded"},
    {"zero_force_ds_cpu_optimizer", "", "", Effect::kNothing,
     "an optimizer computes the same on the host and on the GPU"},
    {"fp16.auto_cast", "", "false", Effect::kRounding,
     "inputs are token ids; nothing is cast by itself"},
    {"fp16.consecutive_hysteresis", "", "false", Effect::kResults,
     "the count of overflows starts anew only when the loss scale has grown"},
    {"fp16.fp16_master_weights_and_grads", "", "false", Effect::kRounding,
     "master weights and gradients are fp32"},
    {"bf16.bf16_master_weights_and_grads", "", "false", Effect::kRounding,
     "master weights and gradients are fp32"},
    {"bf16.immediate_grad_update", "", "", Effect::kSpeed, kSent},
    {"bf16.check_grad_overflow", "", "", Effect::kNothing,
     "a gradient that is not finite is never applied"},
    {"amp.*", "", "", Effect::kRounding,
     "Apex's mixed precision is not there: set precision.fp16 or precision.bf16"},
    {"torch_autocast.*", "", "", Effect::kRounding,
     "PyTorch's autocast is not there: set precision.fp16 or precision.bf16"},
    {"zero_optimization.allgather_partitions", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.allgather_bucket_size", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.reduce_scatter", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.reduce_bucket_size", "", "", Effect::kSpeed,
     "parallel.ddp_bucket_size divides the messages"},
    {"zero_optimization.contiguous_gradients", "", "", Effect::kNothing,
     "gradients are contiguous"},
    {"zero_optimization.round_robin_gradients", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.use_multi_rank_bucket_allreduce", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.load_from_fp32_weights", "", "", Effect::kNothing,
     "a checkpoint has the master weights"},
    {"zero_optimization.elastic_checkpoint", "", "", Effect::kNothing,
     "a checkpoint loads into every layout"},
    {"zero_optimization.sub_group_size", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.stage3_*", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.param_persistence_threshold", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.ignore_unused_parameters", "", "", Effect::kNothing,
     "every parameter is used"},
    {"zero_optimization.legacy_stage1", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.memory_efficient_linear", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.zero_hpz_partition_size", "parallel.zero_hpz_partition_size", "",
     Effect::kNothing, ""},
    {"zero_optimization.mics_*", "", "", Effect::kSpeed, kSent},
    {"zero_optimization.offload_optimizer.pin_memory", "", "", Effect::kNothing,
     "gradients and weights go through page-locked memory"},
    {"zero_optimization.offload_optimizer.*", "", "", Effect::kSpeed, kStates},
    {"zero_optimization.offload_param.pin_memory", "", "", Effect::kNothing,
     "parameters lie in page-locked memory"},
    {"zero_optimization.offload_param.*", "", "", Effect::kSpeed, kStates},
    {"zero_optimization.cpu_offload", "optimizer.optimizer_cpu_offload", "", Effect::kNothing, ""},
    {"zero_optimization.cpu_offload_use_pin_memory", "", "", Effect::kNothing,
     "gradients and weights go through page-locked memory"},
    {"zero_optimization.cpu_offload*", "", "false", Effect::kSpeed, kParametersStay},
    {"zero_optimization.zero_quantized_weights", "parallel.zero_quantized_weights", "",
     Effect::kNothing, ""},
    {"zero_optimization.zero_quantized_gradients", "parallel.zero_quantized_gradients", "",
     Effect::kNothing, ""},
    {"zero_optimization.zero_quantized_*", "", "false", Effect::kRounding, kQuantized},
    {"zero_optimization.zeropp_loco_param.*", "", "", Effect::kRounding, kQuantized},
    {"zero_optimization.zenflow.*", "", "", Effect::kResults,
     "every gradient is applied in its own step"},
    {"aio.*", "", "", Effect::kSpeed, kStates},
    {"activation_checkpointing.profile", "", "false", Effect::kSpeed, kWritten},
    {"activation_checkpointing.cpu_checkpointing", "", "false", Effect::kSpeed,
     "recompute.cpu_offloading_num_layers keeps the inputs of recomputed layers in host memory, "
     "and "
     "is off"},
    {"activation_checkpointing.*", "", "false", Effect::kSpeed, kRecomputed},
    {"checkpoint.*", "", "", Effect::kSpeed, "checkpoints are written as checkpoint.save says"},
    {"nebula.*", "", "", Effect::kSpeed, "checkpoints are written as checkpoint.save says"},
    {"datastates_ckpt.*", "", "", Effect::kSpeed,
     "checkpoints are written as checkpoint.save says"},
    {"use_node_local_storage", "", "false", Effect::kSpeed,
     "checkpoints are written as checkpoint.save says"},
    {"dataloader_drop_last", "", "", Effect::kNothing, "a batch that is not whole is not used"},
    {"pipeline.*", "", "", Effect::kSpeed, "the pipeline is that of docs/pipeline.md"},
    {"graph_harvesting", "", "false", Effect::kSpeed, "CUDA graphs are system.cuda_graph_impl"},
    {"compile.*", "", "", Effect::kSpeed, kTorch},
    {"timers.*", "", "", Effect::kSpeed, kWritten},
    {"hybrid_engine.*", "", "", Effect::kNothing, "it is about inference"},
    {"autotuning.*", "", "", Effect::kSpeed, "the layout is the configuration's"},
    {"elasticity.enabled", "elasticity.enabled", "", Effect::kNothing, ""},
    {"elasticity.max_train_batch_size", "elasticity.max_train_batch_size", "", Effect::kNothing,
     ""},
    {"elasticity.min_gpus", "elasticity.min_gpus", "", Effect::kNothing, ""},
    {"elasticity.max_gpus", "elasticity.max_gpus", "", Effect::kNothing, ""},
    {"elasticity.prefer_larger_batch", "elasticity.prefer_larger_batch", "", Effect::kNothing, ""},
    {"elasticity.ignore_non_elastic_batch_info", "elasticity.ignore_non_elastic_batch_info", "",
     Effect::kNothing, ""},
    {"elasticity.min_time", "", "", Effect::kNothing, "it is for the scheduler of a cluster"},
    {"elasticity.model_parallel_size", "", "", Effect::kNothing,
     "the sizes of tensor, context and pipeline parallelism say it"},
    {"curriculum_learning.*", "", "", Effect::kResults, "the curriculum has no such key"},
    {"data_efficiency.*", "", "", Effect::kResults,
     "samples are not chosen by difficulty; samples that begin short are "
     "data.curriculum_learning"},
    {"progressive_layer_drop.*", "", "", Effect::kResults, "no layer is left out"},
    {"compression_training.*", "", "", Effect::kResults, "weights are not compressed"},
    {"quantize_training.*", "", "", Effect::kResults, "weights are not quantized"},
    {"eigenvalue.*", "", "", Effect::kResults, "weights are not quantized"},
    {"sparse_attention.*", "", "", Effect::kResults, "attention sees all tokens in front"},
    {"tensor_parallel.*", "", "", Effect::kSpeed,
     "parallel.tensor_model_parallel_size divides layers"},
    {"sequence_parallel_size", "", "1", Effect::kSpeed,
     "parallel.context_parallel_size divides samples"},
};

constexpr absl::string_view kSwitchedBlocks[] = {"amp",
                                                 "autotuning",
                                                 "comms_logger",
                                                 "compile",
                                                 "csv_monitor",
                                                 "curriculum_learning",
                                                 "data_efficiency",
                                                 "eigenvalue",
                                                 "elasticity",
                                                 "flops_profiler",
                                                 "hybrid_engine",
                                                 "progressive_layer_drop",
                                                 "quantize_training",
                                                 "tensorboard",
                                                 "torch_autocast",
                                                 "wandb",
                                                 "comet",
                                                 "fp16",
                                                 "bf16",
                                                 "bfloat16",
                                                 "nebula"};

bool Covers(absl::string_view row, absl::string_view key) {
  if (absl::ConsumeSuffix(&row, ".*")) {
    return key == row || (absl::StartsWith(key, row) && key[row.size()] == '.');
  }
  if (absl::ConsumeSuffix(&row, "*")) return absl::StartsWith(key, row);
  return key == row;
}

}  // namespace

const KeyRow* FindKeyRow(absl::string_view key) {
  for (const KeyRow& row : kKeys) {
    if (Covers(row.key, key)) return &row;
  }
  return nullptr;
}

bool IsSwitchedBlock(absl::string_view key) { return absl::c_linear_search(kSwitchedBlocks, key); }

}  // namespace megatron
