// Writes where each rank's time went since the program started, in one JSON file beside
// metrics.jsonl, for reports:
//
//   {"iteration":400,
//    "ranks":[{"host":"gpu08","stage":0,"seconds":{"compute":61.2,"tp":3.4}}],
//    "intervals":[{"last":200,"work":[0.31]}],
//    "communication":[{"group":"tp","operation":"all-reduce","ranks":2,"calls":800,"bytes":1e9,
//                      "time":3.4,"transfer":2.1,"waiting":1.3,"algbw":4.7e8,"busbw":4.7e8}],
//    "what_if":{"measured":0.16,"replayed":0.158,"steps":16,
//               "savings":[{"seconds":0.14,"condition":"if the slowest rank ..."}]}}
//
// `work` is each rank's own work in seconds of a step, without waiting for others, over the steps
// up to `last`. The last two are there when the run has ended.
#ifndef MEGATRON_TRAIN_METRICS_RANK_TIMES_WRITER_H_
#define MEGATRON_TRAIN_METRICS_RANK_TIMES_WRITER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/rank_times.h"

namespace megatron {

// Returns the name of the file beside this metrics.jsonl: "run/metrics.ranks.json".
std::string RankTimesPath(absl::string_view metrics_file);

// Replaces the file at the first log line, then at those that come ten seconds after the last
// write, before a checkpoint and at the end. Of a run of one rank there is no file.
class RankTimesWriter : public MetricsWriter {
 public:
  // `fs` must outlive this.
  RankTimesWriter(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}

  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics&) override { return absl::OkStatus(); }
  absl::Status Sync() override;
  absl::Status WriteSummary(const RunSummary& summary) override;

 private:
  // The steps up to and with `last`.
  struct Interval {
    int64_t last = 0, iterations = 0;
    std::vector<int64_t> work;  // nanoseconds of each rank
  };

  void AddInterval(const StepMetrics& step);
  absl::Status Write(const RunSummary* summary);

  FileSystem& fs_;
  const std::string path_;
  int64_t iteration_ = 0;
  absl::Time written_ = absl::InfinitePast();
  std::vector<RankTimes> ranks_;     // sums
  std::vector<Interval> intervals_;  // at most kMostIntervals
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RANK_TIMES_WRITER_H_
