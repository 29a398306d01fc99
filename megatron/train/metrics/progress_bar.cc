#include "megatron/train/metrics/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "megatron/base/steady_now.h"
#include "megatron/train/console/terminal.h"
#include "megatron/train/metrics/log_line.h"

namespace megatron {
namespace {

constexpr int kBarWidth = 30;
constexpr int kNarrowestBar = 8;
constexpr absl::Duration kShortestPause = absl::Milliseconds(100);
constexpr char kEraseLine[] = "\r\033[K";
constexpr char kGreen[] = "\033[32m";
constexpr char kPlain[] = "\033[0m";

std::string Bar(double share, int width, bool color) {
  const int done = static_cast<int>(share * width);
  std::string bar(static_cast<size_t>(done), '=');
  if (done < width) bar += '>';
  bar.resize(static_cast<size_t>(width), ' ');
  return color ? absl::StrCat(kGreen, bar, kPlain) : bar;
}

}  // namespace

std::string FormatProgress(const Progress& progress, const ProgressStyle& style) {
  const double share =
      std::clamp(static_cast<double>(progress.iteration) /
                     static_cast<double>(std::max<int64_t>(1, progress.train_iters)),
                 0.0, 1.0);
  const std::string left = absl::StrFormat("step %d/%d ", progress.iteration, progress.train_iters);
  const std::string right =
      absl::StrFormat("%.0f%% | loss %.4g | %.0f tokens/s | ETA %s", share * 100, progress.loss,
                      progress.tokens_per_second, FormatTimeLeft(progress.time_left));
  // A line that reaches the last column wraps, and could not be drawn over.
  const int room = style.columns - 1 - static_cast<int>(left.size() + right.size());
  const int width = std::min(room - static_cast<int>(std::strlen("[] ")), kBarWidth);
  if (width >= kNarrowestBar)
    return absl::StrCat(left, "[", Bar(share, width, style.color), "] ", right);
  return absl::StrCat(left, right).substr(0, static_cast<size_t>(std::max(0, style.columns - 1)));
}

ProgressBar::ProgressBar(std::FILE* stream) : stream_(stream) {
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::strcmp(terminal, "dumb") == 0;
  const char* const no_color = std::getenv("NO_COLOR");
  enabled_ = !dumb && isatty(fileno(stream)) == 1;
  color_ = no_color == nullptr || *no_color == '\0';
}

void ProgressBar::Show(const Progress& progress) {
  if (!enabled_) return;
  const absl::Time now = SteadyNow();
  if (now - last_ < kShortestPause) return;
  last_ = now;
  absl::FPrintF(
      stream_, "%s%s", kEraseLine,
      FormatProgress(progress, {TerminalColumns(stream_, ProgressStyle().columns), color_}));
  std::fflush(stream_);
  drawn_ = true;
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  std::fputs(kEraseLine, stream_);
  std::fflush(stream_);
  drawn_ = false;
}

}  // namespace megatron
