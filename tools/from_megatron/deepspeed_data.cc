// DeepSpeed's data efficiency.
#include "megatron/base/status_macros.h"
#include "tools/from_megatron/deepspeed_translation.h"

namespace megatron {
namespace {

using Json = nlohmann::json;

bool IsOn(const Json& block) {
  return block.is_object() && block.value("enabled", Json(false)) == true;
}

}  // namespace

absl::Status DeepSpeedTranslation::ApplyCurriculum(const Json& block) {
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

absl::Status DeepSpeedTranslation::ApplyDataEfficiency(const Json& block) {
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

absl::Status DeepSpeedTranslation::ApplyRandomLtd(const std::string& key, const Json& routing) {
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
      const bool is_field = name == "min_value" || name == "max_value" || name == "require_steps" ||
                            name == "seq_per_step";
      if (!is_field) continue;
      MEGATRON_RETURN_IF_ERROR(
          Set(absl::StrCat("data.random_ltd.", name), absl::StrCat(key, ".", name), value));
    }
  }
  return absl::OkStatus();
}

}  // namespace megatron
