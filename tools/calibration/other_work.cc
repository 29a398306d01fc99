#include "tools/calibration/other_work.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

namespace megatron {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the seconds in which cores were not idle, stolen ones included.
double BusySeconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  file >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  return (user + nice + system + irq + soft + steal) / double(sysconf(_SC_CLK_TCK));
}

double Of(const timeval& time) { return double(time.tv_sec) + 1e-6 * double(time.tv_usec); }

double OwnSeconds() {
  double sum = 0;
  for (int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage = {};
    getrusage(who, &usage);
    sum += Of(usage.ru_utime) + Of(usage.ru_stime);
  }
  return sum;
}

}  // namespace

OtherWork::OtherWork() : start_(Now()), busy_(BusySeconds()), own_(OwnSeconds()) {}

double OtherWork::Share() const {
  const double cores = double(sysconf(_SC_NPROCESSORS_ONLN)) * (Now() - start_);
  if (cores <= 0) return 0;
  const double others = (BusySeconds() - busy_) - (OwnSeconds() - own_);
  return std::clamp(others / cores, 0.0, 1.0);
}

}  // namespace megatron
