// Speed of what one context-parallel rank of several computes in attention, without waiting for any
// message: with C ranks the best is 1/C of what one rank alone does.

#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/layers/attention_core.h"
#include "megatron/layers/context_slice.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

using ::megatron::ops::HostTensor;

constexpr int64_t kTokens = 2048, kHeads = 4, kHeadSize = 64;

// A rank whose messages arrive at once, with whatever is in the buffer.
class ImpatientCommunicator : public Communicator {
 public:
  ImpatientCommunicator(int size, int rank) : size_(size), rank_(rank) {}
  int size() const override { return size_; }
  int rank() const override { return rank_; }
  const std::string& name() const override { return name_; }
  void Run(const CollectiveCall&, const Stream&) override {}
  absl::StatusOr<std::shared_ptr<Communicator>> Split(const std::vector<std::vector<int>>&,
                                                      const std::string&) override {
    return absl::UnimplementedError("a rank alone");
  }
  absl::Status status() const override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}

 private:
  const int size_, rank_;
  const std::string name_ = "impatient";
};

// One sample of kTokens tokens.
struct Sample {
  HostTensor sample{{kTokens}, DType::kInt64}, position{{kTokens}, DType::kInt32},
      cu_seqlens{{2}, DType::kInt32};
  MicroBatch batch;

  Sample() {
    cu_seqlens.Set(1, kTokens);
    batch.tokens_T = batch.sample_position_T = position;
    batch.sample_T = sample;
    batch.cu_seqlens = cu_seqlens;
    batch.max_seqlen = kTokens;
  }
};

void BM_ForwardAndBackwardOfOneRank(benchmark::State& state) {
  const int size = static_cast<int>(state.range(0)), rank = static_cast<int>(state.range(1));
  const auto kind = static_cast<ContextParallel>(state.range(2));
  const Sample sample;
  TransformerOptions transformer;
  transformer.context_parallel = kind;
  transformer.context_team_size = 2;
  const ContextShard shard = {size, rank, kTokens, transformer.TeamSize(size)};
  const Buffer memory({}, ContextSliceBytes({kTokens}, shard), "slice", nullptr);
  MicroBatch batch = sample.batch;
  if (size > 1) {
    batch = PlaceContextSlice(sample.batch, shard, memory, 0);
    FillContextSlice(sample.batch, shard, batch);
  }
  const Shape q_shape{kTokens / size, kHeads, 1, kHeadSize};
  const Shape k_shape{kTokens / size, kHeads, kHeadSize};
  const HostTensor q = HostTensor::Normal(q_shape, DType::kFloat32, 1),
                   k = HostTensor::Normal(k_shape, DType::kFloat32, 2),
                   v = HostTensor::Normal(k_shape, DType::kFloat32, 3),
                   dout = HostTensor::Normal(q_shape, DType::kFloat32, 4);
  const HostTensor out(q_shape, DType::kFloat32), dq(q_shape, DType::kFloat32),
      dk(k_shape, DType::kFloat32), dv(k_shape, DType::kFloat32);
  ThreadPool pool(1);
  Arena saved({}, 1 << 26, "saved", nullptr), scratch({}, 1 << 26, "scratch", nullptr);
  LayerContext ctx{ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, &batch};
  if (size > 1)
    ctx.context_group = ProcessGroup(std::make_shared<ImpatientCommunicator>(size, rank));
  AttentionCoreOptions options;
  options.head_size = kHeadSize;
  options.gathers_keys = kind == ContextParallel::kGather;
  const AttentionCore core(options);
  for (auto _ : state) {
    saved.Reset();
    AttentionCore::Saved kept;
    core.Forward(ctx, &saved, {q, k, v}, out, &kept);
    core.Backward(ctx, {q, k, v}, out, dout, {dq, dk, dv}, kept);
  }
  constexpr const char* kKinds[] = {"ring", "all-to-all", "gather", "hierarchical"};
  state.SetLabel(size == 1 ? "alone" : kKinds[state.range(2)]);
}
BENCHMARK(BM_ForwardAndBackwardOfOneRank)
    ->ArgNames({"ranks", "rank", "kind"})
    ->Args({1, 0, 0})
    ->Args({4, 0, 0})
    ->Args({4, 3, 0})
    ->Args({4, 0, 1})
    ->Args({4, 0, 2})
    ->Args({4, 0, 3})
    ->UseRealTime();

}  // namespace
}  // namespace megatron
