#include "megatron/train/metrics/rank_console.h"

#include <cstdio>

#include "glog/logging.h"

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

void RankConsole::LogError(const std::string& message) {
  if (prints_) LogOwnError(message);
}

void RankConsole::LogOwnError(const std::string& message) {
  const RankProgress::ExternalWait printing(&progress_);
  bar_.Clear();
  LOG(ERROR) << message;
}

void RankConsole::ShowProgress(const Progress& progress) {
  if (!prints_) return;
  const RankProgress::ExternalWait printing(&progress_);
  bar_.Show(progress);
}

}  // namespace megatron
