// DeepSpeed's ZeRO and its offload.
#include "megatron/base/status_macros.h"
#include "tools/from_megatron/deepspeed_keys.h"
#include "tools/from_megatron/deepspeed_translation.h"
#include "tools/from_megatron/zero_stage.h"

namespace megatron {

absl::Status DeepSpeedTranslation::ApplyZero(const Json& block) {
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

absl::Status DeepSpeedTranslation::ApplyOffloadOptimizer(const std::string& block_key,
                                                         const Json& block) {
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

absl::Status DeepSpeedTranslation::ApplyOffloadParam(const std::string& block_key,
                                                     const Json& block, const Json& zero) {
  if (block.is_null()) return absl::OkStatus();
  if (!block.is_object()) return Wrong(block_key, "is no object");
  const Json device = block.value("device", Json("none"));
  if (device == "none") return absl::OkStatus();
  const std::string key = block_key + ".device";
  if (device != "cpu" && device != "nvme") return Wrong(key, "is none of none, cpu and nvme");
  if (device == "nvme" && !block.contains("nvme_path"))
    return Wrong(block_key, "has device nvme and no nvme_path");
  const Json optimizer = zero.value("offload_optimizer", Json());
  const bool states = optimizer.is_object() && optimizer.value("device", Json("none")) != "none" &&
                      optimizer.value("ratio", Json(1)) == Json(1);
  if (!states || zero.value("stage", Json(0)) != 3) {
    Find(Effect::kSpeed, key, device, kParametersStay);
    return absl::OkStatus();
  }
  MEGATRON_RETURN_IF_ERROR(Set("parallel.param_cpu_offload", key, Json(true)));
  for (const auto& [name, value] : block.items()) {
    if (name == "nvme_path" && device == "nvme") {
      MEGATRON_RETURN_IF_ERROR(
          Set("parallel.param_offload_path", absl::StrCat(block_key, ".", name), value));
    } else if (name != "device" && name != "nvme_path") {
      MEGATRON_RETURN_IF_ERROR(ApplyRest(absl::StrCat(block_key, ".", name), value));
    }
  }
  return absl::OkStatus();
}

absl::Status DeepSpeedTranslation::ApplyShardSize(const Json& object) {
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

}  // namespace megatron
