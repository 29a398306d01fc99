// A lane on a thread, which runs jobs while the caller computes. Wait blocks the calling thread;
// after it the caller sees what the job wrote.
#ifndef MEGATRON_COMM_OVERLAP_COMM_WORKER_H_
#define MEGATRON_COMM_OVERLAP_COMM_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/overlap/comm_lane.h"

namespace megatron {

class CommWorker : public CommLane {
 public:
  // Jobs get a stream of the thread alone, which is traced beside `compute`. `name` is for the
  // reader of a trace.
  CommWorker(const Stream& compute, const std::string& name);
  ~CommWorker() override;
  CommWorker(const CommWorker&) = delete;
  CommWorker& operator=(const CommWorker&) = delete;

  int64_t Add(Job job) override;
  void Wait(int64_t number) override;

 private:
  void Work();

  const Stream stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Job> jobs_;  // job `number` is at index number - 1 - removed_
  int64_t removed_ = 0;    // number of jobs that were removed from jobs_ after they were done
  int64_t done_ = 0;       // number of jobs that are done
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_OVERLAP_COMM_WORKER_H_
