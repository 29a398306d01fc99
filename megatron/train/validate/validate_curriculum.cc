#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/layers/context_slice.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr char kMin[] = "data.curriculum_learning.min_difficulty";
constexpr char kMax[] = "data.curriculum_learning.max_difficulty";
constexpr char kTotal[] = "data.curriculum_learning.total_curriculum_step";
constexpr char kStep[] = "data.curriculum_learning.difficulty_step";
constexpr char kDifficulty[] = "data.curriculum_learning.difficulty";
constexpr char kMaxStep[] = "data.curriculum_learning.max_step";
constexpr char kLength[] = "model.seq_length";

// What every length of a sample must be divisible by, as model.seq_length must.
struct Divisor {
  int64_t value = 1;
  std::string because;  // the fields that ask for it
};

Divisor DivisorOf(const ConfigChecker& check) {
  constexpr char kContext[] = "parallel.context_parallel_size";
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const bool rows = parallel.sequence_parallel() && parallel.tensor_model_parallel_size() > 1;
  const int64_t tensor = rows ? parallel.tensor_model_parallel_size() : 1;
  const int64_t context = parallel.context_parallel_size();
  Divisor divisor;
  std::vector<std::string> fields;
  if (context > 1) {
    const bool stripes = check.IsWritten("recompute.attention_chunk_tokens");
    divisor.value =
        stripes ? kContextStripe * context * tensor : std::lcm(2 * context, context * tensor);
    fields.push_back(check.Named(kContext));
  } else {
    divisor.value = tensor;
  }
  if (rows) fields.push_back(absl::StrCat("parallel.sequence_parallel, ", check.Named(kTensor)));
  if (check.resolved().precision().fp8_format() != config::Fp8Format::none) {
    divisor.value = std::lcm(divisor.value, 4 * context);
    fields.push_back(check.Named("precision.fp8_format"));
  }
  divisor.because = absl::StrJoin(fields, ", ");
  return divisor;
}

void CheckGrowth(ConfigChecker& check) {
  const config::CurriculumConfig& curriculum = check.resolved().data().curriculum_learning();
  for (const char* path : {kMin, kTotal}) {
    if (!check.IsWritten(path))
      check.Error(path, "is required, unless the lengths are a list (fixed_discrete)");
  }
  if (!check.Usable({kMin, kMax, kStep})) return;
  if (curriculum.min_difficulty() >= curriculum.max_difficulty())
    check.Error(kMin, absl::StrCat("must be less than ", check.Named(kMax)));
  check.MustDivide(kStep, kMin, curriculum.difficulty_step(), curriculum.min_difficulty());
  check.MustDivide(kStep, kMax, curriculum.difficulty_step(), curriculum.max_difficulty());
  CheckSampleLength(check, kStep, curriculum.difficulty_step());
  if (check.Usable({kLength}) &&
      curriculum.max_difficulty() > check.resolved().model().seq_length())
    check.Error(kMax, absl::StrCat("must be at most ", check.Named(kLength)));
}

void CheckList(ConfigChecker& check) {
  const config::CurriculumConfig& curriculum = check.resolved().data().curriculum_learning();
  if (!check.Usable({kDifficulty}))
    return check.Error(kDifficulty, "is required: lengths that ascend");
  const auto ascend = [](const auto& list) {
    for (int i = 1; i < list.size(); ++i) {
      if (list[i - 1] >= list[i]) return false;
    }
    return true;
  };
  if (!ascend(curriculum.difficulty())) check.Error(kDifficulty, "must ascend");
  if (!ascend(curriculum.max_step())) check.Error(kMaxStep, "must ascend");
  if (curriculum.difficulty_size() != curriculum.max_step_size() + 1) {
    check.Error(kMaxStep, absl::StrCat("must have one number less than ", check.Named(kDifficulty),
                                       ": the last length has no last step"));
  }
  for (const int64_t length : curriculum.difficulty()) {
    CheckSampleLength(check, kDifficulty, length);
    if (check.Usable({kLength}) && length > check.resolved().model().seq_length())
      check.Error(kDifficulty, absl::StrCat("must be at most ", check.Named(kLength)));
  }
}

}  // namespace

void CheckSampleLength(ConfigChecker& check, absl::string_view path, int64_t length) {
  const Divisor divisor = DivisorOf(check);
  if (length % divisor.value == 0) return;
  check.Error(path, absl::StrCat("must be divisible by ", divisor.value,
                                 ", so that samples can be shared out with ", divisor.because));
}

void CheckCurriculum(ConfigChecker& check) {
  constexpr char kType[] = "data.curriculum_learning.schedule_type";
  const config::PretrainConfig& config = check.resolved();
  if (!config.data().has_curriculum_learning() || !check.Usable({kType})) return;
  if (config.data().curriculum_learning().schedule_type() ==
      config::CurriculumSchedule::fixed_discrete) {
    CheckList(check);
  } else {
    CheckGrowth(check);
  }
  if (config.train().has_rampup_batch_size() || config.train().has_step_batch_size_schedule()) {
    check.MessageError(
        "data.curriculum_learning",
        absl::StrCat("cannot be used with train.",
                     config.train().has_rampup_batch_size() ? "rampup_batch_size"
                                                            : "step_batch_size_schedule",
                     ": both make steps of few tokens in the beginning; choose one"));
  }
  if (config.train().auto_layout()) {
    check.Error("train.auto_layout",
                "cannot be used with data.curriculum_learning: it predicts steps of whole samples");
  }
}

}  // namespace megatron
