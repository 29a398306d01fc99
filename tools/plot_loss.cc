// Draws the loss curves of one or more runs.
//
//   plot_loss --output=loss.svg run/metrics.jsonl
//   plot_loss --output=loss.html --log_x small/metrics.jsonl large/metrics.jsonl
//   plot_loss --names=small,large small1/metrics.jsonl,small2/metrics.jsonl large/metrics.jsonl
//
// Files that are joined by commas are one curve: their mean.

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/metrics/jsonl_writer.h"
#include "tools/common/tool_main.h"
#include "tools/pictures/plot_loss_svg.h"

ABSL_FLAG(std::string, output, "loss.svg", "The picture; a name that ends in .html gives a page.");
ABSL_FLAG(std::string, title, "Loss", "The line above the picture.");
ABSL_FLAG(std::vector<std::string>, names, {},
          "The names of the curves; otherwise each has that of its files' directories.");
ABSL_FLAG(bool, log_x, false, "Iterations on a logarithmic scale.");
ABSL_FLAG(bool, log_y, false, "Losses on a logarithmic scale.");

namespace megatron {
namespace {

// The directory names the run: every file is called metrics.jsonl.
std::string RunName(const std::string& path) {
  const std::string directory = ParentPath(path);
  return directory == "." ? path : directory;
}

absl::StatusOr<LossCurve> ReadCurve(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(PosixFileSystem(), path));
  const absl::StatusOr<MetricsHistory> history = ParseMetrics(text);
  if (!history.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": ", history.status().message()));
  }
  LossCurve curve;
  curve.name = RunName(path);
  for (const StepMetrics& step : history->steps)
    curve.train.emplace_back(step.iteration, step.loss);
  for (const EvaluationMetrics& evaluation : history->evaluations) {
    curve.validation.emplace_back(evaluation.iteration, evaluation.loss);
  }
  return curve;
}

absl::StatusOr<LossCurve> ReadMean(absl::string_view files) {
  std::vector<LossCurve> runs;
  for (const absl::string_view file : absl::StrSplit(files, ',')) {
    MEGATRON_ASSIGN_OR_RETURN(LossCurve curve, ReadCurve(std::string(file)));
    runs.push_back(std::move(curve));
  }
  LossCurve mean = MeanOf(runs);
  if (mean.train.empty() && mean.validation.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(files, ": there is no iteration that all of the files have"));
  }
  return mean;
}

absl::Status PlotLoss(const std::vector<std::string>& inputs) {
  if (inputs.empty()) return absl::InvalidArgumentError("no METRICS.jsonl is given");
  const std::vector<std::string> names = absl::GetFlag(FLAGS_names);
  if (!names.empty() && names.size() != inputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--names has ", names.size(), " names for ", inputs.size(), " curves"));
  }
  std::vector<LossCurve> curves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    MEGATRON_ASSIGN_OR_RETURN(LossCurve curve, ReadMean(inputs[i]));
    if (inputs.size() == 1) curve.name.clear();
    if (!names.empty()) curve.name = names[i];
    curves.push_back(std::move(curve));
  }
  LossPlotOptions options;
  options.title = absl::GetFlag(FLAGS_title);
  options.log_x = absl::GetFlag(FLAGS_log_x);
  options.log_y = absl::GetFlag(FLAGS_log_y);
  const std::string output = absl::GetFlag(FLAGS_output);
  const bool page = absl::EndsWith(output, ".html");
  MEGATRON_RETURN_IF_ERROR(
      WriteFileAtomically(PosixFileSystem(), output,
                          page ? LossPlotHtml(curves, options) : LossPlotSvg(curves, options)));
  std::printf("wrote %s\n", output.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Draws loss curves: plot_loss [flags] METRICS.jsonl...",
                           megatron::PlotLoss);
}
