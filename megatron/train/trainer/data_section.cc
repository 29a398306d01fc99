#include "megatron/train/trainer/data_section.h"

#include <optional>
#include <string>

#include "megatron/train/recipes/labelled_task_of.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/recipes/recipes.h"

namespace megatron {
namespace {

std::optional<FillInTheMiddleOptions> ToFillInTheMiddle(const config::PretrainConfig& config) {
  if (!config.data().has_fim_data()) return std::nullopt;
  const config::FimConfig& fim = config.data().fim_data();
  FillInTheMiddleOptions options;
  options.rate = fim.fim_rate();
  options.spm_rate = fim.fim_spm_rate();
  options.fragment_rate = fim.fim_fragment_rate();
  options.prefix_token = fim.fim_prefix_token();
  options.middle_token = fim.fim_middle_token();
  options.suffix_token = fim.fim_suffix_token();
  options.pad_token = fim.fim_pad_token();
  if (fim.has_fim_eod_token()) options.eod_token = fim.fim_eod_token();
  options.split_token = fim.fim_split_sample();
  options.no_prefix = fim.fim_no_prefix();
  options.seed = static_cast<uint32_t>(config.train().seed());
  return options;
}

}  // namespace

LengthSchedule ToCurriculum(const config::DataConfig& config) {
  LengthSchedule schedule;
  if (!config.has_curriculum_learning()) return schedule;
  const config::CurriculumConfig& curriculum = config.curriculum_learning();
  if (curriculum.schedule_type() == config::CurriculumSchedule::fixed_discrete) {
    schedule.lengths.assign(curriculum.difficulty().begin(), curriculum.difficulty().end());
    schedule.last_steps.assign(curriculum.max_step().begin(), curriculum.max_step().end());
    return schedule;
  }
  schedule.min = curriculum.min_difficulty();
  schedule.max = curriculum.max_difficulty();
  schedule.total_steps = curriculum.total_curriculum_step();
  schedule.multiple = curriculum.difficulty_step();
  if (curriculum.schedule_type() == config::CurriculumSchedule::fixed_root)
    schedule.root_degree = curriculum.root_degree();
  return schedule;
}

LengthSchedule ToRandomLtd(const config::DataConfig& config) {
  LengthSchedule schedule;
  if (!config.has_random_ltd()) return schedule;
  schedule.min = config.random_ltd().min_value();
  schedule.max = config.random_ltd().max_value();
  schedule.total_steps = config.random_ltd().require_steps();
  schedule.multiple = config.random_ltd().seq_per_step();
  return schedule;
}

DataOptions ToDataOptions(const config::PretrainConfig& config) {
  const config::DataConfig& data = config.data();
  const config::TrainConfig& training = config.train();
  DataOptions options;
  for (const std::string& part : data.data_path()) options.data_path.push_back(part);
  options.data_args_path = data.data_args_path();
  options.split = data.split();
  options.train_data_path.assign(data.train_data_path().begin(), data.train_data_path().end());
  options.valid_data_path.assign(data.valid_data_path().begin(), data.valid_data_path().end());
  options.test_data_path.assign(data.test_data_path().begin(), data.test_data_path().end());
  options.per_split_data_args_path = data.per_split_data_args_path();
  options.multiple_validation_sets = training.multiple_validation_sets();
  options.validation_set_names.assign(training.validation_set_names().begin(),
                                      training.validation_set_names().end());
  options.full_validation = training.full_validation();
  options.mmap_bin_files = data.mmap_bin_files();
  options.cache_path = data.data_cache_path();
  options.fill_in_the_middle = ToFillInTheMiddle(config);
  if (data.sft()) {
    options.conversations =
        ConversationDataOptions{config::ChatFormat::Type_Name(data.sft_tokenizer_prompt_format()),
                                data.sft_long_conversations() == config::LongConversations::drop};
  }
  if (data.has_sampling_alpha()) options.sampling_alpha = data.sampling_alpha();
  if (const std::optional<LabelledTask> task = LabelledTaskOf(data))
    options.task = TaskDataOptions{*task};
  options.loss_weights.assign(data.loss_weights().begin(), data.loss_weights().end());
  RecipeOf(ModelRulesOf(config.model()).kind()).SetData(config, &options);
  options.cyclic = data.dataloader_type() == config::DataloaderType::cyclic;
  options.data_sharding = data.data_sharding();
  options.micro_batch_size = training.micro_batch_size();
  options.data_parallel_size = config.parallel().data_parallel_size();
  options.mock = data.mock_data();
  options.stories = data.has_stories();
  options.stories_bytes = data.stories().num_bytes();
  options.stories_seed = static_cast<uint64_t>(data.stories().seed());
  options.seq_length = config.model().seq_length();
  options.seed = static_cast<uint32_t>(training.seed());
  options.reset_position_ids = data.reset_position_ids();
  options.reset_attention_mask = data.reset_attention_mask();
  options.eod_mask_loss = data.eod_mask_loss();
  options.run = {training.train_iters(), training.global_batch_size(),
                 training.eval_iters() > 0 ? training.eval_interval() : 0, training.eval_iters()};
  options.run.train_samples = training.train_samples();
  if (config.diloco().num_islands() > 0) {
    options.run.training_runs = config.diloco().num_islands();
    options.training_run = config.diloco().island();
  }
  return options;
}

}  // namespace megatron
