#include "megatron/data/io/ordered_pipeline.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr std::chrono::milliseconds kTick(100);

class Runner {
 public:
  explicit Runner(const OrderedPipeline& pipeline)
      : pipeline_(pipeline), weights_(pipeline.slots), done_(pipeline.slots) {
    CHECK_GE(pipeline.workers, 1);
    CHECK_GE(pipeline.slots, 1u);
  }

  absl::Status Run() {
    std::vector<std::thread> threads;
    threads.emplace_back([this] { FetchAll(); });
    for (int i = 0; i < pipeline_.workers; ++i) threads.emplace_back([this] { WorkAll(); });
    absl::Status status = TakeAll();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    may_fetch_.notify_all();
    may_work_.notify_all();
    if (!status.ok()) pipeline_.stop_fetching();
    for (std::thread& thread : threads) thread.join();
    return status;
  }

 private:
  size_t Slot(int64_t item) const { return static_cast<size_t>(item) % pipeline_.slots; }

  bool MayFetch() const {
    const bool has_room = fetched_ - taken_ < static_cast<int64_t>(pipeline_.slots);
    return has_room && (weight_ < pipeline_.max_weight || fetched_ == taken_);
  }

  void FetchAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      may_fetch_.wait(lock, [this] { return stop_ || MayFetch(); });
      if (stop_) return;
      const size_t slot = Slot(fetched_);
      lock.unlock();
      const absl::StatusOr<int64_t> weight = pipeline_.fetch(slot);
      lock.lock();
      if (!weight.ok() || *weight == 0) {
        fetch_status_ = weight.status();
        all_fetched_ = true;
        may_take_.notify_one();
        return;
      }
      weights_[slot] = *weight;
      weight_ += *weight;
      done_[slot] = false;
      ++fetched_;
      may_work_.notify_one();
    }
  }

  void WorkAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      may_work_.wait(lock, [this] { return stop_ || started_ < fetched_; });
      if (stop_) return;
      const size_t slot = Slot(started_++);
      lock.unlock();
      pipeline_.work(slot);
      lock.lock();
      done_[slot] = true;
      may_take_.notify_one();
    }
  }

  absl::Status TakeAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      const auto can_go_on = [this] {
        return taken_ < fetched_ ? done_[Slot(taken_)] : all_fetched_;
      };
      const bool ready = may_take_.wait_for(lock, kTick, can_go_on);
      if (ready && taken_ == fetched_) return fetch_status_;
      lock.unlock();
      if (ready) {
        MEGATRON_RETURN_IF_ERROR(pipeline_.take(Slot(taken_)));
      }
      MEGATRON_RETURN_IF_ERROR(pipeline_.tick());
      lock.lock();
      if (!ready) continue;
      weight_ -= weights_[Slot(taken_++)];
      may_fetch_.notify_one();
    }
  }

  const OrderedPipeline& pipeline_;
  std::mutex mutex_;
  std::condition_variable may_fetch_, may_work_, may_take_;
  // Numbers of items that were fetched, given to a worker, and taken. Only the caller's thread
  // writes taken_.
  int64_t fetched_ = 0, started_ = 0, taken_ = 0;
  int64_t weight_ = 0;  // total weight of the items that are fetched but not taken
  std::vector<int64_t> weights_;
  std::vector<bool> done_;
  bool all_fetched_ = false;
  absl::Status fetch_status_;
  bool stop_ = false;
};

}  // namespace

absl::Status RunOrderedPipeline(const OrderedPipeline& pipeline) { return Runner(pipeline).Run(); }

}  // namespace megatron
