// Exports a run's metrics to Prometheus: at http://127.0.0.1:PORT/metrics, and in a file for
// node_exporter's textfile collector. /healthz beside /metrics says whether the run goes on.
#ifndef MEGATRON_TRAIN_METRICS_PROMETHEUS_WRITER_H_
#define MEGATRON_TRAIN_METRICS_PROMETHEUS_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/steady_now.h"
#include "megatron/http/request.h"
#include "megatron/http/response.h"
#include "megatron/http/server.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/prometheus_page.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

struct PrometheusOptions {
  std::string textfile;  // empty: none
  // The run is unhealthy when no step, evaluation or save has ended for so long, nor for ten times
  // the longest pause so far.
  absl::Duration silence_limit = absl::Minutes(10);
};

class PrometheusWriter : public MetricsWriter {
 public:
  // Does nothing with files before the first event or step. `fs` must outlive this. Pauses are
  // measured by `now`, which is no date, so that a clock that is set makes no run unhealthy.
  PrometheusWriter(FileSystem& fs, PrometheusOptions options, const RunStart& start,
                   std::function<absl::Time()> now = SteadyNow);
  // Removes the file: whoever reads it would export the last values for ever.
  ~PrometheusWriter() override;

  // Answers at that port of this machine from now on; 0: any free one. Returns the address. Fails
  // if the port is in use.
  absl::StatusOr<std::string> Listen(int port);

  // The file is replaced at most every few seconds, and at events.
  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics& evaluation) override;
  absl::Status WriteEvent(const RunEvent& event) override;

  // Answers a request. Threads: any.
  http::Response Answer(const http::Request& request) const;

 private:
  void NoteProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  http::Response Health() const;
  absl::Status ReplaceFile(bool at_once);

  FileSystem& fs_;
  const PrometheusOptions options_;
  const std::function<absl::Time()> now_;
  absl::Time next_file_ = absl::InfinitePast();
  bool has_file_ = false;

  mutable absl::Mutex mutex_;  // the server's threads read what the rank's thread writes
  PrometheusPage page_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_progress_ ABSL_GUARDED_BY(mutex_);
  absl::Duration longest_pause_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  int64_t iteration_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<http::Server> server_;  // the last member: its threads use the others
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_PROMETHEUS_WRITER_H_
