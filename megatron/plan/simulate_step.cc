#include "megatron/plan/simulate_step.h"

#include <algorithm>
#include <cstddef>

#include "megatron/pipeline/replay_plans.h"
#include "megatron/pipeline/span_names.h"

namespace megatron {
namespace {

// Links carry both directions at once, and messages of one direction one after the other.
double Seconds(const Step& step, const StagePlan& plan, const PartCosts& seconds,
               const MessageCosts& messages) {
  if (step.is_exchange()) {
    return messages.seconds * std::max(messages.TensorsOf(plan, step.sends, /*are_sent=*/true),
                                       messages.TensorsOf(plan, step.receives, false));
  }
  if (plan.IsEmpty(step)) return 0;
  return CostOf(step.action.kind, seconds.At(plan.positions[step.action.chunk]));
}

std::vector<StageTimes> TimesOf(const std::vector<StagePlan>& plans, const PartCosts& seconds,
                                const MessageCosts& messages) {
  std::vector<StageTimes> times(plans.size());
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    for (const Step& step : plans[stage].steps)
      times[stage].steps.push_back(Seconds(step, plans[stage], seconds, messages));
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

double MessageCosts::TensorsOf(const StagePlan& plan, const std::vector<Message>& messages,
                               bool are_sent) const {
  if (tensors.empty()) return double(messages.size());
  double sum = 0;
  for (const Message& message : messages) sum += tensors[plan.EdgeOf(message, are_sent)];
  return sum;
}

SimulatedStep SimulateStep(const std::vector<StagePlan>& plans, const PartCosts& seconds,
                           const MessageCosts& messages) {
  const ExchangePartners partners = FindPartners(plans);
  AwaitedExchanges awaited;
  if (messages.beside_passes) awaited = FindAwaited(plans);
  const AwaitedExchanges* beside = messages.beside_passes ? &awaited : nullptr;
  const auto spans = ReplaySteps(partners, beside, TimesOf(plans, seconds, messages));
  SimulatedStep step;
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    step.stages.push_back(StageOf(plans[stage], spans[stage]));
    for (const StepSpan& span : spans[stage]) step.seconds = std::max(step.seconds, span.end);
    if (step.stages[stage].work > step.stages[step.busiest].work) step.busiest = int(stage);
  }
  MessageCosts no_time = messages;
  no_time.seconds = 0;
  const std::vector<double> free = ReplayPlans(partners, beside, TimesOf(plans, seconds, no_time));
  const double without_messages = *std::max_element(free.begin(), free.end());
  step.message_seconds = step.seconds - without_messages;
  step.bubble = without_messages - step.stages[step.busiest].work;
  return step;
}

}  // namespace megatron
