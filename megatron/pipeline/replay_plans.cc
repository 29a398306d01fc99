#include "megatron/pipeline/replay_plans.h"

#include <algorithm>
#include <map>
#include <utility>

#include "glog/logging.h"

namespace megatron {
namespace {

// The exchanges of the messages from one stage to another, in order: each message has one entry.
using Queues = std::map<std::pair<int, int>, std::vector<size_t>>;

class Player {
 public:
  Player(const ExchangePartners& partners, const std::vector<StageTimes>& times)
      : partners_(partners), times_(times), next_(times.size(), 0), arrivals_(times.size()) {
    CHECK_EQ(partners.size(), times.size());
    for (size_t stage = 0; stage < times.size(); ++stage) {
      CHECK_EQ(partners[stage].size(), times[stage].steps.size()) << "of stage " << stage;
      arrivals_[stage].push_back(times[stage].start);
    }
  }

  std::vector<double> Play() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t stage = 0; stage < times_.size(); ++stage) progress |= PlayWhatIsReady(stage);
    }
    std::vector<double> ends;
    for (size_t stage = 0; stage < times_.size(); ++stage) {
      CHECK_EQ(next_[stage], partners_[stage].size()) << "stage " << stage << " waits for ever";
      ends.push_back(arrivals_[stage].back());
    }
    return ends;
  }

 private:
  bool PlayWhatIsReady(size_t stage) {
    const size_t first = next_[stage];
    for (size_t& next = next_[stage]; next < partners_[stage].size(); ++next) {
      double begin = arrivals_[stage][next];
      bool ready = true;
      for (const PlannedStep& partner : partners_[stage][next]) {
        const std::vector<double>& others = arrivals_[partner.stage];
        ready = ready && partner.step < others.size();
        if (ready) begin = std::max(begin, others[partner.step]);
      }
      if (!ready) break;
      arrivals_[stage].push_back(begin + times_[stage].steps[next]);
    }
    return next_[stage] > first;
  }

  const ExchangePartners& partners_;
  const std::vector<StageTimes>& times_;
  std::vector<size_t> next_;                   // one entry a stage: its first step to be played
  std::vector<std::vector<double>> arrivals_;  // the moments at which a stage comes to its steps
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

std::vector<double> ReplayPlans(const ExchangePartners& partners,
                                const std::vector<StageTimes>& times) {
  return Player(partners, times).Play();
}

}  // namespace megatron
