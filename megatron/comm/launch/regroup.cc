#include "megatron/comm/launch/regroup.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

constexpr char kNext[] = "regroup/next";
constexpr char kAttempt[] = "regroup/attempt";
constexpr char kOpened[] = "regroup/opened";  // the attempt that made the first world
constexpr absl::Duration kLook = absl::Milliseconds(10);
constexpr absl::Duration kGlance = absl::Milliseconds(250);
// A value that is there is read at once; one whose writer was lost never comes.
constexpr absl::Duration kReadTime = absl::Milliseconds(200);
constexpr char kMade[] = "made", kGivenUp[] = "given up";  // the verdicts on a world

// "0:7/1" is part 0 of 1 after 7 steps; "-" is nothing.
std::string EncodeKept(const std::vector<KeptPart>& kept) {
  if (kept.empty()) return "-";
  return absl::StrJoin(kept, ",", [](std::string* text, const KeptPart& part) {
    absl::StrAppend(text, part.part, ":", part.iteration, "/", part.parts);
  });
}

std::optional<std::vector<KeptPart>> DecodeKept(absl::string_view text) {
  std::vector<KeptPart> kept;
  if (text == "-") return kept;
  for (absl::string_view one : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> numbers = absl::StrSplit(one, absl::ByAnyChar(":/"));
    KeptPart part;
    if (numbers.size() != 3 || !absl::SimpleAtoi(numbers[0], &part.part) ||
        !absl::SimpleAtoi(numbers[1], &part.iteration) ||
        !absl::SimpleAtoi(numbers[2], &part.parts) || part.part < 0 || part.part >= part.parts ||
        part.iteration < 0)
      return std::nullopt;
    kept.push_back(part);
  }
  return kept;
}

std::string EncodeComer(const Comer& comer) {
  return absl::StrCat(comer.place, " ", comer.rank, " ", EncodeKept(comer.kept), " ", comer.host);
}

std::optional<Comer> DecodeComer(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  Comer comer;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &comer.place) ||
      !absl::SimpleAtoi(parts[1], &comer.rank))
    return std::nullopt;
  std::optional<std::vector<KeptPart>> kept = DecodeKept(parts[2]);
  if (!kept.has_value()) return std::nullopt;
  comer.kept = *std::move(kept);
  comer.host = parts[3];
  return comer;
}

RegroupPlan End(std::string reason) {
  RegroupPlan plan;
  plan.ends = true;
  plan.reason = std::move(reason);
  return plan;
}

// The index of a comer for each position of a model.
using Replica = std::vector<int>;

// The comers of a world, sorted by what they had there.
struct Before {
  std::vector<Replica> whole;
  std::vector<int> others;     // those that are in none of them
  std::vector<int> positions;  // each comer's place in a replica; -1: it had none
  std::vector<int> lost;       // ranks that have not come
};

Before Sort(const std::vector<Comer>& comers, const std::vector<std::vector<int>>& copies) {
  const size_t data_size = copies[0].size();
  std::vector<Replica> replicas(data_size, Replica(copies.size(), -1));
  Before before;
  before.positions.assign(comers.size(), -1);
  std::map<int, int> comer_of;  // by rank
  for (size_t i = 0; i < comers.size(); ++i) {
    if (comers[i].rank >= 0) comer_of[comers[i].rank] = static_cast<int>(i);
  }
  for (size_t position = 0; position < copies.size(); ++position) {
    for (size_t replica = 0; replica < data_size; ++replica) {
      const int rank = copies[position][replica];
      const auto found = comer_of.find(rank);
      if (found == comer_of.end()) {
        before.lost.push_back(rank);
        continue;
      }
      replicas[replica][position] = found->second;
      before.positions[found->second] = static_cast<int>(position);
    }
  }
  std::vector<bool> is_in(comers.size());
  for (Replica& replica : replicas) {
    if (absl::c_linear_search(replica, -1)) continue;
    for (int comer : replica) is_in[comer] = true;
    before.whole.push_back(std::move(replica));
  }
  for (size_t i = 0; i < comers.size(); ++i) {
    // A spare that was lost meanwhile has been started again.
    const bool came_again =
        absl::c_any_of(absl::MakeSpan(comers).subspan(i + 1),
                       [&](const Comer& later) { return later.place == comers[i].place; });
    if (!is_in[i] && comers[i].place >= 0 && !came_again)
      before.others.push_back(static_cast<int>(i));
  }
  absl::c_sort(before.lost);
  return before;
}

// Takes replicas from those that came: whole ones first.
std::vector<Replica> Take(size_t data_size, size_t positions, Before before) {
  std::vector<Replica> taken = std::move(before.whole);
  taken.resize(std::min(taken.size(), data_size));
  const size_t whole = taken.size();
  taken.resize(data_size, Replica(positions, -1));
  std::vector<int>& others = before.others;
  for (const bool in_its_place : {true, false}) {
    for (size_t replica = whole; replica < data_size; ++replica) {
      for (size_t position = 0; position < positions; ++position) {
        int& comer = taken[replica][position];
        if (comer >= 0) continue;
        const auto found = absl::c_find_if(others, [&](int other) {
          return !in_its_place || before.positions[other] == static_cast<int>(position);
        });
        if (found == others.end()) continue;
        comer = *found;
        others.erase(found);
      }
    }
  }
  return taken;
}

// Returns whether for each position ranks have all parts of its state after so many steps.
bool Covers(const std::vector<Replica>& replicas, const std::vector<Comer>& comers,
            const std::vector<int>& positions, int64_t iteration, int parts) {
  for (size_t position = 0; position < replicas[0].size(); ++position) {
    std::set<int> found;
    for (const Replica& replica : replicas) {
      const int comer = replica[position];
      if (positions[comer] != static_cast<int>(position)) continue;
      for (const KeptPart& kept : comers[comer].kept) {
        if (kept.iteration == iteration && kept.parts == parts) found.insert(kept.part);
      }
    }
    if (static_cast<int>(found.size()) < parts) return false;
  }
  return true;
}

// Finds the steps after which the replicas can go on from memory. Ranks differ by a step where some
// had updated their weights when others found that a rank was lost. Then the step is made again, if
// it can be: of the iterations to which all have come the last one counts.
void FindInMemory(const std::vector<Replica>& replicas, const std::vector<Comer>& comers,
                  const std::vector<int>& positions, RegroupPlan* plan) {
  std::set<std::pair<int64_t, int>> there;  // iterations, and the number of parts
  int64_t all_have_made = std::numeric_limits<int64_t>::max();
  for (const Replica& replica : replicas) {
    for (int comer : replica) {
      int64_t newest = -1;
      for (const KeptPart& kept : comers[comer].kept) {
        there.emplace(kept.iteration, kept.parts);
        newest = std::max(newest, kept.iteration);
      }
      if (newest >= 0) all_have_made = std::min(all_have_made, newest);
    }
  }
  for (const auto& [iteration, parts] : there) {
    if (iteration > all_have_made && plan->iteration >= 0) return;
    if (!Covers(replicas, comers, positions, iteration, parts)) continue;
    plan->iteration = iteration;
    plan->parts = parts;
  }
}

bool AreAllSpares(const std::vector<Comer>& comers, int processes) {
  std::set<int> places;
  for (const Comer& comer : comers) {
    if (comer.rank >= 0) return false;
    if (comer.place >= 0) places.insert(comer.place);
  }
  return static_cast<int>(places.size()) == processes;
}

std::string Describe(const std::vector<int>& lost, size_t joined) {
  std::string text;
  if (!lost.empty())
    text = absl::StrCat("without rank", lost.size() == 1 ? " " : "s ", absl::StrJoin(lost, ", "));
  if (joined > 0) {
    absl::StrAppend(&text, text.empty() ? "with " : ", with ", joined,
                    joined == 1 ? " process that has come" : " processes that have come");
  }
  return text;
}

}  // namespace

int RegroupPlan::RankOf(int comer) const {
  const auto found = absl::c_find_if(ranks, [&](const Rank& rank) { return rank.comer == comer; });
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

std::string EncodeRegroupPlan(const RegroupPlan& plan) {
  std::string text = absl::StrCat(plan.is_done ? "done" : (plan.ends ? "end" : "go"), " ",
                                  plan.iteration, " ", plan.parts, " ", plan.data_size, "\n",
                                  absl::StrReplaceAll(plan.reason, {{"\n", " "}}));
  for (const RegroupPlan::Rank& rank : plan.ranks)
    absl::StrAppend(&text, "\n", rank.comer, " ", rank.place, " ", rank.has_come ? 1 : 0, " ",
                    rank.host);
  return text;
}

absl::StatusOr<RegroupPlan> DecodeRegroupPlan(absl::string_view text) {
  const absl::Status garbage = absl::InvalidArgumentError("the plan of a rendezvous is no plan");
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::vector<std::string> head = absl::StrSplit(lines[0], ' ');
  RegroupPlan plan;
  plan.is_done = head[0] == "done";
  plan.ends = plan.is_done || head[0] == "end";
  if (lines.size() < 2 || head.size() != 4 || (!plan.ends && head[0] != "go") ||
      !absl::SimpleAtoi(head[1], &plan.iteration) || !absl::SimpleAtoi(head[2], &plan.parts) ||
      !absl::SimpleAtoi(head[3], &plan.data_size) || plan.parts < 1)
    return garbage;
  plan.reason = lines[1];
  for (size_t i = 2; i < lines.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(lines[i], absl::MaxSplits(' ', 3));
    RegroupPlan::Rank rank;
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &rank.comer) ||
        !absl::SimpleAtoi(parts[1], &rank.place) || (parts[2] != "0" && parts[2] != "1"))
      return garbage;
    rank.has_come = parts[2] == "1";
    rank.host = parts[3];
    plan.ranks.push_back(std::move(rank));
  }
  const bool is_whole = plan.ends ? plan.ranks.empty()
                                  : plan.data_size > 0 && plan.ranks.size() > 1 &&
                                        plan.ranks.size() % plan.data_size == 0;
  if (!is_whole) return garbage;
  return plan;
}

RegroupPlan PlanRegroup(const std::vector<Comer>& comers, const RegroupRules& rules) {
  ParallelSizes sizes = rules.sizes;
  sizes.hosts = 1;
  int positions = 1;
  for (int size : {sizes.tensor, sizes.context, sizes.pipeline}) positions *= size;
  const absl::StatusOr<RankGrid> world = RankGrid::Create(sizes, positions * sizes.data);
  CHECK(world.ok()) << world.status();
  Before before = Sort(comers, world->Partition({Axis::kData}));
  const std::vector<int> had = before.positions, lost = before.lost;
  const int processes =
      static_cast<int>(before.whole.size()) * positions + static_cast<int>(before.others.size());

  absl::StatusOr<RankGrid> next = absl::NotFoundError("");
  sizes.data = std::min(rules.most_data_size, processes / positions);
  for (; sizes.data >= rules.least_data_size; --sizes.data) {
    if (sizes.data * positions < 2 || !rules.fits(sizes.data)) continue;
    next = RankGrid::Create(sizes, positions * sizes.data);
    if (next.ok()) break;
  }
  if (!next.ok()) {
    const std::string who = processes == 1 ? "process that is" : "processes that are";
    return End(
        absl::StrCat("the ", processes, " ", who, " left cannot go on ", Describe(lost, 0),
                     ": at least two ranks are needed, with all parts of the model, that can "
                     "share the global batch; with parallel.restarts the run is started again "
                     "from its newest checkpoint"));
  }
  const std::vector<Replica> replicas =
      Take(static_cast<size_t>(sizes.data), static_cast<size_t>(positions), std::move(before));
  RegroupPlan plan;
  plan.data_size = sizes.data;
  FindInMemory(replicas, comers, had, &plan);
  if (plan.iteration < 0 && !rules.from_checkpoint) {
    return End(absl::StrCat("no memory has all of the state ", Describe(lost, 0),
                            ", and checkpoint.save is not set"));
  }
  plan.ranks.resize(static_cast<size_t>(next->world_size()));
  const std::vector<std::vector<int>> copies = next->Partition({Axis::kData});
  size_t joined = 0;
  for (size_t position = 0; position < copies.size(); ++position) {
    for (size_t replica = 0; replica < replicas.size(); ++replica) {
      const int comer = replicas[replica][position];
      const Comer& who = comers[comer];
      const bool has_come = who.rank < 0;
      plan.ranks[copies[position][replica]] = {comer + 1, who.place, who.host, has_come};
      if (has_come) ++joined;
    }
  }
  plan.reason = Describe(lost, joined);
  return plan;
}

std::string Regroup::Key(int number, absl::string_view what) {
  return absl::StrCat("regroup/", number, "/", what);
}

absl::Status Regroup::BeginAttempt() { return store_.Add(kAttempt, 1).status(); }

absl::StatusOr<int64_t> Regroup::NewestAttempt() { return store_.Add(kAttempt, 0); }

absl::StatusOr<bool> Regroup::IsOver(int64_t attempt) {
  MEGATRON_ASSIGN_OR_RETURN(const int64_t newest, NewestAttempt());
  if (newest != attempt) return true;
  MEGATRON_ASSIGN_OR_RETURN(const bool is_open, IsOpen());
  if (!is_open) return false;
  const absl::StatusOr<std::string> opened = store_.Get(kOpened, kReadTime);
  // Ranks that lost the one that should have opened have met without it.
  if (absl::IsDeadlineExceeded(opened.status())) return true;
  MEGATRON_RETURN_IF_ERROR(opened.status());
  return *opened != absl::StrCat(attempt);
}

absl::Status Regroup::Open(int64_t attempt) {
  MEGATRON_RETURN_IF_ERROR(store_.Set(kOpened, absl::StrCat(attempt)));
  return store_.Set(kNext, "1");
}

absl::StatusOr<bool> Regroup::IsOpen() {
  const absl::StatusOr<std::string> next = store_.Get(kNext, kReadTime);
  if (absl::IsDeadlineExceeded(next.status())) return false;
  MEGATRON_RETURN_IF_ERROR(next.status());
  if (!absl::SimpleAtoi(*next, &next_)) return absl::InvalidArgumentError(kNext);
  return true;
}

absl::StatusOr<int64_t> Regroup::CountStarts(int place) {
  return store_.Add(absl::StrCat("regroup/starts/", place), 1);
}

absl::StatusOr<int64_t> Regroup::CountWaiting() {
  // One that has not said yet who it is counts the next time: a step waits for this.
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Comer> comers,
                            ReadComers(next_, absl::ZeroDuration()));
  return absl::c_count_if(comers, [](const Comer& comer) { return comer.place >= 0; });
}

absl::Status Regroup::Decide(absl::string_view verdict) {
  MEGATRON_ASSIGN_OR_RETURN(const int64_t decisions, store_.Add(Key(number(), "decisions"), 1));
  if (decisions > 1) return absl::OkStatus();
  return store_.Set(Key(number(), "verdict"), verdict);
}

absl::StatusOr<std::optional<std::string>> Regroup::ReadVerdict(absl::Duration timeout) {
  absl::StatusOr<std::string> verdict = store_.Get(Key(number(), "verdict"), timeout);
  if (absl::IsDeadlineExceeded(verdict.status())) return std::nullopt;
  MEGATRON_RETURN_IF_ERROR(verdict.status());
  return std::make_optional(*std::move(verdict));
}

absl::Status Regroup::GiveUp() { return Decide(kGivenUp); }

absl::StatusOr<bool> Regroup::GiveUpUnlessMade() {
  MEGATRON_RETURN_IF_ERROR(GiveUp());
  // A process that is lost as it decides leaves no verdict: then nobody keeps the world.
  MEGATRON_ASSIGN_OR_RETURN(const std::optional<std::string> verdict, ReadVerdict(patience_));
  return verdict != kMade;
}

absl::StatusOr<bool> Regroup::IsGivenUp(const RegroupPlan& plan) {
  MEGATRON_ASSIGN_OR_RETURN(const std::optional<std::string> verdict,
                            ReadVerdict(absl::ZeroDuration()));
  if (verdict.has_value()) return *verdict == kGivenUp;
  // Each process looks after one other, so that the store has few questions to answer.
  const int next = (plan.RankOf(comer_) + 1) % static_cast<int>(plan.ranks.size());
  MEGATRON_ASSIGN_OR_RETURN(
      const std::string text,
      store_.Get(Key(number(), absl::StrCat("comer/", plan.ranks[next].comer)), kReadTime));
  if (DecodeComer(text).has_value()) return false;
  return GiveUpUnlessMade();
}

absl::StatusOr<bool> Regroup::Agree(const RegroupPlan& plan, absl::FunctionRef<bool()> holds) {
  MEGATRON_ASSIGN_OR_RETURN(const int64_t made, store_.Add(Key(number(), "made"), 1));
  if (made == static_cast<int64_t>(plan.ranks.size())) {
    MEGATRON_RETURN_IF_ERROR(Decide(kMade));
  }
  const absl::Time deadline = SteadyNow() + patience_;
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(const std::optional<std::string> verdict, ReadVerdict(kGlance));
    if (verdict.has_value()) return *verdict == kMade;
    const bool waits = holds() && SteadyNow() < deadline;
    MEGATRON_ASSIGN_OR_RETURN(const bool is_given_up, waits ? IsGivenUp(plan) : GiveUpUnlessMade());
    if (is_given_up) return false;
  }
}

absl::Status Regroup::End(absl::string_view reason) {
  RegroupPlan plan = megatron::End(std::string(reason));
  plan.is_done = true;
  return store_.Set(Key(next_, "plan"), EncodeRegroupPlan(plan));
}

absl::Status Regroup::Come(const Comer& me) {
  MEGATRON_ASSIGN_OR_RETURN(const int64_t comer, store_.Add(Key(next_, "comers"), 1));
  comer_ = static_cast<int>(comer);
  came_to_ = next_;
  return store_.Hold(Key(next_, absl::StrCat("comer/", comer)), EncodeComer(me));
}

// One that was lost between its two messages leaves a gap.
absl::StatusOr<std::vector<Comer>> Regroup::ReadComers(int number, absl::Duration patience) {
  MEGATRON_ASSIGN_OR_RETURN(const int64_t count, store_.Add(Key(number, "comers"), 0));
  std::vector<Comer> comers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const absl::StatusOr<std::string> text =
        store_.Get(Key(number, absl::StrCat("comer/", i + 1)), patience);
    if (absl::IsDeadlineExceeded(text.status())) continue;
    MEGATRON_RETURN_IF_ERROR(text.status());
    if (const std::optional<Comer> comer = DecodeComer(*text)) comers[i] = *comer;
  }
  return comers;
}

absl::StatusOr<std::vector<Comer>> Regroup::AwaitMembers(
    absl::FunctionRef<std::vector<int>()> live) {
  const absl::Time deadline = SteadyNow() + patience_;
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(std::vector<Comer> comers, ReadComers(next_, kReadTime));
    const std::vector<int> alive = live();
    const bool all_are_here = absl::c_all_of(alive, [&](int rank) {
      return absl::c_any_of(comers, [&](const Comer& comer) { return comer.rank == rank; });
    });
    if (all_are_here || SteadyNow() >= deadline) return comers;
    absl::SleepFor(kLook);
  }
}

absl::StatusOr<std::optional<RegroupPlan>> Regroup::ReadPlan(int number, absl::Duration timeout) {
  const absl::StatusOr<std::string> text = store_.Get(Key(number, "plan"), timeout);
  if (absl::IsDeadlineExceeded(text.status())) return std::nullopt;
  MEGATRON_RETURN_IF_ERROR(text.status());
  MEGATRON_ASSIGN_OR_RETURN(RegroupPlan plan, DecodeRegroupPlan(*text));
  return std::make_optional(std::move(plan));
}

absl::StatusOr<RegroupPlan> Regroup::MeetAsMember(
    const Comer& me, absl::FunctionRef<std::vector<int>()> live,
    absl::FunctionRef<RegroupPlan(const std::vector<Comer>&)> decide) {
  MEGATRON_RETURN_IF_ERROR(Come(me));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t members, store_.Add(Key(next_, "members"), 1));
  leads_ = members == 1;
  const int number = next_;
  if (leads_) {
    MEGATRON_RETURN_IF_ERROR(store_.Set(Key(number, "leader"), absl::StrCat(me.rank)));
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<Comer> comers, AwaitMembers(live));
    const RegroupPlan plan = decide(comers);
    MEGATRON_RETURN_IF_ERROR(store_.Set(Key(number, "plan"), EncodeRegroupPlan(plan)));
    ++next_;
    // Processes that come after an end find it at this rendezvous.
    MEGATRON_RETURN_IF_ERROR(store_.Set(kNext, absl::StrCat(plan.ends ? number : next_)));
    return plan;
  }
  ++next_;
  const absl::Time deadline = SteadyNow() + 2 * patience_;
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(std::optional<RegroupPlan> plan, ReadPlan(number, kGlance));
    if (plan.has_value()) return *std::move(plan);
    const absl::StatusOr<std::string> text = store_.Get(Key(number, "leader"), kReadTime);
    int leader = -1;
    const bool is_lost =
        text.ok() && absl::SimpleAtoi(*text, &leader) && !absl::c_linear_search(live(), leader);
    if (!is_lost && SteadyNow() < deadline) continue;
    // It may have written the plan before it was lost.
    MEGATRON_ASSIGN_OR_RETURN(plan, ReadPlan(number, kReadTime));
    if (plan.has_value()) return *std::move(plan);
    return absl::AbortedError(absl::StrCat("rank ", leader, " was lost while ranks regrouped"));
  }
}

absl::StatusOr<RegroupPlan> Regroup::MeetAsSpare(const Comer& me, int processes,
                                                 absl::FunctionRef<bool()> stop) {
  leads_ = false;
  while (!stop()) {
    if (came_to_ < next_) {
      MEGATRON_RETURN_IF_ERROR(Come(me));
    }
    MEGATRON_ASSIGN_OR_RETURN(std::optional<RegroupPlan> plan, ReadPlan(next_, kGlance));
    if (plan.has_value()) {
      ++next_;
      if (plan->ends || plan->RankOf(comer_) >= 0) return *std::move(plan);
      continue;
    }
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<Comer> comers, ReadComers(next_, kReadTime));
    if (AreAllSpares(comers, processes)) {
      return absl::UnavailableError(
          "the last ranks of the run were lost before others had taken their places");
    }
    // A rendezvous whose leader was lost has no plan.
    const int before = next_;
    MEGATRON_RETURN_IF_ERROR(IsOpen().status());
    next_ = std::max(before, next_);
  }
  // Nobody may wait for a process that has come and leaves.
  if (came_to_ == next_) store_.Set(Key(next_, absl::StrCat("comer/", comer_)), "").IgnoreError();
  return absl::CancelledError("asked to stop");
}

}  // namespace megatron
