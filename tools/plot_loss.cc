// Draws the loss curves of one or more runs.
//
//   plot_loss --output=loss.svg run/metrics.jsonl
//   plot_loss --output=loss.html --log_x small/metrics.jsonl large/metrics.jsonl

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/metrics.h"
#include "tools/plot_loss_svg.h"

namespace megatron {
namespace {

constexpr char kUsage[] =
    "Draws loss curves.\n"
    "\n"
    "  plot_loss [flags] METRICS.jsonl...\n"
    "\n"
    "  --output=FILE  the picture, loss.svg where nothing is said; a name that ends in .html gives "
    "a page\n"
    "  --title=TEXT   the line above it\n"
    "  --log_x        iterations on a logarithmic scale\n"
    "  --log_y        losses on a logarithmic scale\n";

constexpr int kExitUsage = 20;
constexpr int kExitData = 21;
constexpr int kExitInputOutput = 23;

// Relative names start where the user stands, which is elsewhere than this program under `bazel
// run`.
std::string FromWhereTheUserStands(const std::string& path) {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  return directory == nullptr || absl::StartsWith(path, "/") ? path : JoinPath(directory, path);
}

// The directory names the run: every file is called metrics.jsonl.
std::string RunName(const std::string& path) {
  const std::string directory = ParentPath(path);
  return directory == "." ? path : directory;
}

absl::StatusOr<LossCurve> ReadCurve(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            ReadFileToString(PosixFileSystem(), FromWhereTheUserStands(path)));
  MEGATRON_ASSIGN_OR_RETURN(const MetricsHistory history, ParseMetrics(text), _ << "in " << path);
  LossCurve curve;
  curve.name = RunName(path);
  for (const StepMetrics& step : history.steps) curve.train.emplace_back(step.iteration, step.loss);
  for (const EvaluationMetrics& evaluation : history.evaluations) {
    curve.validation.emplace_back(evaluation.iteration, evaluation.loss);
  }
  return curve;
}

struct Command {
  std::vector<std::string> inputs;
  std::string output = "loss.svg";
  LossPlotOptions options;
  bool help = false;
};

absl::StatusOr<Command> ParseCommand(const std::vector<std::string>& arguments) {
  Command command;
  for (const std::string& argument : arguments) {
    absl::string_view value = argument;
    if (argument == "--help") {
      command.help = true;
    } else if (argument == "--log_x") {
      command.options.log_x = true;
    } else if (argument == "--log_y") {
      command.options.log_y = true;
    } else if (absl::ConsumePrefix(&value, "--output=") && !value.empty()) {
      command.output = std::string(value);
    } else if (absl::ConsumePrefix(&value, "--title=")) {
      command.options.title = std::string(value);
    } else if (absl::StartsWith(argument, "-")) {
      return absl::InvalidArgumentError(absl::StrCat("what is ", argument, "?"));
    } else {
      command.inputs.push_back(argument);
    }
  }
  if (command.inputs.empty() && !command.help)
    return absl::InvalidArgumentError("no METRICS.jsonl is given");
  return command;
}

absl::Status Plot(const Command& command) {
  std::vector<LossCurve> curves;
  for (const std::string& input : command.inputs) {
    MEGATRON_ASSIGN_OR_RETURN(LossCurve curve, ReadCurve(input));
    if (command.inputs.size() == 1) curve.name.clear();
    curves.push_back(std::move(curve));
  }
  const bool page = absl::EndsWith(command.output, ".html");
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(
      PosixFileSystem(), FromWhereTheUserStands(command.output),
      page ? LossPlotHtml(curves, command.options) : LossPlotSvg(curves, command.options)));
  std::printf("wrote %s\n", command.output.c_str());
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<Command> command = ParseCommand(arguments);
  if (!command.ok()) {
    std::fprintf(stderr, "plot_loss: %s\n\n%s", std::string(command.status().message()).c_str(),
                 kUsage);
    return kExitUsage;
  }
  if (command->help) {
    std::printf("%s", kUsage);
    return 0;
  }
  const absl::Status status = Plot(*command);
  if (status.ok()) return 0;
  std::fprintf(stderr, "plot_loss: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitData : kExitInputOutput;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) { return megatron::Main({argv + 1, argv + argc}); }
