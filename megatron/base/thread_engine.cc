#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "megatron/base/block_engine.h"

namespace megatron {
namespace {

class ThreadEngine : public BlockEngine {
 public:
  ThreadEngine(int fd, int capacity) : fd_(fd) {
    for (int i = 0; i < capacity; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~ThreadEngine() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    started_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string name() const override { return "threads"; }
  int capacity() const override { return static_cast<int>(threads_.size()); }

  void Start(const Block& block) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(block);
    }
    started_.notify_one();
  }

  BlockResult Wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return !results_.empty(); });
    const BlockResult result = results_.front();
    results_.pop_front();
    return result;
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      started_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Block block = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const ssize_t moved = block.is_write ? pwrite(fd_, block.memory, block.bytes, block.offset)
                                           : pread(fd_, block.memory, block.bytes, block.offset);
      const BlockResult result = {block.tag, moved < 0 ? -errno : moved};
      lock.lock();
      results_.push_back(result);
      ended_.notify_one();
    }
  }

  const int fd_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable started_, ended_;
  std::deque<Block> waiting_;
  std::deque<BlockResult> results_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockEngine> MakeThreadEngine(int fd, int capacity) {
  return std::make_unique<ThreadEngine>(fd, capacity);
}

}  // namespace megatron
