#include "megatron/comm/watch/process_activity.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace megatron {
namespace {

// proc(5): /proc/PID/stat.
struct Stat {
  char state = 0;
  pid_t group = 0;
  int64_t ticks = 0;
};

Stat ReadStat(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string text;
  std::getline(file, text);                 // a process that is gone by now has none
  const size_t name_end = text.rfind(')');  // the name may hold anything
  Stat stat;
  if (name_end == std::string::npos) return stat;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  fields >> stat.state >> skipped >> stat.group;
  for (int field = 6; field < 14; ++field) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  stat.ticks = user + system;
  return stat;
}

bool IsStopState(char state) { return state == 'T' || state == 't'; }

}  // namespace

ProcessActivity ActivityOfGroup(pid_t process_group) {
  ProcessActivity activity;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    if (!std::isdigit(entry->path().filename().string()[0])) continue;
    const Stat stat = ReadStat(entry->path());
    if (stat.group != process_group) continue;
    activity.ticks += stat.ticks;
    activity.waits_for_disk |= stat.state == 'D';
    activity.stopped |= IsStopState(stat.state);
  }
  return activity;
}

bool IsStopped(pid_t process) {
  return IsStopState(ReadStat(std::filesystem::path("/proc") / std::to_string(process)).state);
}

}  // namespace megatron
