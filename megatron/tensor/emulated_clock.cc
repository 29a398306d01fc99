#include "megatron/tensor/emulated_clock.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>

#include "glog/logging.h"

namespace megatron {
namespace {

constexpr int64_t kHostStream = 0;

double Seconds(const EmulatedCost& cost, const EmulatedRates& rates) {
  switch (cost.engine) {
    case EmulatedEngine::kKernels:
      return std::max(cost.operations / rates.operations_per_second,
                      cost.bytes / rates.bytes_per_second);
    case EmulatedEngine::kToHost:
    case EmulatedEngine::kFromHost:
      return cost.bytes / rates.link_bytes_per_second;
    case EmulatedEngine::kProcessor:
      return cost.operations / rates.updated_elements_per_second;
    case EmulatedEngine::kDiskReads:
      return cost.bytes / rates.disk_read_bytes_per_second;
    case EmulatedEngine::kDiskWrites:
      return cost.bytes / rates.disk_write_bytes_per_second;
  }
  LOG(FATAL) << "engine " << static_cast<int>(cost.engine);
}

}  // namespace

void EmulatedRecord::AddWork(EmulatedWork work, const EmulatedPoint& after) {
  const auto wait_for = [&](int64_t stream, int64_t number) {
    const auto& earlier = of_stream_[stream];
    const auto behind = std::upper_bound(
        earlier.begin(), earlier.end(), number,
        [](int64_t wanted, const auto& operation) { return wanted < operation.first; });
    if (behind != earlier.begin()) work.after.push_back(std::prev(behind)->second);
  };
  for (const auto& [stream, number] : after) wait_for(stream, number);
  if (!of_stream_[work.stream].empty()) work.after.push_back(of_stream_[work.stream].back().second);
  std::sort(work.after.begin(), work.after.end());
  work.after.erase(std::unique(work.after.begin(), work.after.end()), work.after.end());
  works_.push_back(std::move(work));
}

void EmulatedRecord::Add(int64_t stream, int64_t number, const std::string& name,
                         const EmulatedCost& cost, const EmulatedPoint& after) {
  CHECK_NE(stream, kHostStream);
  EmulatedPoint both = host_;
  for (const auto& [of, operation] : after) both[of] = std::max(both[of], operation);
  AddWork({name, stream, cost, {}}, both);
  of_stream_[stream].emplace_back(number, works_.size() - 1);
}

void EmulatedRecord::HostWaited(const EmulatedPoint& point) {
  for (const auto& [stream, number] : point) {
    int64_t& mine = host_[stream];
    mine = std::max(mine, number);
  }
}

void EmulatedRecord::AddOfHost(const std::string& name, const EmulatedCost& cost) {
  AddWork({name, kHostStream, cost, {}}, host_);
  auto& mine = of_stream_[kHostStream];
  mine.emplace_back(static_cast<int64_t>(mine.size()) + 1, works_.size() - 1);
  host_[kHostStream] = mine.back().first;
}

EmulatedPoint EmulatedRecord::AddOfEngine(const std::string& name, const EmulatedCost& cost,
                                          const EmulatedPoint& after) {
  const int64_t stream = kHostStream - static_cast<int64_t>(cost.engine);
  AddWork({name, stream, cost, {}}, after);
  auto& mine = of_stream_[stream];
  mine.emplace_back(static_cast<int64_t>(mine.size()) + 1, works_.size() - 1);
  return {{stream, mine.back().first}};
}

EmulatedPoint EmulatedRecord::AddOfDisk(const std::string& name, const EmulatedCost& cost) {
  return AddOfEngine(name, cost, host_);
}

EmulatedPoint EmulatedRecord::AddBeside(const std::string& name, const EmulatedCost& cost,
                                        const EmulatedPoint& after) {
  return AddOfEngine(name, cost, after);
}

EmulatedTimes PlayEmulated(const std::vector<EmulatedWork>& works, const EmulatedRates& rates) {
  EmulatedTimes times;
  times.begin_and_end.resize(works.size());
  std::vector<std::vector<size_t>> waiting(works.size());  // the works that wait for each
  std::vector<size_t> missing(works.size());               // the number that each waits for
  // What an engine could begin: since when, and which work.
  struct Engine {
    std::set<std::pair<double, size_t>> ready;
    bool works = false;
  };
  std::array<Engine, kNumEmulatedEngines> engines;
  const auto engine_of = [&](size_t i) { return static_cast<size_t>(works[i].cost.engine); };
  for (size_t i = 0; i < works.size(); ++i) {
    missing[i] = works[i].after.size();
    for (const size_t before : works[i].after) waiting[before].push_back(i);
    if (missing[i] == 0) engines[engine_of(i)].ready.insert({0, i});
  }
  using Event = std::pair<double, size_t>;  // the end of a work
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
  double now = 0;
  const auto begin = [&](Engine* engine) {
    if (engine->works || engine->ready.empty()) return;
    const size_t i = engine->ready.begin()->second;
    engine->ready.erase(engine->ready.begin());
    engine->works = true;
    const double seconds = Seconds(works[i].cost, rates);
    times.begin_and_end[i] = {now, now + seconds};
    times.busy[engine_of(i)] += seconds;
    events.push({now + seconds, i});
  };
  size_t done = 0;
  for (Engine& engine : engines) begin(&engine);
  while (!events.empty()) {
    const size_t ended = events.top().second;
    now = events.top().first;
    events.pop();
    ++done;
    engines[engine_of(ended)].works = false;
    for (const size_t i : waiting[ended]) {
      if (--missing[i] == 0) engines[engine_of(i)].ready.insert({now, i});
    }
    // All that ends at this moment comes before anything begins.
    if (!events.empty() && events.top().first == now) continue;
    for (Engine& engine : engines) begin(&engine);
  }
  CHECK_EQ(done, works.size());
  times.end = now;
  return times;
}

}  // namespace megatron
