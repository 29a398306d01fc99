#include "megatron/train/metrics/rank_times.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "absl/strings/match.h"
#include "megatron/base/host_name.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/overlap/async_group.h"

namespace megatron {
namespace {

static_assert(std::is_trivially_copyable_v<RankTimes>);

void MoveToBubble(TimeCategory from, int64_t waiting, RankTimes* times) {
  times->by_category[static_cast<int>(from)] -= waiting;
  times->by_category[static_cast<int>(TimeCategory::kBubble)] += waiting;
}

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

RankTimesMeter::Sums RankTimesMeter::SinceTheStart() const {
  const std::vector<StreamTimes> streams = trace_->Times();
  Sums sums;
  RankTimes& times = sums.times;
  if (streams.empty()) return sums;
  const StreamTimes& compute = streams.front();
  times.by_category = compute.by_category;
  for (const SpanTotal& span : compute.spans) {
    // The last stage broadcasts a few numbers, for which the others wait, always.
    const bool is_broadcast = span.name == Name(Collective::kBroadcast);
    if (absl::StartsWith(span.group, "pp-"))
      MoveToBubble(TimeCategory::kPipelineParallel, is_broadcast ? span.nanoseconds : span.waiting,
                   &times);
    if (place_.stages > 1 && span.group == "world")
      MoveToBubble(TimeCategory::kWorld, span.waiting, &times);
    if (span.name == kWaitForStages) sums.stages_waited += span.nanoseconds;
    if (span.name == kWaitForStages || span.name == kWaitForLane) sums.waited += span.nanoseconds;
  }
  for (size_t i = 1; i < streams.size(); ++i) {
    RankTimes beside;
    beside.by_category = streams[i].by_category;
    sums.beside += beside.communication();
    for (const SpanTotal& span : streams[i].spans) {
      if (absl::StartsWith(span.group, "pp-"))
        sums.stages_beside += span.nanoseconds - span.waiting;
    }
  }
  // Messages have their timers on whatever stream they move.
  for (const StreamTimes& stream : streams) {
    for (const SpanTotal& span : stream.spans) {
      const int timer = TimerOfSpan(span.name);
      if (timer >= 0 && span.group.empty()) times.timers[timer] += span.nanoseconds;
    }
  }
  times.timers[kSaveTimer] = times[TimeCategory::kCheckpoint];
  return sums;
}

RankTimes RankTimesMeter::Take() {
  const Sums now = SinceTheStart();
  RankTimes times = now.times;
  Subtract(last_.times.by_category, &times.by_category);
  Subtract(last_.times.timers, &times.timers);
  const auto since = [&](int64_t Sums::*sum) { return now.*sum - last_.*sum; };
  times.hidden = std::max<int64_t>(since(&Sums::beside) - since(&Sums::waited), 0);
  const int64_t waiting = since(&Sums::stages_waited) - since(&Sums::stages_beside);
  MoveToBubble(TimeCategory::kPipelineParallel, std::max<int64_t>(waiting, 0), &times);
  times.stage = place_.stage;
  HostName().copy(times.host.data(), times.host.size() - 1);
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
