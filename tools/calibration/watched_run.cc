#include "tools/calibration/watched_run.h"

#include <stdio.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/own_program.h"
#include "tools/calibration/other_work.h"

namespace megatron {
namespace {

constexpr const char* kStepText = "elapsed time per iteration (ms): ";
// The line below that of a step, and its parts that nothing else predicts.
constexpr const char* kPartsText = " time (%): ";
constexpr absl::string_view kRestParts[] = {"data", "host", "other"};
constexpr double kProbeSeconds = 0.1;
constexpr int kFirstSteps = 3;

// Returns the number behind a text, or 0.
double NumberBehind(absl::string_view line, absl::string_view text) {
  const size_t at = line.find(text);
  double number = 0;
  if (at == absl::string_view::npos) return 0;
  const absl::string_view rest = line.substr(at + text.size());
  return absl::SimpleAtod(rest.substr(0, rest.find(' ')), &number) ? number : 0;
}

// Returns the seconds of the steps after the first few, and of their rest, as medians. A program's
// first steps take longer, as long as memory comes from the system and threads find their cores.
absl::StatusOr<CheckedRun> RunLayout(const CheckedLayout& layout, const std::string& config_file) {
  std::string command = absl::StrCat("'", TrainingProgram(), "' --config='", config_file, "'");
  for (const std::string& field : layout.overrides) absl::StrAppend(&command, " --set=", field);
  absl::StrAppend(&command, " 2>&1");
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("can't start ", command));
  std::string output;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe.get())) {
    output.append(buffer, count);
  }
  std::vector<double> steps, rests;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    if (const double milliseconds = NumberBehind(line, kStepText); milliseconds > 0) {
      steps.push_back(milliseconds * 1e-3);
    } else if (absl::StrContains(line, kPartsText) && !steps.empty()) {
      double percent = 0;
      for (const absl::string_view part : kRestParts)
        percent += NumberBehind(line, absl::StrCat("| ", part, " "));
      rests.push_back(percent / 100 * steps.back());
    }
  }
  if (pclose(pipe.release()) != 0 || steps.size() <= kFirstSteps || rests.size() != steps.size()) {
    return absl::InternalError(absl::StrCat(layout.model, " ", layout.name, " failed:\n", output));
  }
  const auto median = [](const std::vector<double>& seconds) {
    return MedianOf(std::vector<double>(seconds.begin() + kFirstSteps, seconds.end()));
  };
  CheckedRun run;
  run.seconds = median(steps);
  run.rest = median(rests);
  return run;
}

}  // namespace

std::string TrainingProgram() {
  const std::string own = OwnProgram();
  return absl::StrCat(own.substr(0, own.rfind("/tools/")), "/megatron/train/pretrain_gpt");
}

absl::StatusOr<ProbeRates> CalibratedRates(const Hardware& hardware,
                                           const MeasuredKernels& kernels) {
  const auto share = kernels.ShareOfPeak(hardware.name(), ProbeShape());
  if (!share.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kernels has no product near that of the probe for '", hardware.name(),
                     "': let tools:calibrate write --facts and --kernels"));
  }
  ProbeRates rates;
  rates.flops_per_s = hardware.fp32_tflops() * 1e12 * *share;
  rates.memory_bytes_per_s = hardware.memory_gb_per_s() * 1e9;
  return rates;
}

absl::StatusOr<CheckedRun> RunWatched(const CheckedLayout& layout, const std::string& config_file,
                                      int cores, const ProbeRates& calibrated) {
  const ProbeRates before = MeasureProbe(cores, kProbeSeconds);
  const OtherWork others;
  MEGATRON_ASSIGN_OR_RETURN(CheckedRun run, RunLayout(layout, config_file));
  run.others = others.Share();
  const ProbeRates after = MeasureProbe(cores, kProbeSeconds);
  const auto mean = [&](double ProbeRates::*rate) {
    return (before.*rate + after.*rate) / 2 / calibrated.*rate;
  };
  run.lost = LostSpeed(mean(&ProbeRates::flops_per_s), mean(&ProbeRates::memory_bytes_per_s));
  return run;
}

}  // namespace megatron
