#include "megatron/plan/simulate_step.h"

#include <algorithm>
#include <cstddef>

#include "megatron/pipeline/replay_plans.h"
#include "megatron/pipeline/span_names.h"

namespace megatron {
namespace {

// Links carry both directions at once, and messages of one direction one after the other.
double Seconds(const Step& step, const StagePlan& plan, const PartCosts& seconds, double message) {
  if (step.is_exchange()) {
    return message * double(std::max(step.sends.size(), step.receives.size()));
  }
  return CostOf(step.action.kind, seconds.At(plan.positions[step.action.chunk]));
}

std::vector<StageTimes> TimesOf(const std::vector<StagePlan>& plans, const PartCosts& seconds,
                                double message) {
  std::vector<StageTimes> times(plans.size());
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    for (const Step& step : plans[stage].steps)
      times[stage].steps.push_back(Seconds(step, plans[stage], seconds, message));
  }
  return times;
}

SimulatedStage StageOf(const StagePlan& plan, const std::vector<StepSpan>& spans) {
  SimulatedStage stage;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Step& step = plan.steps[i];
    const double seconds = spans[i].end - spans[i].begin;
    if (step.is_exchange()) {
      stage.exchanges.push_back({ExchangeName(step), spans[i].begin, spans[i].end});
      stage.messages += seconds;
    } else {
      stage.passes.push_back({step.action, spans[i].begin, spans[i].end});
      stage.work += seconds;
    }
  }
  return stage;
}

}  // namespace

SimulatedStep SimulateStep(const std::vector<StagePlan>& plans, const PartCosts& seconds,
                           const MessageCosts& messages) {
  const ExchangePartners partners = FindPartners(plans);
  AwaitedExchanges awaited;
  if (messages.beside_passes) awaited = FindAwaited(plans);
  const AwaitedExchanges* beside = messages.beside_passes ? &awaited : nullptr;
  const auto spans = ReplaySteps(partners, beside, TimesOf(plans, seconds, messages.seconds));
  SimulatedStep step;
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    step.stages.push_back(StageOf(plans[stage], spans[stage]));
    for (const StepSpan& span : spans[stage]) step.seconds = std::max(step.seconds, span.end);
    if (step.stages[stage].work > step.stages[step.busiest].work) step.busiest = int(stage);
  }
  const std::vector<double> free = ReplayPlans(partners, beside, TimesOf(plans, seconds, 0));
  const double without_messages = *std::max_element(free.begin(), free.end());
  step.message_seconds = step.seconds - without_messages;
  step.bubble = without_messages - step.stages[step.busiest].work;
  return step;
}

}  // namespace megatron
