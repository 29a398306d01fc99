// A task for one model: its examples as requests for scores, and the metrics of the scores.
//
//   MEGATRON_ASSIGN_OR_RETURN(PreparedTask task, PreparedTask::Create(info, examples, tokenizer,
//                                                                     options));
//   ... score task.requests() ...
//   for (const TaskMetric& metric : task.Metrics(scores)) ...
#ifndef MEGATRON_EVALUATE_PREPARED_TASK_H_
#define MEGATRON_EVALUATE_PREPARED_TASK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/evaluate/score_request.h"
#include "megatron/evaluate/task_examples.h"

namespace megatron {

struct TaskMetric {
  std::string name;  // lm_eval's or Megatron's: "acc_norm", "adjusted_ppl"
  double value = 0;
  // The standard error of a mean over examples.
  std::optional<double> standard_error;
  bool higher_is_better = false;
};

struct PrepareOptions {
  int64_t max_context = 0;        // the most tokens that the model sees at once
  int64_t overlapping_eval = 32;  // kOneText: tokens by which the window moves on
  int64_t max_windows = 0;        // kOneText: the most windows; 0: all
};

class PreparedTask {
 public:
  // kInvalidArgument if an example cannot be scored: its answer has no tokens, or more than the
  // context; the message names the line.
  static absl::StatusOr<PreparedTask> Create(const TaskInfo& info, const TaskExamples& examples,
                                             const Tokenizer& tokenizer,
                                             const PrepareOptions& options);

  const TaskInfo& info() const { return *info_; }
  const std::vector<ScoreRequest>& requests() const { return requests_; }
  // The number of examples; of windows for a task that is one text.
  int64_t num_examples() const { return static_cast<int64_t>(groups_.size()); }
  // The number of requests whose contexts have lost their first tokens, to fit into the model's.
  int64_t num_cut() const { return num_cut_; }

  // Expects a score for each request.
  std::vector<TaskMetric> Metrics(absl::Span<const RequestScore> scores) const;

 private:
  // The requests of an example, and what its metrics need.
  struct Group {
    size_t begin = 0, end = 0;
    int64_t gold = 0;
    std::vector<double> lengths;
    double num_bytes = 0, num_words = 0;
  };
  class Builder;

  explicit PreparedTask(const TaskInfo& info) : info_(&info) {}

  std::vector<TaskMetric> ChoiceMetrics(absl::Span<const RequestScore> scores) const;
  std::vector<TaskMetric> WordMetrics(absl::Span<const RequestScore> scores) const;
  std::vector<TaskMetric> DocumentMetrics(absl::Span<const RequestScore> scores) const;
  std::vector<TaskMetric> TextMetrics(absl::Span<const RequestScore> scores) const;

  const TaskInfo* info_;
  std::vector<ScoreRequest> requests_;
  std::vector<Group> groups_;
  int64_t num_cut_ = 0;
  double token_ratio_ = 1;  // kOneText: tokens of the vocabulary for one that was published
};

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_PREPARED_TASK_H_
