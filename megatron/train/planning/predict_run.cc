#include "megatron/train/planning/predict_run.h"

#include "megatron/base/status_macros.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/tensor/trace/time_category.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/metrics/step_comparer.h"
#include "megatron/train/planning/explain_step.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/planning/planning_facts.h"

namespace megatron {
namespace {

struct Part {
  TimeCategory category;
  double StepSeconds::*seconds;
};

constexpr Part kParts[] = {{TimeCategory::kCompute, &StepSeconds::compute},
                           {TimeCategory::kTensorParallel, &StepSeconds::tensor_parallel},
                           {TimeCategory::kContextParallel, &StepSeconds::context_parallel},
                           {TimeCategory::kExpertParallel, &StepSeconds::expert_parallel},
                           {TimeCategory::kPipelineParallel, &StepSeconds::messages},
                           {TimeCategory::kBubble, &StepSeconds::bubble},
                           {TimeCategory::kDataParallel, &StepSeconds::data_parallel},
                           {TimeCategory::kOptimizer, &StepSeconds::optimizer}};

void AddPart(const char* name, double seconds, StepComparison* comparison) {
  ComparedPart* const part = comparison->add_part();
  part->set_name(name);
  part->set_predicted_seconds(seconds);
}

}  // namespace

absl::StatusOr<StepComparison> PredictRun(const config::PretrainConfig& config,
                                          int64_t padded_vocab_size, const PlanningFacts& facts) {
  const config::ParallelConfig& parallel = config.parallel();
  const int64_t ranks = parallel.tensor_model_parallel_size() *
                        parallel.pipeline_model_parallel_size() * parallel.context_parallel_size() *
                        parallel.data_parallel_size();
  config::PretrainConfig planned = config;
  SetPlannedDevice(!IsProcessor(facts.hardware), &planned);
  MEGATRON_ASSIGN_OR_RETURN(
      const ExplainedStep step,
      ExplainStep(planned, padded_vocab_size, HardwareOfRun(config, ranks, facts.hardware),
                  facts.program, facts.kernels));
  StepComparison comparison;
  comparison.set_hardware(facts.source);
  comparison.set_stage(step.stage);
  comparison.set_predicted_seconds(step.seconds.total);
  for (const Part& part : kParts)
    AddPart(Name(part.category), step.seconds.*part.seconds, &comparison);
  AddPart(kRestOfStep, step.seconds.constant, &comparison);
  comparison.set_vocab_size(padded_vocab_size);
  comparison.set_config(EffectiveConfigText(config));
  return comparison;
}

}  // namespace megatron
