#include "megatron/train/metrics/timers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megatron {
namespace {

constexpr char kExchange[] =
    "Time in exchanges with neighbouring stages, of the kind that the name says.";

constexpr Timer kTimers[] = {
    {"save-checkpoint", 1, "save-checkpoint-time", "Time for which saving delays training."},
    {"evaluate", 1, "evaluate-time", "Time of evaluations."},
    {"forward-backward", 1, "forward-backward-time",
     "Time of the pipeline's schedule: all passes, exchanges and waits."},
    {"forward-compute", 2, "forward-compute-time", "Time of forward passes."},
    {"backward-compute", 2, "backward-compute-time", "Time of backward passes."},
    {"batch-generator", 2, "batch-generator-time", "Time of packing samples."},
    {"forward-recv", 2, "forward-recv-time", kExchange},
    {"forward-send", 2, "forward-send-time", kExchange},
    {"backward-recv", 2, "backward-recv-time", kExchange},
    {"backward-send", 2, "backward-send-time", kExchange},
    {"forward-send-forward-recv", 2, "forward-send-forward-recv-time", kExchange},
    {"forward-send-backward-recv", 2, "forward-send-backward-recv-time", kExchange},
    {"backward-send-forward-recv", 2, "backward-send-forward-recv-time", kExchange},
    {"backward-send-backward-recv", 2, "backward-send-backward-recv-time", kExchange},
    {"forward-backward-send-forward-backward-recv", 2,
     "forward-backward-send-forward-backward-recv-time", kExchange},
    {"all-grads-sync", 1, "all-grads-sync-time",
     "Time of reducing gradients after the last backward pass."},
    {"params-all-gather", 1, "params-all-gather-time",
     "Time of sending updated weights to other ranks."},
    {"optimizer-inner-step", 1, "optimizer-inner-step-time", "Time of the update itself."},
    {"optimizer", 1, "optimizer-time",
     "Time of the gradients' norm, of the update and of what follows it."},
};
static_assert(sizeof(kTimers) / sizeof(kTimers[0]) == kNumTimers);

// The spans whose names are not those of their timers.
struct SpanOfTimer {
  const char* span;
  const char* timer;
};
constexpr SpanOfTimer kSpans[] = {
    {"forward", "forward-compute"},
    {"backward", "backward-compute"},
    {"backward input", "backward-compute"},
    {"backward weight", "backward-compute"},
    {"data", "batch-generator"},
    {"reduce gradients", "all-grads-sync"},
    {"share weights", "params-all-gather"},
    {"update", "optimizer-inner-step"},
};

std::string Dotted(const char* name) {
  std::string text = absl::StrCat(name, " ");
  text.resize(std::max<size_t>(text.size(), 48), '.');
  return text;
}

// Returns the values of a timer on the ranks that have it, beside the numbers of these ranks.
std::vector<std::pair<int, double>> ValuesOf(int timer,
                                             absl::Span<const std::vector<double>> milliseconds) {
  std::vector<std::pair<int, double>> values;
  for (size_t rank = 0; rank < milliseconds.size(); ++rank) {
    if (milliseconds[rank][timer] > 0)
      values.emplace_back(static_cast<int>(rank), milliseconds[rank][timer]);
  }
  return values;
}

std::string FormatTimer(const Timer& timer, const std::vector<std::pair<int, double>>& values,
                        TimerOption option) {
  if (option == TimerOption::kAll) {
    std::string text = absl::StrCat("\n  ", timer.name, ":");
    for (const auto& [rank, value] : values)
      absl::StrAppendFormat(&text, "\n     rank %2d: %.2f", rank, value);
    return text;
  }
  const auto [least, most] =
      std::minmax_element(values.begin(), values.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
  if (option == TimerOption::kMax)
    return absl::StrFormat("\n    %s: %.2f", Dotted(timer.name), most->second);
  return absl::StrFormat("\n    %s: (%.2f, %.2f)", Dotted(timer.name), least->second, most->second);
}

}  // namespace

absl::Span<const Timer> Timers() { return kTimers; }

int TimerOfSpan(absl::string_view span) {
  for (const SpanOfTimer& row : kSpans) {
    if (span == row.span) span = row.timer;
  }
  for (int timer = kSaveTimer + 1; timer < kNumTimers; ++timer) {
    if (span == kTimers[timer].name) return timer;
  }
  return -1;
}

std::string FormatTimers(absl::Span<const std::vector<double>> milliseconds, int level,
                         TimerOption option) {
  std::string text;
  for (int timer = 0; timer < kNumTimers; ++timer) {
    const auto values = ValuesOf(timer, milliseconds);
    if (kTimers[timer].level <= level && !values.empty())
      absl::StrAppend(&text, FormatTimer(kTimers[timer], values, option));
  }
  if (text.empty()) return text;
  const char* const heading = option == TimerOption::kMax ? "max time across ranks (ms):"
                              : option == TimerOption::kMinMax
                                  ? "(min, max) time across ranks (ms):"
                                  : "times across ranks (ms):";
  return absl::StrCat(heading, text);
}

}  // namespace megatron
