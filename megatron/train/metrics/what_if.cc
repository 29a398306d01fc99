#include "megatron/train/metrics/what_if.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "megatron/base/median.h"
#include "megatron/pipeline/replay_plans.h"

namespace megatron {
namespace {

constexpr double kLeastSaving = 0.01;  // the least share of a step that is printed

// One step of all ranks, each with all steps of its plan in order.
using Step = std::vector<StepTimes>;

// Factors of what was measured.
struct Changes {
  std::vector<double> work;   // a factor of each rank's own work
  std::vector<double> calls;  // a factor of the calls within passes, by the rank's team
  double messages = 1, reduction = 1;
};

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The time of a part that ranks go through together: that of the rank which came last, and so has
// waited least.
template <typename PartOf>
double TogetherOf(const std::vector<int>& ranks, const Changes& changes, PartOf part_of) {
  int64_t least = INT64_MAX;
  double work = 0, changed_work = 0;
  for (const int rank : ranks) {
    const PartTime& part = part_of(rank);
    const auto own = static_cast<double>(part.own());
    least = std::min(least, part.time);
    work = std::max(work, own);
    changed_work = std::max(changed_work, own * changes.work[rank]);
  }
  const auto time = static_cast<double>(least);
  // The own work of a rank that came early may be longer than this: it is no more than a limit.
  const double calls = std::max(0.0, time - work) * (1 - changes.calls[ranks.front()]);
  return std::max(0.0, time - (work - changed_work) - calls);
}

class Replay {
 public:
  explicit Replay(const WhatIfInput& input)
      : input_(input),
        world_(input.dense.world_size()),
        stages_(input.dense.size(Axis::kPipeline)),
        partners_(FindPartners(input.plans)),
        awaited_(FindAwaited(input.plans)) {
    FindTeams();
    FindSteps();
  }

  int world() const { return world_; }
  int stages() const { return stages_; }
  int StageOf(int rank) const { return input_.dense.Coordinate(rank, Axis::kPipeline); }
  const std::vector<Step>& steps() const { return steps_; }
  // The teams of a stage, each a list of ranks; a pipeline is the teams of one number.
  const std::vector<std::vector<int>>& teams(int stage) const { return teams_[stage]; }

  const std::vector<std::vector<PlannedStep>>& partners(int stage) const {
    return partners_[stage];
  }

  Changes None() const {
    Changes changes;
    changes.work.assign(world_, 1);
    changes.calls.assign(world_, 1);
    return changes;
  }

  double Measured() const {
    double sum = 0;
    for (const Step& step : steps_) {
      int64_t longest = 0;
      for (const StepTimes& rank : step) longest = std::max(longest, rank.total);
      sum += static_cast<double>(longest);
    }
    return sum / static_cast<double>(steps_.size());
  }

  double With(const Changes& changes) const {
    double sum = 0;
    for (const Step& step : steps_) sum += StepWith(step, changes);
    return sum / static_cast<double>(steps_.size());
  }

 private:
  // Ranks that call each other within passes, directly or through others.
  void FindTeams() {
    std::vector<int> first(world_);  // the first rank of each rank's team
    std::iota(first.begin(), first.end(), 0);
    const auto join = [&](const std::vector<int>& peers) {
      const int joined = first[*std::min_element(
          peers.begin(), peers.end(), [&](int a, int b) { return first[a] < first[b]; })];
      for (const int peer : peers) {
        const int old = first[peer];
        for (int& rank : first) rank = rank == old ? joined : rank;
      }
    };
    for (int rank = 0; rank < world_; ++rank) {
      join(input_.dense.PeersOf(rank, {Axis::kTensor, Axis::kContext}));
      join(input_.expert.PeersOf(rank, {Axis::kTensor, Axis::kExpert}));
    }
    teams_.resize(stages_);
    std::map<int, size_t> numbers;
    for (int rank = 0; rank < world_; ++rank) {
      auto& teams = teams_[StageOf(rank)];
      const auto [number, is_new] = numbers.emplace(first[rank], teams.size());
      if (is_new) teams.emplace_back();
      teams[number->second].push_back(rank);
    }
  }

  void FindSteps() {
    for (size_t i = 0; i < input_.steps.front().size(); ++i) {
      Step step;
      for (int rank = 0; rank < world_; ++rank) {
        if (auto whole = InOrderOfPlan(input_.steps[rank][i], StageOf(rank)))
          step.push_back(*std::move(whole));
      }
      if (static_cast<int>(step.size()) == world_) steps_.push_back(std::move(step));
    }
  }

  // Returns the step with the exchanges that ran beside it in their places; nothing if it followed
  // another plan.
  std::optional<StepTimes> InOrderOfPlan(const StepTimes& times, int stage) {
    const std::vector<std::vector<PlannedStep>>& partners = partners_[stage];
    if (times.beside.empty()) {
      if (times.pipeline.size() != partners.size()) return std::nullopt;
      return times;
    }
    if (times.pipeline.size() + times.beside.size() != partners.size()) return std::nullopt;
    beside_ = true;
    StepTimes whole = times;
    whole.pipeline.clear();
    size_t action = 0, exchange = 0;
    for (const std::vector<PlannedStep>& partner : partners) {
      const bool is_action = partner.empty();
      if (is_action ? action == times.pipeline.size() : exchange == times.beside.size())
        return std::nullopt;
      if (is_action) {
        whole.pipeline.push_back(times.pipeline[action++]);
      } else {
        const int64_t time = times.beside[exchange++];
        whole.pipeline.push_back({time, /*calls=*/time});
      }
    }
    return whole;
  }

  double StepWith(const Step& step, const Changes& changes) const {
    double pipelines = 0;
    for (size_t number = 0; number < teams_[0].size(); ++number)
      pipelines = std::max(pipelines, PipelineWith(step, changes, number));
    return pipelines + TailWith(step, changes) + RestWith(step, changes);
  }

  double PipelineWith(const Step& step, const Changes& changes, size_t number) const {
    std::vector<StageTimes> times(stages_);
    for (int stage = 0; stage < stages_; ++stage) {
      const std::vector<int>& team = teams_[stage][number];
      for (const int rank : team) {
        const double idle = (1 - changes.work[rank]) * static_cast<double>(step[rank].head.own());
        times[stage].start =
            std::max(times[stage].start, static_cast<double>(step[rank].head.time) - idle);
      }
      for (size_t i = 0; i < partners_[stage].size(); ++i) {
        times[stage].steps.push_back(
            partners_[stage][i].empty()
                ? TogetherOf(team, changes,
                             [&](int rank) -> const PartTime& { return step[rank].pipeline[i]; })
                : MessageTime(step, number, stage, i) * changes.messages);
      }
    }
    const std::vector<double> ends = ReplayPlans(partners_, beside_ ? &awaited_ : nullptr, times);
    return *std::max_element(ends.begin(), ends.end());
  }

  // Returns the time of an exchange on the rank that came to it last.
  double MessageTime(const Step& step, size_t number, int stage, size_t exchange) const {
    int64_t least = INT64_MAX;
    const auto look = [&](int of, size_t i) {
      for (const int rank : teams_[of][number])
        least = std::min(least, step[rank].pipeline[i].time);
    };
    look(stage, exchange);
    for (const PlannedStep& partner : partners_[stage][exchange]) look(partner.stage, partner.step);
    return static_cast<double>(least);
  }

  double TailWith(const Step& step, const Changes& changes) const {
    int last = 0;
    for (int rank = 1; rank < world_; ++rank) {
      if (step[rank].tail.time < step[last].tail.time) last = rank;
    }
    const double reduction = static_cast<double>(step[last].reduction);
    return static_cast<double>(step[last].tail.time) - (1 - changes.reduction) * reduction;
  }

  double RestWith(const Step& step, const Changes& changes) const {
    double longest = 0;
    for (int rank = 0; rank < world_; ++rank) {
      // Ranks that share weights after the update end together.
      const std::vector<int> peers = input_.dense.PeersOf(rank, {Axis::kData, Axis::kContext});
      const auto part = [&](int peer) -> const PartTime& { return step[peer].rest; };
      const bool share = step[rank].rest.calls > 0;
      longest =
          std::max(longest, TogetherOf(share ? peers : std::vector<int>{rank}, changes, part));
    }
    return longest;
  }

  const WhatIfInput& input_;
  const int world_, stages_;
  const ExchangePartners partners_;
  const AwaitedExchanges awaited_;
  bool beside_ = false;  // exchanges ran beside actions
  std::vector<std::vector<std::vector<int>>> teams_;
  std::vector<Step> steps_;
};

// The own work of each rank, and the time of the calls within its team's passes: means over steps.
struct Loads {
  explicit Loads(const Replay& replay) : work(replay.world(), 0), calls(replay.world(), 0) {
    const auto count = static_cast<double>(replay.steps().size());
    for (const Step& step : replay.steps()) {
      for (int rank = 0; rank < replay.world(); ++rank)
        work[rank] += static_cast<double>(step[rank].work()) / count;
      for (int stage = 0; stage < replay.stages(); ++stage) {
        for (const std::vector<int>& team : replay.teams(stage)) {
          const double time = CallsOf(step, team, replay.partners(stage)) / count;
          for (const int rank : team) calls[rank] += time;
        }
      }
    }
  }

  // Returns the least time that a rank of the team has spent in calls within passes.
  static double CallsOf(const Step& step, const std::vector<int>& team,
                        const std::vector<std::vector<PlannedStep>>& partners) {
    int64_t least = INT64_MAX;
    for (const int rank : team) {
      int64_t calls = 0;
      for (size_t i = 0; i < partners.size(); ++i)
        calls += partners[i].empty() ? step[rank].pipeline[i].calls : 0;
      least = std::min(least, calls);
    }
    return static_cast<double>(least);
  }

  std::vector<double> work, calls;  // by rank
};

// The changes that ask what would be if, each with what it is about.
class Cases {
 public:
  explicit Cases(const Replay& replay) : replay_(replay), loads_(replay) {}

  std::optional<WhatIf::Case> SlowestRank() const {
    if (replay_.world() == 1) return std::nullopt;
    std::map<int, std::vector<double>> work;  // by stage
    for (int rank = 0; rank < replay_.world(); ++rank)
      work[replay_.StageOf(rank)].push_back(loads_.work[rank]);
    const bool alone = replay_.stages() == replay_.world();
    WhatIf::Case slowest;
    Changes changes = replay_.None();
    for (int rank = 0; rank < replay_.world(); ++rank) {
      const double median = LowerMedian(alone ? loads_.work : work[replay_.StageOf(rank)]);
      const double excess = median > 0 ? loads_.work[rank] / median - 1 : 0;
      if (!slowest.ranks.empty() && excess <= slowest.excess) continue;
      slowest.ranks = {rank};
      slowest.stage = replay_.StageOf(rank);
      slowest.excess = excess;
    }
    changes.work[slowest.ranks[0]] = 1 / (1 + slowest.excess);
    slowest.seconds = replay_.With(changes);
    return slowest;
  }

  std::optional<WhatIf::Case> SlowestStage() const {
    if (replay_.stages() == 1) return std::nullopt;
    std::vector<double> work(replay_.stages(), 0);
    for (int rank = 0; rank < replay_.world(); ++rank)
      work[replay_.StageOf(rank)] += loads_.work[rank];
    const double mean = Mean(work);
    const auto most = std::max_element(work.begin(), work.end());
    if (mean <= 0) return std::nullopt;
    WhatIf::Case slowest;
    slowest.stage = static_cast<int>(most - work.begin());
    slowest.excess = *most / mean - 1;
    Changes changes = replay_.None();
    for (int rank = 0; rank < replay_.world(); ++rank) {
      const int stage = replay_.StageOf(rank);
      if (work[stage] > 0) changes.work[rank] = mean / work[stage];
      if (stage == slowest.stage) slowest.ranks.push_back(rank);
    }
    slowest.seconds = replay_.With(changes);
    return slowest;
  }

  std::optional<WhatIf::Case> SlowestGroup() const {
    WhatIf::Case slowest;
    double factor = 1;
    for (int stage = 0; stage < replay_.stages(); ++stage) {
      std::vector<double> calls;
      for (const std::vector<int>& team : replay_.teams(stage))
        calls.push_back(loads_.calls[team.front()]);
      const double median = LowerMedian(calls);
      for (size_t i = 0; i < calls.size(); ++i) {
        if (median <= 0 || calls[i] / median - 1 <= slowest.excess) continue;
        slowest.excess = calls[i] / median - 1;
        slowest.ranks = replay_.teams(stage)[i];
        slowest.stage = stage;
        factor = median / calls[i];
      }
    }
    if (slowest.ranks.empty()) return std::nullopt;
    Changes changes = replay_.None();
    for (const int rank : slowest.ranks) changes.calls[rank] = factor;
    slowest.seconds = replay_.With(changes);
    return slowest;
  }

  WhatIf::Case WithoutCalls() const {
    Changes changes = replay_.None();
    changes.calls.assign(replay_.world(), 0);
    return {replay_.With(changes)};
  }
  WhatIf::Case WithoutMessages() const {
    Changes changes = replay_.None();
    changes.messages = 0;
    return {replay_.With(changes)};
  }
  WhatIf::Case WithoutReduction() const {
    Changes changes = replay_.None();
    changes.reduction = 0;
    return {replay_.With(changes)};
  }

 private:
  const Replay& replay_;
  const Loads loads_;
};

// Returns "rank 3 on gpu08", "ranks 4, 5".
std::string NameRanks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  constexpr size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
    absl::StrAppend(&text, i > 0 ? ", " : " ", ranks[i]);
  if (ranks.size() > kMost) absl::StrAppend(&text, ", ...");
  const auto first = static_cast<size_t>(ranks.front());
  if (ranks.size() == 1 && first < hosts.size()) absl::StrAppend(&text, " on ", hosts[first]);
  return text;
}

}  // namespace

std::optional<WhatIf> ComputeWhatIf(const WhatIfInput& input) {
  const int world = input.dense.world_size();
  if (world == 1 || static_cast<int>(input.steps.size()) != world) return std::nullopt;
  CHECK_EQ(static_cast<int>(input.plans.size()), input.dense.size(Axis::kPipeline));
  const Replay replay(input);
  if (replay.steps().empty()) return std::nullopt;
  WhatIf what_if;
  what_if.steps = static_cast<int64_t>(replay.steps().size());
  what_if.measured = replay.Measured();
  what_if.replayed = replay.With(replay.None());
  const Cases cases(replay);
  what_if.rank = cases.SlowestRank();
  what_if.stage = cases.SlowestStage();
  what_if.group = cases.SlowestGroup();
  what_if.calls = cases.WithoutCalls();
  what_if.messages = cases.WithoutMessages();
  what_if.reduction = cases.WithoutReduction();
  // The replay's own error is that of all cases alike.
  const double scale = what_if.measured / std::max(what_if.replayed, 1.0) * 1e-9;
  for (auto* each : {&what_if.rank, &what_if.stage, &what_if.group, &what_if.calls,
                     &what_if.messages, &what_if.reduction}) {
    if (each->has_value()) (*each)->seconds *= scale;
  }
  what_if.measured *= 1e-9;
  what_if.replayed *= 1e-9;
  return what_if;
}

std::vector<Saving> SavingsOf(const WhatIf& what_if, const std::vector<std::string>& hosts) {
  std::vector<Saving> savings;
  const auto add = [&](const std::optional<WhatIf::Case>& change, const std::string& condition) {
    if (!change || change->seconds > (1 - kLeastSaving) * what_if.measured) return;
    savings.push_back({change->seconds, absl::StrCat("if ", condition)});
  };
  const auto excess = [](const std::optional<WhatIf::Case>& change) {
    return absl::StrFormat(", +%.1f %%", change->excess * 100);
  };
  if (what_if.rank) {
    add(what_if.rank, absl::StrCat("the slowest rank worked like its peers: ",
                                   NameRanks(what_if.rank->ranks, hosts), excess(what_if.rank)));
  }
  if (what_if.stage) {
    add(what_if.stage, absl::StrCat("all stages had the same work: stage ", what_if.stage->stage,
                                    excess(what_if.stage)));
  }
  if (what_if.group) {
    add(what_if.group, absl::StrCat("the slowest group's calls within passes were like others': ",
                                    NameRanks(what_if.group->ranks, hosts), excess(what_if.group)));
  }
  add(what_if.calls, "calls within passes took no time");
  add(what_if.messages, "messages between stages took no time");
  add(what_if.reduction, "reducing gradients after the passes took no time");
  return savings;
}

std::string FormatWhatIf(const WhatIf& what_if, const std::vector<Saving>& savings) {
  std::string text =
      absl::StrFormat("# a step took %.4g s (mean of %d; %.4g s as replayed), and would take\n",
                      what_if.measured, what_if.steps, what_if.replayed);
  for (const Saving& saving : savings) {
    absl::StrAppendFormat(&text, "#  %8.4g s (%+.1f %%) %s\n", saving.seconds,
                          (saving.seconds / what_if.measured - 1) * 100, saving.condition);
  }
  if (savings.empty()) absl::StrAppend(&text, "#  as long without any slow rank, stage or group\n");
  return text;
}

}  // namespace megatron
