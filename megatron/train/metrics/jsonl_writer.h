// metrics.jsonl: one JSON object per optimizer step and per evaluation, in the order in which they
// happened, for plots and scripts.
//
//   {"iteration":2,"consumed_samples":32,"lm loss":5.54,"learning-rate":3e-05,"grad-norm":2.1,
//    "loss-scale":1,"batch-size":16,"skipped":false,"elapsed_ms":81.2,"tokens_per_second":50443,
//    "tflops":0.3,"mfu":0.41}
//   {"iteration":100,"lm loss validation":3.1,"lm loss validation ppl":22.2}
//   {"iteration":200,"lm loss validation":2.9,"lm loss validation ppl":18.2,"tasks/piqa/acc":0.61}
//   {"iteration":200,"lm loss test":3.1,"lm loss test ppl":22.2}
//
// Keys are Megatron's TensorBoard tags where it has one; metric_table.h has them all. A number that
// is not finite is null.
//
// A run that continues from a checkpoint takes steps again that it had taken before it was stopped;
// their old lines are dropped when the file is opened, so that the file reads as if nothing had
// happened.
//
// A line is *torn* when it is not JSON and begins as a record does, begins with a zero byte, or is
// empty: this is what a crash, a full disk or a power cut leaves of a record. Readers pass over
// torn lines, JsonlWriter removes them, and a record that follows one starts on a line of its own.

#ifndef MEGATRON_TRAIN_METRICS_JSONL_WRITER_H_
#define MEGATRON_TRAIN_METRICS_JSONL_WRITER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_identity.h"
#include "megatron/base/file_system.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

// The contents of a file. Its steps hold only the values of a line: no times and no intervals.
struct MetricsHistory {
  std::vector<StepMetrics> steps;
  std::vector<EvaluationMetrics> evaluations;  // evaluations on the validation set
  std::vector<EvaluationMetrics> tests;        // evaluations on the test set
};

std::string ToJsonLine(const StepMetrics& step);
std::string ToJsonLine(const EvaluationMetrics& evaluation);

// InvalidArgument names the first line that is neither a record nor torn. A last line without its
// line feed counts as torn, even if only the line feed is missing.
absl::StatusOr<MetricsHistory> ParseMetrics(absl::string_view text);

// Each record is one write to the operating system: a program that is killed loses none, a machine
// that loses power loses what came after the last Sync.
class JsonlWriter : public MetricsWriter {
 public:
  // Keeps the records of iterations up to `last_iteration` (0 when training starts from the
  // beginning) and removes later ones atomically: a crash leaves the old file or the new one.
  // Removes torn lines, too. Makes the directory if there is none. Fails on a file that holds
  // anything other than metrics, or a line of more than 64 MiB, and leaves it as it is. The file is
  // read and copied in pieces, and may be larger than memory. Where it can't be written, as on a
  // full disk, all this is done later, before the first record that can be.
  // `last_step` is the step of `last_iteration`, whose record may be missing; null: it is not.
  // `unwritten` has lines that writers of this run could not write (Unwritten), in any order. Those
  // up to `last_iteration` that are missing in the file get their places there.
  static absl::StatusOr<std::unique_ptr<JsonlWriter>> Open(FileSystem& fs, const std::string& path,
                                                           int64_t last_iteration,
                                                           const StepMetrics* last_step = nullptr,
                                                           absl::string_view unwritten = "");

  // Returns why Open could not write the file.
  const absl::Status& opened() const { return opened_; }

  // A record whose write fails, as on a full disk, is written before the next one: up to 65,536 are
  // kept, the newest. Until then its line may be torn. Where the file was removed meanwhile, it
  // begins anew with these, and where another file has its name, that one is taken over as Open
  // does, with all its records. kDataLoss says so.
  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics& evaluation) override;
  // Removes torn lines, too.
  absl::Status Sync() override;
  std::string Unwritten() const override;
  ~JsonlWriter() override;

 private:
  JsonlWriter(FileSystem& fs, std::string path, int64_t last_iteration)
      : fs_(fs), path_(std::move(path)), last_iteration_(last_iteration) {}

  // Appends lines to those that are kept.
  void Keep(absl::string_view lines);
  // Replaces the file atomically by one that has its records up to last_iteration_, and those that
  // are kept, and goes on behind them.
  absl::Status Rewrite();
  absl::Status Prepare();
  // Leaves the file if it no longer has its name. The error says so.
  absl::Status LeaveLostFile();
  absl::Status WriteLine(const std::string& line);
  absl::Status WriteKept();

  FileSystem& fs_;
  const std::string path_;
  int64_t last_iteration_;  // records of later ones are dropped when the file is opened
  absl::Status opened_;
  std::unique_ptr<WritableFile> file_;    // null: it could not be written so far
  std::optional<FileIdentity> identity_;  // file_'s own, where files have one
  std::deque<std::string> kept_;          // lines that are not in the file yet
  bool torn_ = false;           // the last write failed, and may have left a part of its line
  bool has_torn_line_ = false;  // a line in the file may be torn
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_JSONL_WRITER_H_
