#include "megatron/checkpoint/async_checkpoint_writer.h"

#include <utility>

#include "glog/logging.h"

namespace megatron {

AsyncCheckpointWriter::AsyncCheckpointWriter(SaveFunction save) : save_(std::move(save)) {}

AsyncCheckpointWriter::AsyncCheckpointWriter(FileSystem& fs, SaveOptions options)
    : AsyncCheckpointWriter(
          [&fs, options = std::move(options)](const CheckpointState& state,
                                              const std::function<void()>& state_is_read) {
            return SaveCheckpoint(fs, options, state, state_is_read);
          }) {}

AsyncCheckpointWriter::~AsyncCheckpointWriter() { Wait().IgnoreError(); }

void AsyncCheckpointWriter::Start(CheckpointState state) {
  CHECK(!in_progress()) << "the save before has not been waited for";
  state_ = std::move(state);
  read_ = false;
  thread_ = std::thread([this] { Run(); });
}

void AsyncCheckpointWriter::Run() {
  status_ = save_(state_, [this] { SetRead(); });
  SetRead();  // A save that failed early has not said so.
}

void AsyncCheckpointWriter::SetRead() {
  const std::lock_guard<std::mutex> lock(mutex_);
  read_ = true;
  changed_.notify_all();
}

void AsyncCheckpointWriter::WaitUntilRead() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return read_; });
}

bool AsyncCheckpointWriter::HasRead() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return read_;
}

absl::Status AsyncCheckpointWriter::Wait() {
  if (!in_progress()) return absl::OkStatus();
  thread_.join();
  return std::exchange(status_, absl::OkStatus());
}

}  // namespace megatron
