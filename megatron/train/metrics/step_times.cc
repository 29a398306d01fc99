#include "megatron/train/metrics/step_times.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/overlap/async_group.h"

namespace megatron {
namespace {

constexpr int64_t kMostGatheredBytes = 32 << 20;
// The name that WithAsyncCalls gives to the stream of the pipeline's exchanges.
constexpr char kPipelineLane[] = "communication pp";

// The span's moments by the clock of where its work is done.
struct Interval {
  int64_t begin = 0, end = 0;
};

Interval IntervalOf(const TracedStream& stream, const TracedSpan& span) {
  return stream.has_device_times ? Interval{span.device_begin, span.device_end}
                                 : Interval{span.begin, span.end};
}

bool IsWaitForStages(const TracedSpan& span) { return span.name == kWaitForStages; }

bool IsCall(const TracedSpan& span) {
  for (const auto& [key, text] : span.texts) {
    if (absl::string_view(key) == "group") return true;
  }
  // A pass may wait for calls that run beside it.
  return span.name == kWaitForLane;
}

// Returns the times of the exchanges that ran beside the stage's actions.
std::vector<int64_t> ExchangesBeside(const std::vector<TracedStream>& streams) {
  std::vector<int64_t> times;
  for (size_t i = 1; i < streams.size(); ++i) {
    if (streams[i].name != kPipelineLane) continue;
    for (const TracedSpan& span : streams[i].spans) {
      if (IsCall(span)) continue;
      const Interval interval = IntervalOf(streams[i], span);
      times.push_back(interval.end - interval.begin);
    }
  }
  return times;
}

// The moments of a step at which one part ends and the next begins.
class Parts {
 public:
  // Finds the step's parts among the spans of the stream.
  explicit Parts(const TracedStream& stream) : stream_(stream) {
    for (const TracedSpan& span : stream.spans) {
      const Interval interval = IntervalOf(stream, span);
      if (!step_ && absl::StartsWith(span.name, "step ")) step_ = interval;
      if (!pipeline_ && span.name == "forward-backward") {
        pipeline_ = interval;
        ends_.push_back(interval.begin);
        continue;
      }
      if (!norm_ && span.name == "gradient norm") norm_ = interval;
      if (!reduction_ && span.name == "reduce gradients") reduction_ = interval;
      const bool in_pipeline = pipeline_ && interval.end <= pipeline_->end;
      const bool is_part = !IsCall(span) && !IsWaitForStages(span);
      if (in_pipeline && is_part && interval.begin >= ends_.back()) ends_.push_back(interval.end);
    }
  }

  bool complete() const { return step_ && pipeline_ && norm_ && ends_.size() > 1; }

  StepTimes Times() {
    ends_.push_back(norm_->end);
    ends_.push_back(step_->end);
    std::vector<PartTime> parts(ends_.size());
    int64_t last = step_->begin;
    for (size_t i = 0; i < ends_.size(); ++i) {
      parts[i].time = ends_[i] - last;
      last = ends_[i];
    }
    StepTimes times;
    times.total = step_->end - step_->begin;
    AddCalls(&parts, &times.reduction);
    times.head = parts.front();
    times.rest = parts.back();
    times.tail = parts[parts.size() - 2];
    times.pipeline.assign(parts.begin() + 1, parts.end() - 2);
    return times;
  }

 private:
  // A call that lies within a wait counts once. Waits for other stages are taken out.
  void AddCalls(std::vector<PartTime>* parts, int64_t* reduction) const {
    size_t part = 0;
    int64_t last = step_->begin;
    for (const TracedSpan& span : stream_.spans) {
      const bool waits = IsWaitForStages(span);
      const Interval call = IntervalOf(stream_, span);
      if ((!IsCall(span) && !waits) || call.begin < last || call.end > step_->end) continue;
      last = call.end;
      while (call.begin >= ends_[part] && part + 1 < ends_.size()) ++part;
      if (waits) {
        (*parts)[part].time -= call.end - call.begin;
        continue;
      }
      (*parts)[part].calls += call.end - call.begin;
      if (reduction_ && call.begin >= reduction_->begin && call.end <= reduction_->end)
        *reduction += call.end - call.begin;
    }
  }

  const TracedStream& stream_;
  std::optional<Interval> step_, pipeline_, norm_, reduction_;
  // The end of each part: of the head, of each part of the pipeline, of the tail and of the rest.
  std::vector<int64_t> ends_;
};

// The numbers that ranks send each other: head, tail, rest, the reduction, the total, the pipeline
// and what runs beside it.
constexpr size_t kFixedNumbers = 8;

// The longest lists of any step of any rank.
struct Lengths {
  int64_t pipeline = 0, beside = 0;

  size_t numbers_of_step() const {
    return kFixedNumbers + 2 * static_cast<size_t>(pipeline) + static_cast<size_t>(beside);
  }
};

void Append(const StepTimes& step, const Lengths& lengths, std::vector<int64_t>* numbers) {
  for (const PartTime& part : {step.head, step.tail, step.rest})
    numbers->insert(numbers->end(), {part.time, part.calls});
  numbers->insert(numbers->end(), {step.reduction, step.total});
  for (size_t i = 0; i < static_cast<size_t>(lengths.pipeline); ++i) {
    const PartTime none = {-1, 0};
    const PartTime& part = i < step.pipeline.size() ? step.pipeline[i] : none;
    numbers->insert(numbers->end(), {part.time, part.calls});
  }
  for (size_t i = 0; i < static_cast<size_t>(lengths.beside); ++i)
    numbers->push_back(i < step.beside.size() ? step.beside[i] : -1);
}

StepTimes ParseStep(const int64_t* numbers, const Lengths& lengths) {
  StepTimes step;
  for (PartTime* part : {&step.head, &step.tail, &step.rest}) {
    part->time = *numbers++;
    part->calls = *numbers++;
  }
  step.reduction = *numbers++;
  step.total = *numbers++;
  for (int64_t i = 0; i < lengths.pipeline; ++i, numbers += 2) {
    if (numbers[0] >= 0) step.pipeline.push_back({numbers[0], numbers[1]});
  }
  for (int64_t i = 0; i < lengths.beside; ++i, ++numbers) {
    if (*numbers >= 0) step.beside.push_back(*numbers);
  }
  return step;
}

}  // namespace

int64_t StepTimes::work() const {
  int64_t sum = head.own() + tail.own() + rest.own();
  for (const PartTime& part : pipeline) sum += part.own();
  return sum;
}

std::optional<StepTimes> ReadStepTimes(const std::vector<TracedStream>& streams) {
  if (streams.empty()) return std::nullopt;
  Parts parts(streams.front());
  if (!parts.complete()) return std::nullopt;
  StepTimes times = parts.Times();
  times.beside = ExchangesBeside(streams);
  return times;
}

void StepSampler::Begin() {
  recording_ = steps_ > 0 && steps_ % distance_ == 0;
  ++steps_;
  if (recording_) trace_->Start();
}

void StepSampler::End() {
  if (!std::exchange(recording_, false)) return;
  samples_.push_back(ReadStepTimes(trace_->Stop()).value_or(StepTimes()));
  if (samples_.size() < most_) return;
  // The second, the fourth and so on are those of the doubled distance.
  std::vector<StepTimes> kept;
  for (size_t i = 1; i < samples_.size(); i += 2) kept.push_back(std::move(samples_[i]));
  samples_ = std::move(kept);
  distance_ *= 2;
}

std::vector<std::vector<StepTimes>> GatherStepTimes(const std::vector<StepTimes>& mine,
                                                    const ProcessGroup& world) {
  const Stream stream = Stream::Inline();
  Lengths longest;
  for (const StepTimes& step : mine) {
    longest.pipeline = std::max(longest.pipeline, static_cast<int64_t>(step.pipeline.size()));
    longest.beside = std::max(longest.beside, static_cast<int64_t>(step.beside.size()));
  }
  world.AllReduce(Tensor(&longest, DType::kInt64, {2}), ReduceOp::kMax, stream);
  if (!world.status().ok() || longest.pipeline == 0) return {mine};
  const size_t numbers_of_step = longest.numbers_of_step();
  const size_t bytes_of_step = numbers_of_step * sizeof(int64_t) * world.size();
  const size_t steps =
      std::min(mine.size(), std::max<size_t>(kMostGatheredBytes / bytes_of_step, 1));
  std::vector<int64_t> sent, all(steps * numbers_of_step * world.size());
  for (size_t i = mine.size() - steps; i < mine.size(); ++i) Append(mine[i], longest, &sent);
  const auto bytes = static_cast<int64_t>(sent.size() * sizeof(int64_t));
  world.AllGather(Tensor(sent.data(), DType::kUInt8, {bytes}),
                  Tensor(all.data(), DType::kUInt8, {bytes * world.size()}), stream);
  if (!world.status().ok()) return {mine};
  std::vector<std::vector<StepTimes>> ranks(world.size());
  for (size_t i = 0; i < steps * ranks.size(); ++i)
    ranks[i / steps].push_back(ParseStep(&all[i * numbers_of_step], longest));
  return ranks;
}

}  // namespace megatron
