#include "megatron/train/config/config_defaults.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "megatron/data/tasks/labelled_task.h"
#include "megatron/layers/longrope_scale.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/train/config/batch_sizes.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/elastic_batch.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/labelled_task_of.h"
#include "megatron/train/recipes/model_rules_of.h"

namespace megatron {
namespace {

// What the file gives out of range is left to the validation.
void ResolveLongRope(config::ModelConfig* model) {
  const int64_t original = model->longrope_original_max_position_embeddings();
  if (model->longrope_long_factors_size() == 0 || model->has_longrope_attention_factor() ||
      model->max_position_embeddings() < 1 || original < 2) {
    return;
  }
  model->set_longrope_attention_factor(LongRopeMagnitude(
      static_cast<double>(model->max_position_embeddings()), static_cast<double>(original)));
}

void ResolveExperts(config::ModelConfig* model) {
  if (!model->has_num_experts()) return;
  if (!model->has_moe_ffn_hidden_size() && model->has_ffn_hidden_size())
    model->set_moe_ffn_hidden_size(model->ffn_hidden_size());
  if (model->has_moe_router_num_groups() && !model->has_moe_router_group_score_topk() &&
      model->moe_router_group_topk() > 0 &&
      model->moe_router_topk() >= model->moe_router_group_topk()) {
    model->set_moe_router_group_score_topk(model->moe_router_topk() /
                                           model->moe_router_group_topk());
  }
}

// A BERT's head tells apart what the labels of its task do.
void ResolveTask(config::PretrainConfig* config) {
  const std::optional<LabelledTask> task = LabelledTaskOf(config->data());
  config::ModelConfig* const model = config->mutable_model();
  if (!task.has_value() || model->model_type() != config::ModelType::bert) return;
  const TaskLabels labels = LabelsOf(*task);
  if (!model->has_num_classes() && labels.classes > 0) model->set_num_classes(labels.classes);
  if (!model->has_num_choices() && labels.choices > 1) model->set_num_choices(labels.choices);
}

void ResolveModel(config::ModelConfig* model) {
  const int64_t hidden_size = model->hidden_size();
  const int64_t heads = model->num_attention_heads();
  if (!model->has_ffn_hidden_size() && hidden_size > 0) {
    model->set_ffn_hidden_size(DefaultFfnHiddenSize(hidden_size, model->swiglu()));
  }
  if (!model->has_kv_channels() && model->multi_latent_attention()) {
    model->set_kv_channels(model->qk_head_dim() + model->qk_pos_emb_head_dim());
  } else if (!model->has_kv_channels() && hidden_size > 0 && heads > 0) {
    model->set_kv_channels(hidden_size / heads);
  }
  if (!model->has_num_query_groups() && heads > 0) model->set_num_query_groups(heads);
  const ModelRules& rules = ModelRulesOf(*model);
  rules.ResolveDefaults(model);
  if (!model->has_max_position_embeddings() && model->has_seq_length()) {
    const SampleLengths lengths = rules.LengthsOf(*model);
    model->set_max_position_embeddings(std::max(lengths.seq_length, lengths.encoder_seq_length));
  }
  ResolveLongRope(model);
  ResolveExperts(model);
  if (model->use_mup() && hidden_size > 0) {
    if (!model->has_mup_base_hidden_size()) model->set_mup_base_hidden_size(hidden_size);
    if (!model->has_mup_output_mult()) model->set_mup_output_mult(1 / MupWidthMult(*model));
  }
  if (!model->has_embedding_init_method_std() && !model->init_method_xavier_uniform())
    model->set_embedding_init_method_std(model->init_method_std());
}

void ResolveOptimizer(const config::TrainConfig& training, config::OptimizerConfig* optimizer) {
  if (training.has_train_samples()) {
    if (!optimizer->has_lr_decay_samples())
      optimizer->set_lr_decay_samples(training.train_samples());
  } else if (!optimizer->has_lr_decay_iters() && training.has_train_iters()) {
    optimizer->set_lr_decay_iters(training.train_iters());
  }
  if (optimizer->has_decoupled_lr() && !optimizer->has_decoupled_min_lr())
    optimizer->set_decoupled_min_lr(optimizer->min_lr());
  if (!optimizer->has_start_weight_decay())
    optimizer->set_start_weight_decay(optimizer->weight_decay());
  if (!optimizer->has_end_weight_decay())
    optimizer->set_end_weight_decay(optimizer->weight_decay());
}

// Sizes that are not valid are left to the validation.
void ResolveBatches(int64_t seq_length, int64_t data_parallel_size, config::TrainConfig* training) {
  if (training->has_step_batch_size_schedule() && !training->has_global_batch_size()) {
    const auto steps = BatchSizeSteps(*training, seq_length);
    if (steps.ok()) training->set_global_batch_size(steps->back().size);
  }
  if (!training->has_global_batch_size() && training->has_micro_batch_size())
    training->set_global_batch_size(training->micro_batch_size() * data_parallel_size);
  if (training->has_train_iters() || !training->has_train_samples() ||
      training->global_batch_size() < 1) {
    return;
  }
  auto steps = BatchSizeSteps(*training, seq_length);
  if (!steps.ok()) return;
  if (steps->empty()) steps->push_back({0, training->global_batch_size()});
  training->set_train_iters(CountIterations(*steps, training->train_samples()));
}

void ResolveCurriculum(config::PretrainConfig* config) {
  if (!config->data().has_curriculum_learning()) return;
  config::CurriculumConfig* const curriculum =
      config->mutable_data()->mutable_curriculum_learning();
  if (curriculum->schedule_type() != config::CurriculumSchedule::fixed_discrete &&
      !curriculum->has_max_difficulty() && config->model().has_seq_length())
    curriculum->set_max_difficulty(config->model().seq_length());
}

void ResolveRandomLtd(config::PretrainConfig* config) {
  if (config->data().has_random_ltd() && !config->data().random_ltd().has_max_value() &&
      config->model().has_seq_length())
    config->mutable_data()->mutable_random_ltd()->set_max_value(config->model().seq_length());
}

// What the section does not give for these ranks is refused by CheckElasticity.
void ResolveElasticity(config::PretrainConfig* config) {
  if (!config->elasticity().enabled()) return;
  if (config->elasticity().micro_batch_sizes().empty()) {
    for (const int64_t size : ElasticRule().micro_batches)
      config->mutable_elasticity()->add_micro_batch_sizes(size);
  }
  config::TrainConfig* const training = config->mutable_train();
  if (config->elasticity().ignore_non_elastic_batch_info()) {
    training->clear_global_batch_size();
    training->clear_micro_batch_size();
  }
  const absl::StatusOr<ElasticRule> rule = ElasticRuleOf(*config);
  const absl::StatusOr<ElasticBatch> batch =
      rule.ok() ? ChooseElasticBatch(*rule) : absl::StatusOr<ElasticBatch>(rule.status());
  int64_t micro = 0;
  if (batch.ok()) {
    micro = ElasticMicroBatch(*rule, batch->size, config->parallel().data_parallel_size());
    if (!training->has_global_batch_size()) training->set_global_batch_size(batch->size);
  }
  if (training->has_micro_batch_size()) return;
  training->set_micro_batch_size(micro > 0 ? micro : config->elasticity().micro_batch_sizes(0));
}

void ResolveEvaluation(config::TrainConfig* training) {
  if (training->eval_tasks_size() > 0 && !training->has_eval_tasks_interval())
    training->set_eval_tasks_interval(training->eval_interval());
}

void ResolveProfile(config::PretrainConfig* config) {
  config::LoggingConfig* const logging = config->mutable_logging();
  if (!logging->profile()) return;
  if (logging->profile_ranks().empty()) logging->add_profile_ranks(0);
  if (logging->has_profile_dir()) return;
  const std::string& save = config->checkpoint().save();
  logging->set_profile_dir(save.empty() ? "profile"
                                        : absl::StrCat(absl::StripSuffix(save, "/"), "/profile"));
}

void ResolveFiles(config::PretrainConfig* config) {
  config::CheckpointConfig* const checkpoint = config->mutable_checkpoint();
  if (!checkpoint->has_save()) return;
  if (!checkpoint->has_load()) checkpoint->set_load(checkpoint->save());
  if (!checkpoint->has_keep_last())
    checkpoint->set_keep_last(checkpoint->has_save_retain_interval() ? 1 : 0);
  if (!config->logging().has_metrics_file()) {
    config->mutable_logging()->set_metrics_file(
        absl::StrCat(absl::StripSuffix(checkpoint->save(), "/"), "/metrics.jsonl"));
  }
  if (!config->logging().has_tensorboard_dir()) {
    config->mutable_logging()->set_tensorboard_dir(
        absl::StrCat(absl::StripSuffix(checkpoint->save(), "/"), "/tensorboard"));
  }
}

}  // namespace

int64_t DefaultFfnHiddenSize(int64_t hidden_size, bool swiglu) {
  return swiglu ? std::max<int64_t>(hidden_size * 8 / 3 / 64, 1) * 64 : 4 * hidden_size;
}

void ResolveDefaults(config::PretrainConfig* config) {
  config->mutable_parallel();
  config->mutable_precision();
  config->mutable_data();
  config->mutable_logging();
  config->mutable_system();
  ResolveTask(config);
  ResolveModel(config->mutable_model());
  ResolveCurriculum(config);
  ResolveRandomLtd(config);
  if (config->model().has_num_experts() && !config->parallel().has_expert_tensor_parallel_size()) {
    config->mutable_parallel()->set_expert_tensor_parallel_size(
        config->parallel().tensor_model_parallel_size());
  }
  config::RecomputeConfig* const recompute = config->mutable_recompute();
  if (recompute->recompute_granularity() == config::RecomputeGranularity::selective &&
      recompute->recompute_modules().empty()) {
    recompute->add_recompute_modules(config::RecomputeModule::core_attn);
  }
  ResolveElasticity(config);
  ResolveBatches(config->model().seq_length(), config->parallel().data_parallel_size(),
                 config->mutable_train());
  ResolveOptimizer(config->train(), config->mutable_optimizer());
  ResolveFiles(config);
  ResolveEvaluation(config->mutable_train());
  ResolveProfile(config);
}

}  // namespace megatron
