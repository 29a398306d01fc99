// DeviceCalls: the work that the GPUs of a process have not finished yet, for the watchdog.
#ifndef MEGATRON_TRAIN_RANK_DEVICE_CALLS_H_
#define MEGATRON_TRAIN_RANK_DEVICE_CALLS_H_

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace megatron {

// The ranks set what describes their GPU's work, and the watchdog asks. Any thread may call.
class DeviceCalls {
 public:
  using Lines = std::function<std::vector<std::string>()>;

  // Null removes the rank's lines.
  void Set(int rank, Lines lines);
  std::vector<std::string> Of(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, Lines> lines_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_DEVICE_CALLS_H_
