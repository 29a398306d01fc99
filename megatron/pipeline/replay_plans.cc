#include "megatron/pipeline/replay_plans.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "glog/logging.h"

namespace megatron {
namespace {

// The exchanges of the messages from one stage to another, in order: each message has one entry.
using Queues = std::map<std::pair<int, int>, std::vector<size_t>>;

class Player {
 public:
  Player(const ExchangePartners& partners, const AwaitedExchanges* awaited,
         const std::vector<StageTimes>& times)
      : partners_(partners), awaited_(awaited), times_(times), stages_(times.size()) {
    CHECK_EQ(partners.size(), times.size());
    for (size_t stage = 0; stage < times.size(); ++stage) {
      CHECK_EQ(partners[stage].size(), times[stage].steps.size()) << "of stage " << stage;
      Progress& progress = stages_[stage];
      progress.computed = progress.exchanged = times[stage].start;
      progress.arrivals.push_back(times[stage].start);
    }
  }

  std::vector<double> PlayToEnds() {
    Play();
    std::vector<double> ends;
    for (const Progress& stage : stages_) ends.push_back(stage.arrivals.back());
    return ends;
  }

  std::vector<std::vector<StepSpan>> PlayToSpans() {
    Play();
    std::vector<std::vector<StepSpan>> spans;
    for (Progress& stage : stages_) spans.push_back(std::move(stage.spans));
    return spans;
  }

 private:
  void Play() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t stage = 0; stage < times_.size(); ++stage) progress |= PlayWhatIsReady(stage);
    }
    for (size_t stage = 0; stage < times_.size(); ++stage) {
      CHECK_EQ(stages_[stage].spans.size(), partners_[stage].size())
          << "stage " << stage << " waits for ever";
    }
  }

  // What a stage has done.
  struct Progress {
    double computed = 0, exchanged = 0;  // the ends of the last action and of the last exchange
    std::vector<StepSpan> spans;         // those of the steps that were played
    std::vector<double> arrivals;        // the moments at which it comes to these and the next one
  };

  bool PlayWhatIsReady(size_t stage) {
    Progress& progress = stages_[stage];
    const size_t first = progress.spans.size();
    while (progress.spans.size() < partners_[stage].size()) {
      const size_t next = progress.spans.size();
      double begin = progress.arrivals[next];
      bool ready = true;
      for (const PlannedStep& partner : partners_[stage][next]) {
        const std::vector<double>& others = stages_[partner.stage].arrivals;
        ready = ready && partner.step < others.size();
        if (ready) begin = std::max(begin, others[partner.step]);
      }
      if (!ready) break;
      End(stage, {begin, begin + times_[stage].steps[next]});
    }
    return progress.spans.size() > first;
  }

  bool IsExchange(size_t stage, size_t step) const { return !partners_[stage][step].empty(); }

  // Ends the stage's next step.
  void End(size_t stage, const StepSpan& span) {
    Progress& progress = stages_[stage];
    const bool beside = awaited_ != nullptr;
    const bool exchange = IsExchange(stage, progress.spans.size());
    if (exchange) progress.exchanged = span.end;
    if (!exchange || !beside) progress.computed = span.end;
    progress.spans.push_back(span);
    const size_t next = progress.spans.size();
    double arrival = progress.computed;
    if (next == partners_[stage].size() || IsExchange(stage, next)) {
      arrival = std::max(arrival, progress.exchanged);
    } else if (beside) {
      for (const size_t awaited : (*awaited_)[stage][next])
        arrival = std::max(arrival, progress.spans[awaited].end);
    }
    progress.arrivals.push_back(arrival);
  }

  const ExchangePartners& partners_;
  const AwaitedExchanges* const awaited_;
  const std::vector<StageTimes>& times_;
  std::vector<Progress> stages_;
};

// The exchanges that a stage has begun beside its actions.
class Begun {
 public:
  explicit Begun(const StagePlan& plan) : plan_(plan) {}

  void Add(size_t number) {
    const Step& step = plan_.steps[number];
    for (const Message& message : step.receives)
      receiving_[{message.gradient, message.chunk, message.slot}] = number;
    if (step.sends.empty()) return;
    sending_[next_] = number;
    next_ = (next_ + 1) % kOutgoing;
  }

  // Returns those that fill what the action reads, and that send what it overwrites.
  std::vector<size_t> AwaitedBy(const Step& step) {
    const auto [kind, microbatch, chunk] = step.action;
    std::vector<size_t> awaited;
    if (kind == ActionKind::kBackwardWeight || plan_.IsEmpty(step)) return awaited;
    const bool forward = kind == ActionKind::kForward;
    const int slot = forward ? step.input_slot : step.gradient_slot;
    if (const auto it = receiving_.find({!forward, chunk, slot}); it != receiving_.end())
      awaited.push_back(it->second);
    const bool has_result = forward ? plan_.has_output(chunk) : plan_.has_input_gradient(chunk);
    if (has_result && step.result_slot < 0 && sending_[next_]) awaited.push_back(*sending_[next_]);
    return awaited;
  }

 private:
  static constexpr size_t kOutgoing = 2;  // blocks of results that are sent, as in RunSchedule

  const StagePlan& plan_;
  std::map<std::tuple<bool, int, int>, size_t> receiving_;  // by gradient, chunk and slot
  std::array<std::optional<size_t>, kOutgoing> sending_;
  size_t next_ = 0;  // the block of the next result
};

}  // namespace

ExchangePartners FindPartners(const std::vector<StagePlan>& plans) {
  Queues sent, received;
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    const int self = static_cast<int>(stage);
    for (size_t i = 0; i < plans[stage].steps.size(); ++i) {
      for (const Message& m : plans[stage].steps[i].sends) sent[{self, m.peer}].push_back(i);
      for (const Message& m : plans[stage].steps[i].receives) received[{m.peer, self}].push_back(i);
    }
  }
  ExchangePartners partners(plans.size());
  for (size_t stage = 0; stage < plans.size(); ++stage)
    partners[stage].resize(plans[stage].steps.size());
  for (const auto& [way, sends] : sent) {
    const auto [from, to] = way;
    const std::vector<size_t>& receives = received[way];
    CHECK_EQ(sends.size(), receives.size()) << "messages from stage " << from << " to " << to;
    for (size_t i = 0; i < sends.size(); ++i) {
      partners[from][sends[i]].push_back({to, receives[i]});
      partners[to][receives[i]].push_back({from, sends[i]});
    }
  }
  return partners;
}

AwaitedExchanges FindAwaited(const std::vector<StagePlan>& plans) {
  AwaitedExchanges awaited(plans.size());
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    Begun begun(plans[stage]);
    for (size_t i = 0; i < plans[stage].steps.size(); ++i) {
      const Step& step = plans[stage].steps[i];
      awaited[stage].emplace_back();
      if (step.is_exchange()) {
        begun.Add(i);
      } else {
        awaited[stage].back() = begun.AwaitedBy(step);
      }
    }
  }
  return awaited;
}

std::vector<double> ReplayPlans(const ExchangePartners& partners, const AwaitedExchanges* awaited,
                                const std::vector<StageTimes>& times) {
  return Player(partners, awaited, times).PlayToEnds();
}

std::vector<std::vector<StepSpan>> ReplaySteps(const ExchangePartners& partners,
                                               const AwaitedExchanges* awaited,
                                               const std::vector<StageTimes>& times) {
  return Player(partners, awaited, times).PlayToSpans();
}

}  // namespace megatron
