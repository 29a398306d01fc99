#include "megatron/train/metrics/rank_console.h"

#include <cstdio>

namespace megatron {

void RankConsole::Print(const std::string& text) {
  if (prints_) PrintOwn(text);
}

void RankConsole::PrintOwn(const std::string& text) {
  const RankProgress::ExternalWait printing(&progress_);
  bar_.Clear();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void RankConsole::ShowProgress(const Progress& progress) {
  if (!prints_) return;
  const RankProgress::ExternalWait printing(&progress_);
  bar_.Show(progress);
}

}  // namespace megatron
