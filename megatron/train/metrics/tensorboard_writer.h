// The run's TensorBoard files: every metric of metric_table.h that has a tag, as curves over
// iterations and, where the table says so, over consumed samples ("lm loss vs samples"). A start of
// the program also writes the configuration as a card of text, its hyperparameters, and which
// curves share a picture.
//
// A run that continues after iteration k takes later steps again. When it starts, the events after
// k are cut out of the run's earlier files, so that every tag has one point a step for whoever
// reads the folder from then on. A TensorBoard that is open has read those events already. It
// forgets a tag's points from the step on at which the tag is written again, so the writer repeats
// the last value of each tag; a reader that forgets nothing sees that point twice, equal.
//
// Files of other runs and other programs in the folder are left as they are.
#ifndef MEGATRON_TRAIN_METRICS_TENSORBOARD_WRITER_H_
#define MEGATRON_TRAIN_METRICS_TENSORBOARD_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/tensorboard/event.pb.h"
#include "megatron/tensorboard/event_writer.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

class TensorboardWriter : public MetricsWriter {
 public:
  // Does nothing with files before the first step. `fs` must outlive this.
  TensorboardWriter(FileSystem& fs, const std::string& directory, RunStart start,
                    std::function<absl::Time()> now = absl::Now);

  // After an error nothing is lost: see EventWriter::Write. A name that can't be a tag is one, too,
  // and is returned once.
  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics& evaluation) override;
  absl::Status Sync() override { return writer_.Sync(); }

 private:
  // A point of a curve: its place and its value.
  struct Point {
    int64_t step = 0;
    float value = 0;
    bool over_samples = false;
  };

  absl::Status Start(double time);
  // Returns whether an event of an earlier file stays, and notes its points in `last_`.
  bool Keeps(const tensorboard::Event& event);
  void AppendRepeats(std::vector<tensorboard::Event>* events) const;
  tensorboard::Event CardsEvent() const;

  void Begin(absl::Time time, int64_t iteration, int64_t consumed_samples);
  void Add(const Metric& metric, double value);
  void AddNamed(absl::string_view name, const Metric* metric, double value);
  void AddPoint(absl::string_view tag, const Metric* metric, double value,
                tensorboard::Summary* summary);
  void AddEvaluated(absl::string_view measure, bool on_test_set, double value);
  // Writes what was added since Begin().
  absl::Status Write();

  const RunStart start_;
  tensorboard::EventWriter writer_;
  const std::function<absl::Time()> now_;
  bool started_ = false;
  std::map<std::string, Point> last_;           // the last kept point of each tag in earlier files
  absl::flat_hash_set<std::string> described_;  // tags whose metadata was written
  std::vector<tensorboard::Event> events_;      // over iterations, and over samples
  absl::Status bad_name_;                       // to be returned once
  bool said_bad_name_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_TENSORBOARD_WRITER_H_
