#include "megatron/train/metrics/rank_times.h"

#include <unistd.h>

#include <numeric>
#include <type_traits>

#include "absl/strings/match.h"
#include "megatron/comm/collective.h"

namespace megatron {
namespace {

static_assert(std::is_trivially_copyable_v<RankTimes>);

template <typename Array>
void Subtract(const Array& less, Array* from) {
  for (size_t i = 0; i < less.size(); ++i) (*from)[i] -= less[i];
}

}  // namespace

int64_t RankTimes::total() const {
  return std::accumulate(by_category.begin(), by_category.end(), int64_t{0});
}

int64_t RankTimes::communication() const {
  int64_t sum = 0;
  for (int i = 0; i < kNumTimeCategories; ++i) {
    if (IsCommunication(static_cast<TimeCategory>(i))) sum += by_category[i];
  }
  return sum;
}

int64_t RankTimes::work() const {
  const RankTimes& times = *this;
  return times[TimeCategory::kCompute] + times[TimeCategory::kOptimizer] +
         times[TimeCategory::kData] + times[TimeCategory::kOther];
}

RankTimesMeter::RankTimesMeter(Trace* trace, const Place& place)
    : trace_(trace), place_(place), last_(SinceTheStart()) {}

RankTimes RankTimesMeter::SinceTheStart() const {
  const std::vector<StreamTimes> streams = trace_->Times();
  RankTimes times;
  if (streams.empty()) return times;
  const StreamTimes& compute = streams.front();
  times.by_category = compute.by_category;
  const auto move_to_bubble = [&](TimeCategory from, int64_t waiting) {
    times.by_category[static_cast<int>(from)] -= waiting;
    times.by_category[static_cast<int>(TimeCategory::kBubble)] += waiting;
  };
  for (const SpanTotal& span : compute.spans) {
    const int timer = TimerOfSpan(span.name);
    if (timer >= 0 && span.group.empty()) times.timers[timer] += span.nanoseconds;
    // The last stage broadcasts a few numbers, for which the others wait, always.
    const bool is_broadcast = span.name == Name(Collective::kBroadcast);
    if (absl::StartsWith(span.group, "pp-"))
      move_to_bubble(TimeCategory::kPipelineParallel,
                     is_broadcast ? span.nanoseconds : span.waiting);
    if (place_.stages > 1 && span.group == "world")
      move_to_bubble(TimeCategory::kWorld, span.waiting);
  }
  times.timers[kSaveTimer] = times[TimeCategory::kCheckpoint];
  for (size_t i = 1; i < streams.size(); ++i) {
    RankTimes beside;
    beside.by_category = streams[i].by_category;
    times.hidden += beside.communication();
  }
  return times;
}

RankTimes RankTimesMeter::Take() {
  const RankTimes now = SinceTheStart();
  RankTimes times = now;
  Subtract(last_.by_category, &times.by_category);
  Subtract(last_.timers, &times.timers);
  times.hidden -= last_.hidden;
  times.stage = place_.stage;
  gethostname(times.host.data(), times.host.size() - 1);
  last_ = now;
  return times;
}

std::vector<RankTimes> GatherRankTimes(const RankTimes& mine, const ProcessGroup& world) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(RankTimes));
  std::vector<RankTimes> all(world.size());
  RankTimes sent = mine;
  world.AllGather(Tensor(&sent, DType::kUInt8, {kBytes}),
                  Tensor(all.data(), DType::kUInt8, {kBytes * world.size()}), Stream::Inline());
  if (!world.status().ok()) return {mine};
  return all;
}

}  // namespace megatron
