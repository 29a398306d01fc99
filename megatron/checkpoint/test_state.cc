#include "megatron/checkpoint/test_state.h"

#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {

TestState::TestState(int64_t iteration, int64_t rows) {
  state_.run_id = kTestRunId;
  state_.iteration = iteration;
  state_.ints = {{"consumed_train_samples", iteration * 16}, {"skipped_iterations", -1}};
  state_.floats = {{"loss_scale", 65536.0},
                   {"best_loss", 0.1 / static_cast<double>(iteration + 1)}};
  state_.strings = {{"config", absl::StrCat("lr: 0.1 # \"quoted\"\n\xff", iteration)}};
  Add("decoder.weight", DType::kFloat32, {rows, 8});
  Add("optimizer/exp_avg/decoder.weight", DType::kFloat32, {rows, 2, 4});
  Add("decoder.bias", DType::kBFloat16, {5});
  Add("rng", DType::kUInt8, {3, 7});
  Add("scalar", DType::kInt64, Shape());
  Add("nothing", DType::kFloat32, {0, 4});
}

void TestState::Add(const std::string& name, DType dtype, const Shape& shape) {
  const size_t words = static_cast<size_t>(shape.numel() * SizeOf(dtype) + 7) / 8;
  std::mt19937_64 random(std::hash<std::string>()(name) + static_cast<uint64_t>(state_.iteration));
  std::vector<int64_t>& buffer = buffers_.emplace_back(words);
  for (int64_t& word : buffer) word = static_cast<int64_t>(random());
  ShardedTensor tensor;
  tensor.name = name;
  tensor.tensor = Tensor(buffer.data(), dtype, shape);
  tensor.global_shape = shape;
  tensor.offset = Shape(std::vector<int64_t>(static_cast<size_t>(shape.rank()), 0));
  state_.tensors.push_back(tensor);
}

CheckpointState TestState::ForRank(int rank, int world_size) const {
  CheckpointState state = state_;
  for (ShardedTensor& tensor : state.tensors) {
    if (tensor.global_shape.rank() < 2 || tensor.global_shape[0] < world_size) {
      tensor.replica = rank;
      continue;
    }
    const int64_t rows = tensor.global_shape[0];
    const int64_t begin = rows * rank / world_size;
    tensor.tensor = tensor.tensor.Slice(0, begin, rows * (rank + 1) / world_size);
    tensor.offset[0] = begin;
  }
  return state;
}

absl::Status TestState::Compare(const CheckpointReader& reader) const {
  return Compare(reader, reader.manifest());
}

absl::Status TestState::Compare(const CheckpointReader& reader, const Manifest& manifest) const {
  if (manifest.iteration != state_.iteration || manifest.run_id != state_.run_id ||
      manifest.ints != state_.ints || manifest.floats != state_.floats ||
      manifest.strings != state_.strings || manifest.tensors.size() != state_.tensors.size()) {
    return absl::InternalError("the values differ");
  }
  for (const ShardedTensor& expected : state_.tensors) {
    std::vector<int64_t> buffer(static_cast<size_t>(expected.tensor.bytes() + 7) / 8);
    ShardedTensor loaded = expected;
    loaded.tensor = Tensor(buffer.data(), expected.tensor.dtype(), expected.tensor.shape());
    MEGATRON_RETURN_IF_ERROR(reader.Load(loaded));
    const size_t bytes = static_cast<size_t>(expected.tensor.bytes());
    if (bytes > 0 && std::memcmp(buffer.data(), expected.tensor.raw(), bytes) != 0) {
      return absl::InternalError(absl::StrCat(expected.name, " differs"));
    }
  }
  return absl::OkStatus();
}

absl::Status ThreadAgreement::Agree(absl::Status status) {
  std::unique_lock<std::mutex> lock(mutex_);
  first_error_.Update(status);
  const int64_t round = round_;
  if (++arrived_ == threads_) {
    result_ = std::exchange(first_error_, absl::OkStatus());
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return round_ != round; });
  return result_;
}

void RunRanks(int world_size, const std::function<void(int rank)>& run) {
  std::vector<std::thread> threads;
  for (int rank = 1; rank < world_size; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace megatron
