#include "megatron/comm/overlap/comm_worker.h"

#include <utility>

#include "megatron/tensor/trace/trace.h"

namespace megatron {

CommWorker::CommWorker(const Stream& compute, const std::string& name)
    : stream_(Trace::FollowBeside(compute, Stream::Inline(), name)), thread_([this] { Work(); }) {}

CommWorker::~CommWorker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t CommWorker::Add(Job job) {
  int64_t number;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_ == removed_ + static_cast<int64_t>(jobs_.size())) {
      removed_ = done_;
      jobs_.clear();
    }
    jobs_.push_back(std::move(job));
    number = removed_ + static_cast<int64_t>(jobs_.size());
  }
  changed_.notify_all();
  return number;
}

void CommWorker::Wait(int64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
}

void CommWorker::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const auto waiting = [&] { return done_ < removed_ + static_cast<int64_t>(jobs_.size()); };
    changed_.wait(lock, [&] { return stop_ || waiting(); });
    if (!waiting()) return;
    const Job job = std::move(jobs_[done_ - removed_]);
    lock.unlock();
    job(stream_);
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace megatron
