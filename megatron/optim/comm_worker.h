// A thread that does a rank's overlapped communication, one job after the other in the order given.
//
// With the same order on every rank, and groups that nobody else uses, ranks can wait for each
// other's jobs without waiting in a circle.
#ifndef MEGATRON_OPTIM_COMM_WORKER_H_
#define MEGATRON_OPTIM_COMM_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace megatron {

class CommWorker {
 public:
  struct Job {
    int kind = 0, block = 0;  // what they mean is the owner's matter
  };

  explicit CommWorker(std::function<void(const Job&)> run);
  // Does what was given, then ends.
  ~CommWorker();
  CommWorker(const CommWorker&) = delete;
  CommWorker& operator=(const CommWorker&) = delete;

  // Returns the job's number, counted from 1.
  int64_t Add(const Job& job);
  // Returns when the job of this number is done; 0: at once. What it wrote is visible then.
  void Wait(int64_t number);

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
