#include "tools/from_megatron/deepspeed_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config.pb.h"
#include "nlohmann/json.hpp"
#include "tools/from_megatron/deepspeed_json.h"

namespace megatron {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostSamples = 1 << 20;  // three such numbers have a product below 2^63

// A key that is not read by code. A block of keys ends with ".*"; its first row that names a key
// counts.
struct KeyRow {
  absl::string_view key;
  absl::string_view path;   // the field that is set, or empty
  absl::string_view usual;  // the value, as JSON, that needs nothing here; empty if there is none
  Effect effect;
  absl::string_view why;
};

constexpr char kSent[] = "messages are sent in the way that docs/data_parallel.md describes";
constexpr char kStates[] =
    "states move between memory, disk and GPU in the way that docs/offload.md describes";
constexpr char kHost[] =
    "parameters stay on the GPU: parallel.param_cpu_offload is for stage 3 with all of the "
    "optimizer's states on the host";
constexpr char kWritten[] = "metrics.jsonl and logging.profile have what is measured";
constexpr char kTracked[] =
    "bazel run //tools:track sends a run's metrics to W&B, MLflow or trackio";
constexpr char kRecomputed[] = "a rank keeps the input of what it recomputes in its own memory";
constexpr char kTorch[] = "it is about PyTorch or Python";
constexpr char kQuantized[] = "weights and gradients are sent as they are";

// Parameters of 1-bit LAMB and of 0/1 Adam that are fields of the same name.
constexpr absl::string_view kOneBitLamb[] = {"coeff_beta", "factor_max", "factor_min",
                                             "factor_threshold"};
constexpr absl::string_view kZeroOneAdam[] = {"var_freeze_step", "var_update_scaler",
                                              "local_step_scaler", "local_step_clipper"};

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
    {"data_types.grad_accum_dtype", "", "\"fp32\"", Effect::kRounding,
     "gradients are added up in fp32"},
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
    {"zero_optimization.cpu_offload*", "", "false", Effect::kSpeed, kHost},
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

// Blocks that do nothing unless they have "enabled": true.
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

class Translation {
 public:
  Translation(absl::string_view source, int64_t data_parallel_size, ConfigBuilder* config,
              Findings* findings)
      : source_(source), ranks_(data_parallel_size), config_(*config), findings_(*findings) {}

  absl::Status Apply(const Json& object) {
    for (const auto& [key, value] : object.items())
      MEGATRON_RETURN_IF_ERROR(ApplyEntry(key, value));
    MEGATRON_RETURN_IF_ERROR(ApplyBatch(object));
    MEGATRON_RETURN_IF_ERROR(ApplyShardSize(object));
    MEGATRON_RETURN_IF_ERROR(ApplyCommunication(object));
    if (!object.contains("gradient_clipping") || object["gradient_clipping"] == "auto") {
      MEGATRON_RETURN_IF_ERROR(
          config_.Set("optimizer.clip_grad", {"0"}, "DeepSpeed's default; here it is 1"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(absl::string_view key, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(key, " ", what));
  }

  void Find(Effect effect, const std::string& key, const Json& value, absl::string_view text) {
    const std::string shown =
        value.is_structured()
            ? key
            : absl::StrCat(key, ": ", value.dump(-1, ' ', false, Json::error_handler_t::replace));
    findings_.push_back({effect, std::string(source_), shown, std::string(text)});
  }

  std::string Origin(absl::string_view key) const { return absl::StrCat(source_, " ", key); }

  // Sets the field to a number, a string or a bool.
  absl::Status Set(absl::string_view path, const std::string& key, const Json& value) {
    if (value == "auto") {
      Find(Effect::kSaid, key, value, "it is left to the command line");
      return absl::OkStatus();
    }
    if (value.is_structured() || value.is_null()) return Wrong(key, "has no simple value");
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    const config::PretrainConfig before = config_.config();
    const std::string origin = config_.IsSet(path) ? config_.Origin(path) : "";
    const absl::Status status = config_.Set(path, {text}, Origin(key));
    const bool from_flag = !origin.empty() && !absl::StartsWith(origin, source_) &&
                           !absl::StartsWith(origin, "DeepSpeed");
    if (from_flag && before.SerializeAsString() != config_.config().SerializeAsString())
      Find(Effect::kSaid, key, value, absl::StrCat("it replaces ", path, " of ", origin));
    if (absl::IsNotFound(status)) {
      Find(Effect::kResults, key, value, status.message());
      return absl::OkStatus();
    }
    return status.ok() ? status : Wrong(key, status.message());
  }

  static bool IsOff(const std::string& key, const Json& value) {
    const bool switched = std::find(std::begin(kSwitchedBlocks), std::end(kSwitchedBlocks), key) !=
                          std::end(kSwitchedBlocks);
    return switched && value.is_object() && value.value("enabled", Json(false)) == false;
  }

  absl::Status ApplyEntry(const std::string& key, const Json& value) {
    if (IsOff(key, value)) return absl::OkStatus();
    if (key == "train_batch_size" || key == "train_micro_batch_size_per_gpu" ||
        key == "gradient_accumulation_steps") {
      return absl::OkStatus();  // ApplyBatch() reads them together
    }
    if (key == "communication_data_type" || key == "prescale_gradients" ||
        key == "gradient_predivide_factor") {
      return absl::OkStatus();  // ApplyCommunication() reads them together
    }
    if (key == "steps_per_print" && config_.IsSet("train.log_interval"))
      return absl::OkStatus();  // the log is that of --log-interval
    if (key == "fp16") return ApplyFp16(value);
    if (key == "bf16" || key == "bfloat16") return ApplyBf16(value);
    if (key == "optimizer") return ApplyOptimizer(value);
    if (key == "scheduler") return ApplyScheduler(value);
    if (key == "zero_optimization") return ApplyZero(value);
    if (key == "tensorboard") return ApplyTensorboard(value);
    if (key == "elasticity") return ApplyElasticity(value);
    if (key == "curriculum_learning") return ApplyCurriculum(value);
    if (key == "data_efficiency") return ApplyDataEfficiency(value);
    return ApplyRest(key, value);
  }

  // Factors matter where gradients are sent in 16 bits. Those of prescale_gradients stand in place
  // of gradient_predivide_factor.
  absl::Status ApplyCommunication(const Json& object) {
    constexpr char kType[] = "communication_data_type", kPrescale[] = "prescale_gradients",
                   kFactor[] = "gradient_predivide_factor";
    Json type = object.value(kType, Json("fp32"));
    if (type == "bfp16") type = "bf16";  // DeepSpeed takes both names
    const bool is_narrow = !type.is_null() && type != "fp32" && type != "auto";
    if (is_narrow) {
      MEGATRON_RETURN_IF_ERROR(Set("parallel.communication_data_type", kType, type));
    }
    const Json prescale = object.value(kPrescale, Json(false));
    for (const char* key : {kPrescale, kFactor}) {
      if (!object.contains(key) || object[key].is_null() || object[key] == false) continue;
      if (key == kFactor && prescale == true) continue;
      if (is_narrow) {
        MEGATRON_RETURN_IF_ERROR(Set(absl::StrCat("parallel.", key), key, object[key]));
      } else if (object[key] != 1) {
        Find(Effect::kRounding, key, object[key],
             "gradients are sent in fp32, whose range needs no factors");
      }
    }
    return absl::OkStatus();
  }

  // Looks the key up in the table, and those below it.
  absl::Status ApplyRest(const std::string& key, const Json& value) {
    if (value.is_object()) {
      for (const auto& [name, inner] : value.items())
        MEGATRON_RETURN_IF_ERROR(ApplyRest(absl::StrCat(key, ".", name), inner));
      return absl::OkStatus();
    }
    for (const KeyRow& row : kKeys) {
      if (!Covers(row.key, key)) continue;
      if (value.is_null()) return absl::OkStatus();
      if (!row.path.empty()) return Set(row.path, key, value);
      if (value.is_structured() || row.usual.empty() ||
          value.dump(-1, ' ', false, Json::error_handler_t::replace) != row.usual) {
        Find(row.effect, key, value, row.why);
      }
      return absl::OkStatus();
    }
    Find(Effect::kResults, key, value, "no key of that name is known");
    return absl::OkStatus();
  }

  absl::Status ApplyFp16(const Json& block) {
    if (!block.is_object()) return Wrong("fp16", "is no object");
    if (block.value("enabled", Json()) == "auto") {
      Find(Effect::kSaid, "fp16.enabled", "auto", "it is left to the command line");
      return absl::OkStatus();
    }
    MEGATRON_RETURN_IF_ERROR(config_.Set("precision.fp16", {}, Origin("fp16.enabled")));
    const bool dynamic = block.value("loss_scale", Json(0)) == 0;
    if (dynamic) {
      const Json power = block.value("initial_scale_power", Json(16));
      if (!power.is_number() || !(power >= 0 && power <= 64))
        return Wrong("fp16.initial_scale_power", "is no number from 0 to 64");
      MEGATRON_RETURN_IF_ERROR(Set("precision.initial_loss_scale", "fp16.initial_scale_power",
                                   Json(std::ldexp(1.0, power.get<int>()))));
    }
    for (const auto& [name, value] : block.items()) {
      const std::string key = absl::StrCat("fp16.", name);
      if (name == "loss_scale") {
        if (!dynamic) {
          MEGATRON_RETURN_IF_ERROR(Set("precision.loss_scale", key, value));
        }
      } else if (name == "loss_scale_window" || name == "hysteresis" || name == "min_loss_scale") {
        const std::string path = absl::StrCat("precision.", name);
        if (dynamic) {
          MEGATRON_RETURN_IF_ERROR(Set(path, key, value));
        }
      } else if (name != "enabled" && name != "initial_scale_power") {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ApplyBf16(const Json& block) {
    if (!block.is_object()) return Wrong("bf16", "is no object");
    for (const auto& [name, value] : block.items()) {
      const std::string key = absl::StrCat("bf16.", name);
      if (name == "enabled") {
        MEGATRON_RETURN_IF_ERROR(Set("precision.bf16", key, value));
      } else if (name == "bf16_optimizer_states") {
        if (value != true) continue;
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.exp_avg_dtype", key, "bf16"));
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.exp_avg_sq_dtype", key, "bf16"));
        Find(Effect::kRounding, key, value, "moments in bf16 are rounded by chance");
      } else {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
      }
    }
    return absl::OkStatus();
  }

  // DeepSpeed writes to output_path/job_name. Where no path is given, files are beside
  // metrics.jsonl.
  absl::Status ApplyTensorboard(const Json& block) {
    if (!block.is_object()) return Wrong("tensorboard", "is no object");
    const Json path = block.value("output_path", Json(""));
    if (!path.is_string()) return Wrong("tensorboard.output_path", "is no text");
    const Json job = block.value("job_name", Json("DeepSpeedJobName"));
    if (!job.is_string()) return Wrong("tensorboard.job_name", "is no text");
    if (path == "") return absl::OkStatus();
    return Set("logging.tensorboard_dir", "tensorboard.output_path",
               Json(JoinPath(path.get<std::string>(), job.get<std::string>())));
  }

  // Each schedule reads some keys of schedule_config.
  absl::Status ApplyCurriculum(const Json& block) {
    if (!block.is_object()) return Wrong("curriculum_learning", "is no object");
    const Json type = block.value("curriculum_type", Json("seqlen"));
    const Json schedule = block.value("schedule_type", Json());
    if (type != "seqlen") {
      Find(Effect::kResults, "curriculum_learning.curriculum_type", type,
           "the curriculum is by the length of samples");
      return absl::OkStatus();
    }
    if (schedule != "fixed_linear" && schedule != "fixed_root" && schedule != "fixed_discrete") {
      Find(Effect::kResults, "curriculum_learning.schedule_type", schedule,
           "the schedules are fixed_linear, fixed_root and fixed_discrete");
      return absl::OkStatus();
    }
    Find(Effect::kSaid, "curriculum_learning", block,
         "iterations are counted from tokens as if samples were whole: the run takes fewer tokens");
    const bool listed = schedule == "fixed_discrete";
    const std::string section = "data.curriculum_learning";
    for (const auto& [name, value] : block.items()) {
      const std::string key = absl::StrCat("curriculum_learning.", name);
      const bool is_limit = name == "min_difficulty" || name == "max_difficulty";
      if (name == "schedule_type" || (is_limit && !listed)) {
        MEGATRON_RETURN_IF_ERROR(Set(absl::StrCat(section, ".", name), key, value));
      } else if (name != "enabled" && name != "curriculum_type" && name != "schedule_config" &&
                 !is_limit) {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
      }
    }
    const Json config = block.value("schedule_config", Json::object());
    if (!config.is_object()) return Wrong("curriculum_learning.schedule_config", "is no object");
    for (const auto& [name, value] : config.items()) {
      const std::string key = absl::StrCat("curriculum_learning.schedule_config.", name);
      const std::string path = absl::StrCat(section, ".", name);
      if (listed && (name == "difficulty" || name == "max_step")) {
        MEGATRON_RETURN_IF_ERROR(SetList(path, key, value));
      } else if (!listed && (name == "total_curriculum_step" || name == "difficulty_step" ||
                             (name == "root_degree" && schedule == "fixed_root"))) {
        MEGATRON_RETURN_IF_ERROR(Set(path, key, value));
      } else {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
      }
    }
    return absl::OkStatus();
  }

  static bool IsOn(const Json& block) {
    return block.is_object() && block.value("enabled", Json(false)) == true;
  }

  absl::Status ApplyDataEfficiency(const Json& block) {
    if (!block.is_object()) return Wrong("data_efficiency", "is no object");
    for (const auto& [name, value] : block.items()) {
      const std::string key = absl::StrCat("data_efficiency.", name);
      const bool switched = name == "data_sampling" || name == "data_routing";
      if (name == "enabled" || name == "seed" || (switched && !IsOn(value))) continue;
      if (name == "data_routing") {
        MEGATRON_RETURN_IF_ERROR(ApplyRandomLtd(key + ".random_ltd", value));
      } else {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
      }
    }
    return absl::OkStatus();
  }

  // The names of modules and the order of axes say how DeepSpeed finds the layers of a model.
  absl::Status ApplyRandomLtd(const std::string& key, const Json& routing) {
    const Json block = routing.value("random_ltd", Json());
    if (!IsOn(block)) return absl::OkStatus();
    const Json layers = block.value("random_ltd_layer_num", Json());
    const Json total = block.value("total_layer_num", Json());
    if (layers.is_number_integer() && total.is_number_integer() &&
        layers.get<int64_t>() != total.get<int64_t>() - 2) {
      Find(Effect::kResults, key + ".random_ltd_layer_num", layers,
           "all layers but the first and the last drop tokens");
    }
    const Json schedule = block.value("random_ltd_schedule", Json::object());
    if (!schedule.is_object()) return Wrong(key + ".random_ltd_schedule", "is no object");
    if (schedule.value("schedule_type", Json("fixed_linear")) != "fixed_linear") {
      Find(Effect::kResults, key + ".random_ltd_schedule.schedule_type", schedule["schedule_type"],
           "the schedule is fixed_linear");
      return absl::OkStatus();
    }
    const Json config = schedule.value("schedule_config", Json::object());
    if (!config.is_object()) return Wrong(key + ".schedule_config", "is no object");
    for (const Json* part : {&schedule, &config}) {
      for (const auto& [name, value] : part->items()) {
        const bool is_field = name == "min_value" || name == "max_value" ||
                              name == "require_steps" || name == "seq_per_step";
        if (!is_field) continue;
        MEGATRON_RETURN_IF_ERROR(
            Set(absl::StrCat("data.random_ltd.", name), absl::StrCat(key, ".", name), value));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetList(absl::string_view path, const std::string& key, const Json& list) {
    if (!list.is_array()) return Wrong(key, "is no list");
    std::vector<std::string> values;
    for (const Json& value : list) {
      if (!value.is_number()) return Wrong(key, "is no list of numbers");
      values.push_back(value.dump());
    }
    const absl::Status status = config_.Set(path, values, Origin(key));
    return status.ok() ? status : Wrong(key, status.message());
  }

  absl::Status ApplyZero(const Json& block) {
    if (!block.is_object()) return Wrong("zero_optimization", "is no object");
    const Json stage = block.value("stage", Json(0));
    if (!stage.is_number_integer() || stage < 0 || stage > 3)
      return Wrong("zero_optimization.stage", "is none of 0, 1, 2 and 3");
    MEGATRON_RETURN_IF_ERROR(
        SetZeroStage(stage.get<int64_t>(), Origin("zero_optimization.stage"), &config_));
    for (const auto& [name, value] : block.items()) {
      const std::string key = absl::StrCat("zero_optimization.", name);
      if (name == "stage" || name == "mics_shard_size") continue;
      if (name == "offload_optimizer") {
        MEGATRON_RETURN_IF_ERROR(ApplyOffloadOptimizer(key, value));
        continue;
      }
      if (name == "offload_param") {
        MEGATRON_RETURN_IF_ERROR(ApplyOffloadParam(key, value, block));
        continue;
      }
      if (name != "overlap_comm") {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
        continue;
      }
      MEGATRON_RETURN_IF_ERROR(Set("parallel.overlap_grad_reduce", key, value));
    }
    if (stage == 3 && !block.contains("overlap_comm")) {
      MEGATRON_RETURN_IF_ERROR(config_.Set("parallel.overlap_grad_reduce", {},
                                           "DeepSpeed's default for stage 3; here it is false"));
    }
    if (stage == 3) {
      MEGATRON_RETURN_IF_ERROR(
          config_.Set("parallel.overlap_param_gather", {}, Origin("zero_optimization.stage")));
    }
    return absl::OkStatus();
  }

  // DeepSpeed reads the other keys only if there is a device.
  absl::Status ApplyOffloadOptimizer(const std::string& block_key, const Json& block) {
    if (block.is_null()) return absl::OkStatus();
    if (!block.is_object()) return Wrong(block_key, "is no object");
    const Json device = block.value("device", Json("none"));
    if (device == "none") return absl::OkStatus();
    if (device != "cpu" && device != "nvme")
      return Wrong(block_key + ".device", "is none of none, cpu and nvme");
    if (device == "nvme" && !block.contains("nvme_path"))
      return Wrong(block_key, "has device nvme and no nvme_path");
    MEGATRON_RETURN_IF_ERROR(
        Set("optimizer.optimizer_cpu_offload", block_key + ".device", Json(true)));
    for (const auto& [name, value] : block.items()) {
      const std::string key = absl::StrCat(block_key, ".", name);
      if (name == "device" || (name == "nvme_path" && device == "cpu")) continue;
      if (name == "nvme_path") {
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.optimizer_offload_path", key, value));
      } else if (name == "ratio") {
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.optimizer_offload_fraction", key, value));
      } else {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
      }
    }
    return absl::OkStatus();
  }

  // `zero` is the block around it.
  absl::Status ApplyOffloadParam(const std::string& block_key, const Json& block,
                                 const Json& zero) {
    if (block.is_null()) return absl::OkStatus();
    if (!block.is_object()) return Wrong(block_key, "is no object");
    const Json device = block.value("device", Json("none"));
    if (device == "none") return absl::OkStatus();
    const std::string key = block_key + ".device";
    if (device != "cpu" && device != "nvme") return Wrong(key, "is none of none, cpu and nvme");
    const Json optimizer = zero.value("offload_optimizer", Json());
    const bool states = optimizer.is_object() &&
                        optimizer.value("device", Json("none")) != "none" &&
                        optimizer.value("ratio", Json(1)) == Json(1);
    if (!states || zero.value("stage", Json(0)) != 3) {
      Find(Effect::kSpeed, key, device, kHost);
      return absl::OkStatus();
    }
    MEGATRON_RETURN_IF_ERROR(Set("parallel.param_cpu_offload", key, Json(true)));
    for (const auto& [name, value] : block.items()) {
      if (name == "device" && device == "nvme") {
        Find(Effect::kSpeed, key, value, "parameters lie in host memory and not in files");
      } else if (name != "device" && name != "nvme_path") {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(absl::StrCat(block_key, ".", name), value));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ApplyOptimizer(const Json& block) {
    if (!block.is_object() || !block.contains("type") || !block["type"].is_string())
      return Wrong("optimizer", "has no type");
    const std::string type = block["type"].get<std::string>();
    const std::string name = absl::AsciiStrToLower(type);
    const Json params = block.value("params", Json::object());
    if (!params.is_object()) return Wrong("optimizer.params", "is no object");
    const bool adam = name == "adam" || name == "adamw";
    const bool one_bit_adam = name == "onebitadam", one_bit_lamb = name == "onebitlamb",
               zero_one_adam = name == "zerooneadam";
    const bool one_bit = one_bit_adam || one_bit_lamb || zero_one_adam;
    const bool lamb = name == "lamb";
    if (!adam && !lamb && !one_bit && name != "lion" && name != "sgd") {
      Find(Effect::kResults, "optimizer.type", type,
           "the optimizers are adam, sgd, lion, lamb, onebitadam, onebitlamb and zerooneadam");
      return absl::OkStatus();
    }
    MEGATRON_RETURN_IF_ERROR(Set("optimizer.optimizer", "optimizer.type",
                                 Json(adam            ? "adam"
                                      : one_bit_adam  ? "onebit_adam"
                                      : one_bit_lamb  ? "onebit_lamb"
                                      : zero_one_adam ? "zero_one_adam"
                                                      : name)));
    if (one_bit) {
      Find(Effect::kResults, "optimizer.type", type,
           "clipping in steps with signs and elements without a gradient differ"
           " (docs/one_bit_optimizers.md)");
    }
    if (lamb) {
      Find(Effect::kResults, "optimizer.type", type,
           "the ratio of its step is taken with corrected moments (docs/optimizers.md)");
    }
    const std::string from_default = "DeepSpeed's default";
    for (const auto& [path, value] : std::vector<std::pair<std::string, std::string>>{
             {"optimizer.lr", name == "lion" ? "1e-4" : "1e-3"}, {"optimizer.weight_decay", "0"}}) {
      MEGATRON_RETURN_IF_ERROR(config_.Set(path, {value}, from_default));
    }
    if (name == "sgd") {
      MEGATRON_RETURN_IF_ERROR(config_.Set("optimizer.sgd_momentum", {"0"}, from_default));
    }
    for (const auto& [param, value] : params.items()) {
      const std::string key = absl::StrCat("optimizer.params.", param);
      if (param == "lr") {
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr", key, value));
      } else if (param == "weight_decay") {
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.weight_decay", key, value));
      } else if (param == "eps" && (adam || lamb || one_bit)) {
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.adam_eps", key, value));
      } else if (param == "momentum" && name == "sgd") {
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.sgd_momentum", key, value));
      } else if (param == "betas" && name != "sgd") {
        if (value == "auto") continue;
        if (!value.is_array() || value.size() != 2) return Wrong(key, "is no list of two numbers");
        const std::string prefix = name == "lion" ? "optimizer.lion_beta" : "optimizer.adam_beta";
        MEGATRON_RETURN_IF_ERROR(Set(prefix + "1", key, value[0]));
        MEGATRON_RETURN_IF_ERROR(Set(prefix + "2", key, value[1]));
      } else if ((param == "min_coeff" || param == "max_coeff") && (lamb || one_bit_lamb)) {
        MEGATRON_RETURN_IF_ERROR(Set(absl::StrCat("optimizer.lamb_", param), key, value));
      } else if ((param == "freeze_step" && (one_bit_adam || one_bit_lamb)) ||
                 (one_bit_lamb && absl::c_linear_search(kOneBitLamb, param)) ||
                 (zero_one_adam && absl::c_linear_search(kZeroOneAdam, param))) {
        MEGATRON_RETURN_IF_ERROR(Set(absl::StrCat("optimizer.", param), key, value));
      } else if ((param == "cuda_aware" || param == "comm_backend_name") && one_bit) {
        Find(Effect::kNothing, key, value, "parallel.distributed_backend chooses how ranks send");
      } else if (param == "bias_correction" && one_bit) {
        Find(Effect::kNothing, key, value, "it does not correct its moments, as in DeepSpeed");
      } else if (param == "adam_w_mode" || param == "bias_correction") {
        if (value == false)
          Find(Effect::kResults, key, value, "adam is AdamW, with the correction of its moments");
      } else if (param == "torch_adam" || param == "fused" || param == "foreach") {
        Find(Effect::kNothing, key, value, "there is one implementation of each optimizer");
      } else {
        Find(Effect::kResults, key, value, "the optimizer has no such parameter");
      }
    }
    return absl::OkStatus();
  }

  // The batch sizes are computed with it; those that are written elsewhere are not used.
  absl::Status ApplyElasticity(const Json& block) {
    if (!block.is_object()) return Wrong("elasticity", "is no object");
    is_elastic_ = true;
    const Json version = block.value("version", Json(0.2));
    if (version != 0.1 && version != 0.2) return Wrong("elasticity.version", "is not 0.1 or 0.2");
    for (const auto& [name, value] : block.items()) {
      const std::string key = absl::StrCat("elasticity.", name);
      if (name == "version" || value.is_null()) continue;
      if (name == "micro_batch_sizes") {
        std::vector<std::string> sizes;
        for (const Json& size : value)
          sizes.push_back(size.dump(-1, ' ', false, Json::error_handler_t::replace));
        if (!value.is_array() || sizes.empty()) return Wrong(key, "is no list of numbers");
        MEGATRON_RETURN_IF_ERROR(config_.Set(key, sizes, Origin(key)), _ << key);
      } else if (name == "num_gpus_per_node") {
        if (version == 0.2) {
          MEGATRON_RETURN_IF_ERROR(Set(key, key, value));
        }
      } else {
        MEGATRON_RETURN_IF_ERROR(ApplyRest(key, value));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ApplyScheduler(const Json& block) {
    if (!block.is_object() || !block.contains("type") || !block["type"].is_string())
      return Wrong("scheduler", "has no type");
    const std::string type = block["type"].get<std::string>();
    const Json params = block.value("params", Json::object());
    if (!params.is_object()) return Wrong("scheduler.params", "is no object");
    const bool constant = type == "WarmupLR", linear = type == "WarmupDecayLR",
               cosine = type == "WarmupCosineLR";
    if (!constant && !linear && !cosine) {
      Find(Effect::kResults, "scheduler.type", type,
           "the schedules are WarmupLR, WarmupDecayLR and WarmupCosineLR");
      return absl::OkStatus();
    }
    MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr_decay_style", "scheduler.type",
                                 Json(constant ? "constant"
                                      : linear ? "linear"
                                               : "cosine")));
    if (params.value("warmup_type", Json("log")) != "linear") {
      Find(Effect::kResults, "scheduler.params.warmup_type",
           params.value("warmup_type", Json("log")), "the learning rate rises in a straight line");
    }
    MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr_warmup_iters", "scheduler.params.warmup_num_steps",
                                 params.value("warmup_num_steps", Json(1000))));
    if (!constant && params.contains("total_num_steps")) {
      MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr_decay_iters", "scheduler.params.total_num_steps",
                                   params["total_num_steps"]));
    }
    if (cosine) {
      const double lr = config_.config().optimizer().lr();
      for (const auto& [name, path, unset] :
           std::vector<std::tuple<std::string, std::string, double>>{
               {"warmup_min_ratio", "optimizer.lr_warmup_init", 0.0},
               {"cos_min_ratio", "optimizer.min_lr", 0.0001}}) {
        const Json ratio = params.value(name, Json(unset));
        if (!ratio.is_number()) return Wrong("scheduler.params." + name, "is no number");
        MEGATRON_RETURN_IF_ERROR(
            Set(path, "scheduler.params." + name, Json(ratio.get<double>() * lr)));
      }
    } else {
      const Json lowest = params.value("warmup_min_lr", Json(0.0));
      MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr", "scheduler.params.warmup_max_lr",
                                   params.value("warmup_max_lr", Json(0.001))));
      MEGATRON_RETURN_IF_ERROR(
          Set("optimizer.lr_warmup_init", "scheduler.params.warmup_min_lr", lowest));
      if (linear) {
        MEGATRON_RETURN_IF_ERROR(Set("optimizer.min_lr", "scheduler.params.warmup_min_lr", lowest));
      }
    }
    for (const auto& [name, value] : params.items()) {
      if (name == "last_batch_iteration" || absl::StartsWith(name, "warmup_") ||
          name == "total_num_steps" || name == "cos_min_ratio") {
        continue;
      }
      Find(Effect::kResults, "scheduler.params." + name, value,
           "the schedule has no such parameter");
    }
    return absl::OkStatus();
  }

  // Reads a number of samples or steps; 0 if it is not there.
  absl::Status ReadCount(const Json& object, const char* key, int64_t* count) {
    *count = 0;
    if (!object.contains(key)) return absl::OkStatus();
    const Json& value = object[key];
    if (value == "auto") {
      Find(Effect::kSaid, key, value, "it is left to the command line");
      return absl::OkStatus();
    }
    if (!value.is_number_integer() || value < 1 || value > kMostSamples)
      return Wrong(key, absl::StrCat("is no whole number from 1 to ", kMostSamples));
    *count = value.get<int64_t>();
    return absl::OkStatus();
  }

  // global = micro * steps * ranks, of which any one may be missing.
  absl::Status ApplyBatch(const Json& object) {
    if (is_elastic_) {
      const bool written = object.contains("train_batch_size") ||
                           object.contains("train_micro_batch_size_per_gpu") ||
                           config_.IsSet("train.micro_batch_size") ||
                           config_.IsSet("train.global_batch_size");
      if (!written) return absl::OkStatus();
      return config_.Set("elasticity.ignore_non_elastic_batch_info", {"true"},
                         Origin("elasticity, and batch sizes"));
    }
    int64_t global, micro, steps;
    MEGATRON_RETURN_IF_ERROR(ReadCount(object, "train_batch_size", &global));
    MEGATRON_RETURN_IF_ERROR(ReadCount(object, "train_micro_batch_size_per_gpu", &micro));
    MEGATRON_RETURN_IF_ERROR(ReadCount(object, "gradient_accumulation_steps", &steps));
    const int64_t written = config_.config().train().micro_batch_size();
    if (micro == 0 && written >= 1 && written <= kMostSamples) micro = written;
    if (ranks_ == 0 && global > 0 && micro > 0 && steps > 0) {
      if (global % (micro * steps) != 0) {
        return Wrong("train_batch_size",
                     "is no multiple of train_micro_batch_size_per_gpu times "
                     "gradient_accumulation_steps");
      }
      ranks_ = global / (micro * steps);
      MEGATRON_RETURN_IF_ERROR(config_.SetNumber("parallel.data_parallel_size", ranks_,
                                                 Origin("train_batch_size and the two others")));
    }
    const int64_t ranks = std::max<int64_t>(ranks_, 1);
    if (micro == 0 && global > 0) micro = global / (ranks * std::max<int64_t>(steps, 1));
    if (global == 0 && micro > 0 && steps > 0) global = micro * steps * ranks;
    if (global > 0 && steps > 0 && global != micro * steps * ranks) {
      return Wrong("train_batch_size", absl::StrCat("is ", global,
                                                    ", but train_micro_batch_size_per_gpu times "
                                                    "gradient_accumulation_steps times ",
                                                    ranks, " ranks is ", micro * steps * ranks));
    }
    if (micro > 0 && (object.contains("train_micro_batch_size_per_gpu") || global > 0)) {
      MEGATRON_RETURN_IF_ERROR(config_.SetNumber("train.micro_batch_size", micro,
                                                 Origin("train_micro_batch_size_per_gpu")));
    }
    if (global > 0) {
      MEGATRON_RETURN_IF_ERROR(
          config_.SetNumber("train.global_batch_size", global, Origin("train_batch_size")));
    }
    return absl::OkStatus();
  }

  // MiCS shards over groups of so many ranks; it is read when the number of ranks is known.
  absl::Status ApplyShardSize(const Json& object) {
    constexpr char kKey[] = "zero_optimization.mics_shard_size";
    const Json block = object.value("zero_optimization", Json::object());
    const Json size = block.value("mics_shard_size", Json(-1));
    if (size == "auto" || (size.is_number_integer() && size < 1)) return absl::OkStatus();
    if (!size.is_number_integer()) return Wrong(kKey, "is no whole number");
    if (block.value("stage", Json(0)) != 3) {
      Find(Effect::kNothing, kKey, size, "MiCS shards weights, which needs stage 3");
      return absl::OkStatus();
    }
    const int64_t shard = size.get<int64_t>();
    if (ranks_ == 0) {
      Find(Effect::kSpeed, kKey, size,
           "parallel.num_distributed_optimizer_instances is the number of data-parallel ranks, "
           "which is not known here, divided by it");
      return absl::OkStatus();
    }
    if (ranks_ % shard != 0)
      return Wrong(kKey, absl::StrCat("does not divide ", ranks_, " data-parallel ranks"));
    return config_.SetNumber("parallel.num_distributed_optimizer_instances", ranks_ / shard,
                             Origin(kKey));
  }

  const absl::string_view source_;
  int64_t ranks_;
  bool is_elastic_ = false;
  ConfigBuilder& config_;
  Findings& findings_;
};

}  // namespace

absl::Status SetZeroStage(int64_t stage, absl::string_view origin, ConfigBuilder* config) {
  MEGATRON_RETURN_IF_ERROR(
      config->Set("parallel.use_distributed_optimizer", {stage > 0 ? "true" : "false"}, origin));
  config->Clear("parallel.data_parallel_sharding_strategy");
  if (stage < 2) return absl::OkStatus();
  return config->Set("parallel.data_parallel_sharding_strategy",
                     {stage == 2 ? "optim_grads" : "optim_grads_params"}, origin);
}

absl::Status ApplyDeepSpeedConfig(absl::string_view json, absl::string_view source,
                                  int64_t data_parallel_size, ConfigBuilder* config,
                                  Findings* findings) {
  Json object;
  absl::Status status = ParseDeepSpeedJson(json, &object);
  if (status.ok()) status = Translation(source, data_parallel_size, config, findings).Apply(object);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
}

}  // namespace megatron
