// Makes TensorBoard's files from the metrics.jsonl of a run, whenever it was.
//
//   metrics_to_tensorboard run/metrics.jsonl                          # into run/tensorboard
//   metrics_to_tensorboard --output=board --ranks=8 run/metrics.jsonl

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/metrics/jsonl_writer.h"
#include "megatron/train/metrics/tensorboard_writer.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, output, "",
          "The directory of the files; by default tensorboard beside METRICS.jsonl.");
ABSL_FLAG(int64_t, ranks, 0,
          "The number of ranks that the run had, which metrics.jsonl does not hold; gives the tag "
          "throughput.");

namespace megatron {
namespace {

// Files that are there would be a part of the same run for TensorBoard.
absl::Status CheckHoldsNoEvents(const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (absl::StrContains(name, "tfevents")) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory, " holds ", name, ": name another directory with --output"));
    }
  }
  return absl::OkStatus();
}

// The history has no clock. The last step gets the present moment.
void SetTimes(absl::Time end, std::vector<StepMetrics>* steps) {
  for (auto step = steps->rbegin(); step != steps->rend(); ++step) {
    step->time = end;
    if (step->speed.elapsed_ms > 0) end -= absl::Milliseconds(step->speed.elapsed_ms);
  }
}

// Writes the evaluations at the iterations up to that of `step`, from `*next` on.
absl::Status WriteEvaluations(const std::vector<EvaluationMetrics>& evaluations,
                              const StepMetrics& step, size_t* next, TensorboardWriter* writer) {
  for (; *next < evaluations.size() && evaluations[*next].iteration <= step.iteration; ++*next) {
    EvaluationMetrics evaluation = evaluations[*next];
    evaluation.time = step.time;
    evaluation.consumed_samples = step.consumed_samples;
    MEGATRON_RETURN_IF_ERROR(writer->WriteEvaluation(evaluation));
  }
  return absl::OkStatus();
}

absl::Status Convert(const std::vector<std::string>& inputs) {
  if (inputs.size() != 1) return absl::InvalidArgumentError("expects one METRICS.jsonl");
  const std::string& input = inputs[0];
  std::string output = absl::GetFlag(FLAGS_output);
  if (output.empty()) output = JoinPath(ParentPath(input), "tensorboard");
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(PosixFileSystem(), input));
  absl::StatusOr<MetricsHistory> history = ParseMetrics(text);
  if (!history.ok())
    return absl::DataLossError(absl::StrCat(input, ": ", history.status().message()));
  if (history->steps.empty())
    return absl::InvalidArgumentError(absl::StrCat(input, " holds no step"));
  MEGATRON_RETURN_IF_ERROR(CheckHoldsNoEvents(output));
  SetTimes(absl::Now(), &history->steps);
  TensorboardWriter writer(PosixFileSystem(), output, RunStart());
  size_t evaluation = 0, test = 0;
  for (StepMetrics& step : history->steps) {
    step.world_size = absl::GetFlag(FLAGS_ranks);
    MEGATRON_RETURN_IF_ERROR(writer.WriteStep(step));
    MEGATRON_RETURN_IF_ERROR(WriteEvaluations(history->evaluations, step, &evaluation, &writer));
    MEGATRON_RETURN_IF_ERROR(WriteEvaluations(history->tests, step, &test, &writer));
  }
  MEGATRON_RETURN_IF_ERROR(writer.Sync());
  std::printf("wrote %zu steps and %zu evaluations to %s\n", history->steps.size(),
              evaluation + test, output.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv,
                           "Makes TensorBoard's files from a run's metrics: "
                           "metrics_to_tensorboard [flags] METRICS.jsonl",
                           megatron::Convert);
}
