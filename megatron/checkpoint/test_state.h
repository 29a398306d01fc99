// A small state to save and to compare with, for the tests of this room.
#ifndef MEGATRON_CHECKPOINT_TEST_STATE_H_
#define MEGATRON_CHECKPOINT_TEST_STATE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/checkpoint_state.h"

namespace megatron {

inline constexpr char kTestRunId[] = "0123456789abcdef";

// The bytes of several tensors of several types, a function of the iteration alone.
class TestState {
 public:
  // `rows` sets the size: about 72 bytes each.
  explicit TestState(int64_t iteration, int64_t rows = 6);
  TestState(const TestState&) = delete;
  TestState& operator=(const TestState&) = delete;

  // Views into this object, as one rank of `world_size` saves them: the large tensors are cut by
  // rows, the others are replicated.
  CheckpointState ForRank(int rank, int world_size) const;
  CheckpointState Whole() const { return ForRank(0, 1); }

  // Checks that the checkpoint holds exactly this state.
  absl::Status Compare(const CheckpointReader& reader) const;
  // The same, with the values of another manifest in place of the reader's.
  absl::Status Compare(const CheckpointReader& reader, const Manifest& manifest) const;

 private:
  void Add(const std::string& name, DType dtype, const Shape& shape);

  CheckpointState state_;
  std::deque<std::vector<int64_t>> buffers_;  // int64_t for their alignment
};

// Lets the threads that stand for ranks agree on a status, as SaveOptions::agree wants.
class ThreadAgreement {
 public:
  explicit ThreadAgreement(int threads) : threads_(threads) {}
  absl::Status Agree(absl::Status status);

 private:
  const int threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int64_t round_ = 0;
  absl::Status first_error_, result_;
};

// Calls `run` on one thread per rank, on this one for rank 0.
void RunRanks(int world_size, const std::function<void(int rank)>& run);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_TEST_STATE_H_
