// A lane that is a thread: jobs are done by it while the caller computes, and waiting for one is
// waiting on the host. What it wrote is visible then.
#ifndef MEGATRON_OPTIM_COMM_WORKER_H_
#define MEGATRON_OPTIM_COMM_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "megatron/optim/comm_lane.h"

namespace megatron {

class CommWorker : public CommLane {
 public:
  explicit CommWorker(std::function<void(const Job&)> run);
  ~CommWorker() override;
  CommWorker(const CommWorker&) = delete;
  CommWorker& operator=(const CommWorker&) = delete;

  int64_t Add(const Job& job) override;
  void Wait(int64_t number) override;

 private:
  void Work();

  const std::function<void(const Job&)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Job> jobs_;  // those not forgotten; job `number` is at number - 1 - forgotten_
  int64_t forgotten_ = 0, done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMM_WORKER_H_
