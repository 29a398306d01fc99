#include "megatron/train/metrics/rank_times_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "megatron/train/metrics/run_summary.h"
#include "megatron/train/metrics/time_report.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostIntervals = 24;
constexpr absl::Duration kBetweenWrites = absl::Seconds(10);

Json RankObject(const RankTimes& rank) {
  Json seconds = Json::object();
  for (int i = 0; i < kNumTimeCategories; ++i) {
    if (rank.by_category[i] > 0)
      seconds[Name(static_cast<TimeCategory>(i))] = static_cast<double>(rank.by_category[i]) * 1e-9;
  }
  return {{"host", rank.host.data()}, {"stage", rank.stage}, {"seconds", std::move(seconds)}};
}

Json RowObject(const CommunicationRow& row) {
  return {
      {"group", row.group},        {"operation", row.operation}, {"ranks", row.ranks},
      {"calls", row.calls},        {"bytes", row.bytes},         {"time", row.time},
      {"transfer", row.transfer},  {"waiting", row.waiting},     {"algbw", row.algorithm_bandwidth},
      {"busbw", row.bus_bandwidth}};
}

Json WhatIfObject(const WhatIf& what_if, const std::vector<Saving>& savings) {
  Json list = Json::array();
  for (const Saving& saving : savings)
    list.push_back({{"seconds", saving.seconds}, {"condition", saving.condition}});
  return {{"measured", what_if.measured},
          {"replayed", what_if.replayed},
          {"steps", what_if.steps},
          {"savings", std::move(list)}};
}

}  // namespace

std::string RankTimesPath(absl::string_view metrics_file) {
  return absl::StrCat(absl::StripSuffix(metrics_file, ".jsonl"), ".ranks.json");
}

absl::Status RankTimesWriter::WriteStep(const StepMetrics& step) {
  if (step.times == nullptr || step.times->ranks.size() < 2) return absl::OkStatus();
  const std::vector<RankTimes>& ranks = step.times->ranks;
  if (ranks_.size() != ranks.size()) {
    ranks_ = ranks;
  } else {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (int i = 0; i < kNumTimeCategories; ++i)
        ranks_[rank].by_category[i] += ranks[rank].by_category[i];
    }
  }
  AddInterval(step);
  iteration_ = step.iteration;
  return step.time - written_ < kBetweenWrites ? absl::OkStatus() : Write(nullptr);
}

void RankTimesWriter::AddInterval(const StepMetrics& step) {
  Interval interval = {step.iteration, step.times->iterations, {}};
  for (const RankTimes& rank : step.times->ranks) interval.work.push_back(rank.work());
  intervals_.push_back(std::move(interval));
  if (intervals_.size() <= kMostIntervals) return;
  std::vector<Interval> pairs;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    if (i % 2 == 0) {
      pairs.push_back(std::move(intervals_[i]));
      continue;
    }
    Interval& pair = pairs.back();
    pair.last = intervals_[i].last;
    pair.iterations += intervals_[i].iterations;
    for (size_t rank = 0; rank < pair.work.size(); ++rank)
      pair.work[rank] += intervals_[i].work[rank];
  }
  intervals_ = std::move(pairs);
}

absl::Status RankTimesWriter::Sync() { return Write(nullptr); }

absl::Status RankTimesWriter::WriteSummary(const RunSummary& summary) { return Write(&summary); }

absl::Status RankTimesWriter::Write(const RunSummary* summary) {
  if (ranks_.empty()) return absl::OkStatus();
  Json file = {{"iteration", iteration_}, {"ranks", Json::array()}, {"intervals", Json::array()}};
  for (const RankTimes& rank : ranks_) file["ranks"].push_back(RankObject(rank));
  for (const Interval& interval : intervals_) {
    Json work = Json::array();
    for (const int64_t time : interval.work)
      work.push_back(static_cast<double>(time) * 1e-9 / static_cast<double>(interval.iterations));
    file["intervals"].push_back({{"last", interval.last}, {"work", std::move(work)}});
  }
  if (summary != nullptr) {
    file["communication"] = Json::array();
    for (const CommunicationRow& row : summary->communication)
      file["communication"].push_back(RowObject(row));
    if (summary->what_if) file["what_if"] = WhatIfObject(*summary->what_if, summary->savings);
  }
  written_ = absl::Now();
  const auto invalid = Json::error_handler_t::replace;  // a host's name is any bytes
  return WriteFileAtomically(fs_, path_, file.dump(-1, ' ', false, invalid) + "\n");
}

}  // namespace megatron
