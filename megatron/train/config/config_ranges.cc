#include "megatron/train/config/config_ranges.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"

namespace megatron {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

// Limits are far above any use, and low enough that no product which the code forms (parameters,
// ranks, tokens) leaves 64 bits.
constexpr double kAnyCount = 1e12;
constexpr double kLargestSeed = 4294967295;
constexpr double kLargestFp32 = 3.4028234e38;

constexpr FieldRange AtLeast(double min, double max = kAnyCount) { return {min, max}; }
constexpr FieldRange Above(double min, double max) { return {min, max, /*min_excluded=*/true}; }
// A probability, or a share that must leave something over.
constexpr FieldRange kLessThanOne = {0, 1, /*min_excluded=*/false, /*max_excluded=*/true};
constexpr FieldRange kRate = {0, 1000};
constexpr FieldRange kLayers = {1, 10000};
constexpr FieldRange kTokensPerSample = {1, 1 << 24};
constexpr FieldRange kStandardDeviation = {0, 100};

const absl::flat_hash_map<absl::string_view, FieldRange>& Ranges() {
  static const auto* const ranges = new absl::flat_hash_map<absl::string_view, FieldRange>{
      {"model.num_layers", kLayers},
      {"model.hidden_size", AtLeast(1, 1 << 20)},
      {"model.ffn_hidden_size", AtLeast(1, 1 << 23)},
      {"model.num_attention_heads", AtLeast(1, 1 << 16)},
      {"model.kv_channels", AtLeast(1, 1 << 16)},
      {"model.num_query_groups", AtLeast(1, 1 << 16)},
      {"model.seq_length", kTokensPerSample},
      {"model.max_position_embeddings", kTokensPerSample},
      {"model.make_vocab_size_divisible_by", AtLeast(1, 1 << 20)},
      {"model.rotary_base", Above(1, 1e12)},
      {"model.rotary_percent", Above(0, 1)},
      {"model.rotary_seq_len_interpolation_factor", Above(0, 1e6)},
      {"model.rope_scaling_factor", AtLeast(1, 1e6)},
      {"model.norm_epsilon", Above(0, 1)},
      {"model.hidden_dropout", kLessThanOne},
      {"model.attention_dropout", kLessThanOne},
      {"model.init_method_std", kStandardDeviation},
      {"model.embedding_init_method_std", kStandardDeviation},
      {"model.num_experts", AtLeast(2, 1024)},
      {"model.moe_ffn_hidden_size", AtLeast(1, 1 << 23)},
      {"model.moe_router_topk", AtLeast(1, 32)},
      {"model.moe_router_topk_scaling_factor", Above(0, 1e6)},
      {"model.moe_router_num_groups", AtLeast(2, 1024)},
      {"model.moe_router_group_topk", AtLeast(1, 32)},
      {"model.moe_aux_loss_coeff", kRate},
      {"model.moe_z_loss_coeff", kRate},
      {"model.moe_input_jitter_eps", {0, 1, /*min_excluded=*/false, /*max_excluded=*/true}},
      {"model.moe_router_bias_update_rate", Above(0, 1000)},
      {"model.moe_expert_capacity_factor", Above(0, 1024)},
      {"model.moe_shared_expert_intermediate_size", AtLeast(1, 1 << 23)},
      {"parallel.expert_model_parallel_size", AtLeast(1, 1024)},
      {"parallel.expert_tensor_parallel_size", AtLeast(1, 128)},
      {"data.mask_prob", {0, 1, /*min_excluded=*/true, /*max_excluded=*/true}},
      {"data.short_seq_prob", AtLeast(0, 1)},
      {"model.num_tokentypes", AtLeast(0, 1 << 16)},
      {"model.encoder_num_layers", kLayers},
      {"model.decoder_num_layers", kLayers},
      {"model.encoder_seq_length", kTokensPerSample},
      {"model.decoder_seq_length", kTokensPerSample},
      {"model.relative_attention_num_buckets", AtLeast(4, 1 << 16)},
      {"model.relative_attention_max_distance", AtLeast(2, 1 << 20)},
      {"model.softmax_scale", Above(0, 1e6)},
      {"model.output_scale", Above(0, 1e6)},
      {"parallel.pipeline_model_parallel_split_rank", AtLeast(1, 1024)},
      {"parallel.tensor_model_parallel_size", AtLeast(1, 128)},
      {"parallel.context_parallel_size", AtLeast(1, 1024)},
      {"parallel.hierarchical_context_parallel_sizes", AtLeast(1, 1024)},
      {"parallel.ddp_bucket_size", AtLeast(0, 1e12)},
      {"parallel.pipeline_model_parallel_size", AtLeast(1, 1024)},
      {"parallel.data_parallel_size", AtLeast(1, 8192)},
      {"parallel.num_layers_per_virtual_pipeline_stage", kLayers},
      {"parallel.num_virtual_stages_per_pipeline_rank", AtLeast(2, 1000)},
      {"parallel.microbatch_group_size_per_virtual_pipeline_stage", AtLeast(1, 1 << 20)},
      {"parallel.decoder_first_pipeline_num_layers", kLayers},
      {"parallel.decoder_last_pipeline_num_layers", kLayers},
      {"parallel.distributed_timeout_minutes", AtLeast(1, 1000000)},
      {"parallel.distributed_timeout_seconds_after_init", AtLeast(1, 1000000)},
      {"parallel.heartbeat_timeout_seconds", AtLeast(1, 1000000)},
      {"parallel.stuck_rank_timeout_seconds", AtLeast(0, 1000000)},
      {"precision.loss_scale", Above(0, kLargestFp32)},
      {"precision.initial_loss_scale", Above(0, kLargestFp32)},
      {"precision.min_loss_scale", Above(0, kLargestFp32)},
      {"precision.loss_scale_window", AtLeast(1)},
      {"precision.hysteresis", AtLeast(1)},
      {"precision.num_layers_at_start_in_bf16", AtLeast(0, 10000)},
      {"precision.num_layers_at_end_in_bf16", AtLeast(0, 10000)},
      {"recompute.recompute_num_layers", kLayers},
      {"optimizer.lr", kRate},
      {"optimizer.min_lr", kRate},
      {"optimizer.lr_wsd_decay_iters", AtLeast(1)},
      {"optimizer.lr_decay_iters", AtLeast(1)},
      {"optimizer.lr_warmup_iters", AtLeast(0)},
      {"optimizer.lr_warmup_fraction", kLessThanOne},
      {"optimizer.lr_warmup_init", kRate},
      {"optimizer.weight_decay", kRate},
      {"optimizer.start_weight_decay", kRate},
      {"optimizer.end_weight_decay", kRate},
      {"optimizer.adam_beta1", kLessThanOne},
      {"optimizer.adam_beta2", kLessThanOne},
      {"optimizer.adam_eps", Above(0, 1)},
      {"optimizer.sgd_momentum", kLessThanOne},
      {"optimizer.lion_beta1", kLessThanOne},
      {"optimizer.lion_beta2", kLessThanOne},
      {"optimizer.clip_grad", AtLeast(0, 1e9)},
      {"train.micro_batch_size", AtLeast(1, 1 << 20)},
      {"train.global_batch_size", AtLeast(1, 1 << 30)},
      {"train.rampup_batch_size.start", AtLeast(1, 1 << 30)},
      {"train.rampup_batch_size.increment", AtLeast(1, 1 << 30)},
      {"train.rampup_batch_size.samples", AtLeast(1)},
      {"train.train_iters", AtLeast(1)},
      {"train.eval_interval", AtLeast(0)},
      {"train.eval_iters", AtLeast(0)},
      {"train.log_interval", AtLeast(1)},
      {"train.exit_interval", AtLeast(1)},
      {"train.logits_chunk_tokens", AtLeast(1)},
      {"train.exit_duration_in_mins", AtLeast(1, 1e7)},
      {"train.seed", AtLeast(0, kLargestSeed)},
      {"data.stories.num_bytes", AtLeast(1)},
      {"data.stories.seed", AtLeast(0, kLargestSeed)},
      {"data.vocab_size", AtLeast(1, 2147483647)},
      {"data.vocab_extra_ids", AtLeast(0, 1 << 20)},
      {"data.null_tokenizer_eod_id", AtLeast(0, 2147483647)},
      {"data.null_tokenizer_pad_id", AtLeast(0, 2147483647)},
      {"data.tiktoken_num_special_tokens", AtLeast(3, 1 << 24)},
      {"data.num_workers", AtLeast(0, 1024)},
      {"data.fim_data.fim_rate", AtLeast(0, 1)},
      {"data.fim_data.fim_spm_rate", AtLeast(0, 1)},
      {"data.fim_data.fim_fragment_rate", AtLeast(0, 1)},
      {"checkpoint.save_interval", AtLeast(1)},
      {"checkpoint.keep_last", AtLeast(0, 1e9)},
      {"logging.profile_step_start", AtLeast(0)},
      {"logging.profile_step_end", AtLeast(1)},
      {"logging.profile_ranks", AtLeast(0, 1 << 20)},
      {"system.num_threads", AtLeast(0, 4096)},
      {"system.cuda_graph_warmup_steps", AtLeast(0)},
      {"generation.tokens_to_generate", AtLeast(0, kTokensPerSample.max)},
      {"generation.temperature", AtLeast(0, 100)},
      {"generation.top_k", AtLeast(0, 2147483647)},
      {"generation.top_p", AtLeast(0, 1)},
      {"generation.seed", AtLeast(0, kLargestSeed)},
  };
  return *ranges;
}

std::string DescribeEnum(const EnumDescriptor& type) {
  std::string text = "one of ";
  for (int i = 0; i < type.value_count(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", type.value(i)->name());
  }
  return text;
}

std::string DescribeRange(absl::string_view kind, const FieldRange& range) {
  // Six digits would round 4294967295; fifteen write every limit of the table as it was typed.
  return absl::StrFormat("%s from %.15g%s to %.15g%s", kind, range.min,
                         range.min_excluded ? " (excluded)" : "", range.max,
                         range.max_excluded ? " (excluded)" : "");
}

}  // namespace

bool FieldRange::Contains(double value) const {
  return (min_excluded ? value > min : value >= min) && (max_excluded ? value < max : value <= max);
}

const FieldRange& RangeOf(absl::string_view path) {
  const auto found = Ranges().find(path);
  CHECK(found != Ranges().end()) << "no range is known for the field " << path;
  return found->second;
}

std::string DescribeAccepted(const FieldDescriptor& field, absl::string_view path) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "a string in quotes";
    case FieldDescriptor::CPPTYPE_ENUM:
      return DescribeEnum(*field.enum_type());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "fields in braces";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return DescribeRange("a number", RangeOf(path));
    default:
      return DescribeRange("an integer", RangeOf(path));
  }
}

}  // namespace megatron
