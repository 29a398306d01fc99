#include "megatron/train/planning/written_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "megatron/base/quantity.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"
#include "megatron/train/planning/layout_axes.h"

namespace megatron {
namespace {

constexpr const char* kLayoutPaths[] = {
    "parallel.tensor_model_parallel_size",
    "parallel.tensor_parallel_mode",
    "parallel.tensor_parallel_depth",
    "parallel.sequence_parallel",
    "parallel.context_parallel_size",
    "parallel.cp_comm_type",
    "parallel.hierarchical_context_parallel_sizes",
    "parallel.pipeline_model_parallel_size",
    "parallel.num_layers_per_virtual_pipeline_stage",
    "parallel.num_virtual_stages_per_pipeline_rank",
    "parallel.pipeline_schedule",
    "parallel.pipeline_pass_costs",
    "parallel.microbatch_group_size_per_virtual_pipeline_stage",
    "parallel.pipeline_model_parallel_layout",
    "parallel.pipeline_model_parallel_split_rank",
    "parallel.decoder_first_pipeline_num_layers",
    "parallel.decoder_last_pipeline_num_layers",
    "parallel.account_for_embedding_in_pipeline_split",
    "parallel.account_for_loss_in_pipeline_split",
    "parallel.data_parallel_size",
    "parallel.rank_order",
    "parallel.expert_model_parallel_size",
    "parallel.expert_tensor_parallel_size",
    "parallel.moe_deduplicated_dispatch",
    "parallel.use_distributed_optimizer",
    "parallel.data_parallel_sharding_strategy",
    "parallel.num_distributed_optimizer_instances",
    "parallel.outer_dp_sharding_strategy",
    "parallel.hierarchical_collectives_ranks_per_host",
    "parallel.zero_hpz_partition_size",
    "parallel.zero_quantized_weights",
    "parallel.zero_quantized_gradients",
    "parallel.overlap_param_gather",
    "recompute.recompute_granularity",
    "recompute.cpu_offloading_num_layers",
    "optimizer.optimizer_cpu_offload",
    "optimizer.optimizer_offload_fraction",
    "optimizer.optimizer_offload_path",
    "parallel.grad_cpu_offload",
    "parallel.param_cpu_offload",
    "parallel.param_offload_path",
};
constexpr absl::string_view kOffloadedLayers = "recompute.cpu_offloading_num_layers";

// Returns whether the field is one number, and out of its range.
bool IsOutOfRange(const FieldRef& ref) {
  using google::protobuf::FieldDescriptor;
  if (ref.field->is_repeated()) return false;
  const google::protobuf::Reflection& reflection = *ref.message->GetReflection();
  if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE)
    return !RangeOf(*ref.field).Contains(reflection.GetDouble(*ref.message, ref.field));
  if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64)
    return !RangeOf(*ref.field).Contains(double(reflection.GetInt64(*ref.message, ref.field)));
  return false;
}

// Says which numbers of layers a search leaves on the host, where another one may be the cause.
std::string OffloadedLayersHint(const config::PretrainConfig& config,
                                const std::vector<WrittenField>& fields) {
  const std::string all = absl::StrCat(config.model().num_layers());
  for (const WrittenField& field : fields) {
    if (field.path != kOffloadedLayers || field.value == "0" || field.value == all) continue;
    return absl::StrCat("; a search leaves the activations of all layers on the host or of none: ",
                        kOffloadedLayers, " is 0, or the layers of the largest part of the model, ",
                        all, " without a pipeline");
  }
  return "";
}

}  // namespace

std::string ToText(const std::vector<WrittenField>& fields) {
  return absl::StrJoin(fields, ", ", [](std::string* out, const WrittenField& field) {
    absl::StrAppend(out, field.path, "=", field.value);
  });
}

bool IsOfLayout(absl::string_view path) {
  return std::find(std::begin(kLayoutPaths), std::end(kLayoutPaths), path) !=
         std::end(kLayoutPaths);
}

std::optional<WrittenField> FindWritten(const config::PretrainConfig& config,
                                        const std::string& path) {
  const FieldRef field = Resolve(config, path);
  if (!IsPresent(field)) return std::nullopt;
  return WrittenField{path, ValueText(field)};
}

std::vector<WrittenField> WrittenLayout(const config::PretrainConfig& config) {
  std::vector<WrittenField> written;
  for (const char* path : kLayoutPaths) {
    if (auto field = FindWritten(config, path)) written.push_back(*std::move(field));
  }
  return written;
}

bool Keeps(const config::PretrainConfig& config, const std::vector<WrittenField>& fields) {
  return std::all_of(fields.begin(), fields.end(), [&](const WrittenField& field) {
    return ValueText(Resolve(config, field.path)) == field.value;
  });
}

// A layout is tried on the few sections that it changes.
LayoutFilter FilterOf(const config::PretrainConfig& config, std::vector<WrittenField> fields,
                      bool is_gpu) {
  if (fields.empty()) return nullptr;
  config::PretrainConfig sections;
  *sections.mutable_parallel() = config.parallel();
  if (config.has_recompute()) *sections.mutable_recompute() = config.recompute();
  if (config.has_optimizer()) *sections.mutable_optimizer() = config.optimizer();
  sections.mutable_model()->set_num_layers(config.model().num_layers());
  if (config.model().has_num_experts())
    sections.mutable_model()->set_num_experts(config.model().num_experts());
  return [sections, fields = std::move(fields), is_gpu](const LayoutAxes& axes) {
    config::PretrainConfig changed = sections;
    ApplyLayout(axes, is_gpu, &changed);
    return Keeps(changed, fields);
  };
}

absl::Status NothingKeeps(const config::PretrainConfig& config,
                          const std::vector<WrittenField>& fields, int64_t count,
                          absl::string_view noun) {
  for (const WrittenField& field : fields) {
    const FieldRef ref = Resolve(config, field.path);
    if (!IsOutOfRange(ref)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field.path, " = ", field.value, ": expects ", DescribeAccepted(*ref.field)));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no layout of ", FormatQuantity(count, noun), " has all that is written: ", ToText(fields),
      OffloadedLayersHint(config, fields),
      "; leave some of it out (--set=FIELD= removes a field)"));
}

}  // namespace megatron
