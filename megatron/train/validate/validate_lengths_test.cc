#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

constexpr char kGrows[] =
    "data.curriculum_learning={schedule_type: fixed_linear min_difficulty: 8 "
    "total_curriculum_step: 5}";
constexpr char kListed[] =
    "data.curriculum_learning={schedule_type: fixed_discrete difficulty: [8, 16, 32] max_step: [3, "
    "4]}";
constexpr char kDrops[] = "data.random_ltd={min_value: 8 require_steps: 5}";

TEST(ValidateLengthsTest, RefusesEachBrokenRuleByName) {
  ExpectOnlyError({
      {{"data.curriculum_learning={schedule_type: fixed_linear min_difficulty: 8 "
        "total_curriculum_step: 10}",
        "train.step_batch_size_schedule=0:2 1K:4"},
       "cannot be used with train.step_batch_size_schedule: both"},
      {{"data.curriculum_learning={}"}, "data.curriculum_learning.schedule_type: is required"},
      {{"data.curriculum_learning={schedule_type: custom}"}, "is not available"},
      {{"data.curriculum_learning={schedule_type: fixed_root min_difficulty: 8}"},
       "data.curriculum_learning.total_curriculum_step: is required, unless"},
      {{kGrows, "data.curriculum_learning.difficulty=[8]"}, "has no effect with"},
      {{kGrows, "data.curriculum_learning.root_degree=3"}, "has no effect with"},
      {{kGrows, "data.curriculum_learning.max_difficulty=8"},
       "data.curriculum_learning.min_difficulty = 8: must be less than "
       "data.curriculum_learning.max_difficulty = 8"},
      {{kGrows, "data.curriculum_learning.max_difficulty=40"}, "must be at most model.seq_length"},
      {{kGrows, "data.curriculum_learning.min_difficulty=9"},
       "must be divisible by data.curriculum_learning.difficulty_step = 8"},
      {{kGrows, "parallel.context_parallel_size=8"},
       "data.curriculum_learning.difficulty_step = 8: must be divisible by 16, so that samples can "
       "be shared out with parallel.context_parallel_size = 8"},
      {{kGrows, "data.curriculum_learning.difficulty_step=1", "parallel.sequence_parallel=true",
        "parallel.tensor_model_parallel_size=2"},
       "must be divisible by 2, so that samples can be shared out with parallel.sequence_parallel"},
      {{kGrows, "train.global_batch_size=4",
        "train.rampup_batch_size={start: 2 increment: 2 samples: 8}"},
       "cannot be used with train.rampup_batch_size"},
      {{kGrows, "model.model_type=bert"},
       "data.curriculum_learning: has no effect with model.model_type = bert"},
      {{kListed, "data.curriculum_learning.max_step=[3, 3]"}, "must ascend"},
      {{kListed, "data.curriculum_learning.difficulty=[16, 8, 32]"}, "must ascend"},
      {{kListed, "data.curriculum_learning.max_step=[3]"}, "one number less than"},
      {{kListed, "data.curriculum_learning.difficulty=[8, 16, 64]"}, "must be at most"},
      {{kListed, "parallel.context_parallel_size=8"}, "must be divisible by 16"},
      {{kListed, "data.curriculum_learning.min_difficulty=8"}, "has no effect with"},
      {{"data.random_ltd={min_value: 8}"}, "data.random_ltd.require_steps: is required"},
      {{kDrops, "model.window_size=8"}, "cannot be used with model.window_size = 8"},
      {{kDrops, "data.random_ltd.max_value=8"}, "must be less than data.random_ltd.max_value = 8"},
      {{kDrops, "data.random_ltd.max_value=40"}, "must be at most model.seq_length"},
      {{kDrops, "data.random_ltd.seq_per_step=16"},
       "data.random_ltd.min_value = 8: must be divisible by data.random_ltd.seq_per_step = 16"},
      {{kDrops, "model.num_layers=2"}, "data.random_ltd: has no effect with model.num_layers = 2"},
      {{kDrops, "parallel.context_parallel_size=2", "data.random_ltd.seq_per_step=2"},
       "data.random_ltd.seq_per_step = 2: must be divisible by 4, so that samples can be shared "
       "out with parallel.context_parallel_size = 2"},
      {{kDrops, "parallel.context_parallel_size=2", "data.reset_position_ids=true"},
       ": with data.reset_position_ids no rank has the positions of the tokens that it gets"},
      {{kDrops, "precision.bf16=true", "precision.fp8_format=e4m3"},
       "cannot be used with precision.fp8_format"},
      {{kDrops, "data.reset_attention_mask=true"}, "a document might lose all of its own"},
      {{kDrops, "recompute.attention_chunk_tokens=8"},
       "cannot be used with recompute.attention_chunk_tokens"},
      {{kDrops, "logging.diagnostics_interval=2"},
       "cannot be used with logging.diagnostics_interval"},
  });
}

}  // namespace
}  // namespace megatron
