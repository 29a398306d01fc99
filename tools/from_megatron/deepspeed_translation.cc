#include "tools/from_megatron/deepspeed_translation.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config.pb.h"
#include "tools/from_megatron/deepspeed_keys.h"

namespace megatron {
namespace {

constexpr int64_t kMostSamples = 1 << 20;  // three such numbers have a product below 2^63

}  // namespace

absl::Status DeepSpeedTranslation::Apply(const Json& object) {
  for (const auto& [key, value] : object.items()) MEGATRON_RETURN_IF_ERROR(ApplyEntry(key, value));
  MEGATRON_RETURN_IF_ERROR(ApplyBatch(object));
  MEGATRON_RETURN_IF_ERROR(ApplyShardSize(object));
  MEGATRON_RETURN_IF_ERROR(ApplyCommunication(object));
  return ApplyClippingDefault(object);
}

absl::Status DeepSpeedTranslation::Wrong(absl::string_view key, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(key, " ", what));
}

void DeepSpeedTranslation::Find(Effect effect, const std::string& key, const Json& value,
                                absl::string_view text) {
  const std::string shown =
      value.is_structured()
          ? key
          : absl::StrCat(key, ": ", value.dump(-1, ' ', false, Json::error_handler_t::replace));
  findings_.push_back({effect, std::string(source_), shown, std::string(text)});
}

absl::Status DeepSpeedTranslation::Set(absl::string_view path, const std::string& key,
                                       const Json& value) {
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

absl::Status DeepSpeedTranslation::SetList(absl::string_view path, const std::string& key,
                                           const Json& list) {
  if (!list.is_array()) return Wrong(key, "is no list");
  std::vector<std::string> values;
  for (const Json& value : list) {
    if (!value.is_number()) return Wrong(key, "is no list of numbers");
    values.push_back(value.dump());
  }
  const absl::Status status = config_.Set(path, values, Origin(key));
  return status.ok() ? status : Wrong(key, status.message());
}

bool DeepSpeedTranslation::IsOff(const std::string& key, const Json& value) {
  return IsSwitchedBlock(key) && value.is_object() && value.value("enabled", Json(false)) == false;
}

absl::Status DeepSpeedTranslation::ApplyEntry(const std::string& key, const Json& value) {
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

absl::Status DeepSpeedTranslation::ApplyRest(const std::string& key, const Json& value) {
  if (value.is_object()) {
    for (const auto& [name, inner] : value.items())
      MEGATRON_RETURN_IF_ERROR(ApplyRest(absl::StrCat(key, ".", name), inner));
    return absl::OkStatus();
  }
  const KeyRow* const row = FindKeyRow(key);
  if (row != nullptr) {
    if (value.is_null()) return absl::OkStatus();
    if (!row->path.empty()) return Set(row->path, key, value);
    if (value.is_structured() || row->usual.empty() ||
        value.dump(-1, ' ', false, Json::error_handler_t::replace) != row->usual) {
      Find(row->effect, key, value, row->why);
    }
    return absl::OkStatus();
  }
  Find(Effect::kResults, key, value, "no key of that name is known");
  return absl::OkStatus();
}

absl::Status DeepSpeedTranslation::ApplyCommunication(const Json& object) {
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

absl::Status DeepSpeedTranslation::ApplyClippingDefault(const Json& object) {
  constexpr char kKey[] = "gradient_clipping", kPath[] = "optimizer.clip_grad";
  if (object.contains(kKey)) return absl::OkStatus();
  if (config_.IsSet(kPath) && config_.config().optimizer().clip_grad() != 0) {
    findings_.push_back({Effect::kSaid, std::string(source_), kKey,
                         absl::StrCat("it is not there: DeepSpeed's default, 0, replaces ", kPath,
                                      " of ", config_.Origin(kPath))});
  }
  return config_.Set(kPath, {"0"}, "DeepSpeed's default; here it is 1");
}

absl::Status DeepSpeedTranslation::ApplyFp16(const Json& block) {
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

absl::Status DeepSpeedTranslation::ApplyBf16(const Json& block) {
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

absl::Status DeepSpeedTranslation::ApplyTensorboard(const Json& block) {
  if (!block.is_object()) return Wrong("tensorboard", "is no object");
  const Json path = block.value("output_path", Json(""));
  if (!path.is_string()) return Wrong("tensorboard.output_path", "is no text");
  const Json job = block.value("job_name", Json("DeepSpeedJobName"));
  if (!job.is_string()) return Wrong("tensorboard.job_name", "is no text");
  if (path == "") return absl::OkStatus();
  return Set("logging.tensorboard_dir", "tensorboard.output_path",
             Json(JoinPath(path.get<std::string>(), job.get<std::string>())));
}

absl::Status DeepSpeedTranslation::ReadCount(const Json& object, const char* key, int64_t* count) {
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

absl::Status DeepSpeedTranslation::ApplyBatch(const Json& object) {
  if (is_elastic_) {
    const bool written =
        object.contains("train_batch_size") || object.contains("train_micro_batch_size_per_gpu") ||
        config_.IsSet("train.micro_batch_size") || config_.IsSet("train.global_batch_size");
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

absl::Status DeepSpeedTranslation::ApplyElasticity(const Json& block) {
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

}  // namespace megatron
