#include "megatron/comm/thread/thread_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/call_match.h"
#include "megatron/comm/collective_routes.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/host_reduce.h"
#include "megatron/comm/thread/thread_group.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

// A share below this many bytes is not worth waking a thread pool.
constexpr int64_t kParallelBytes = 1 << 18;

// One rank's view of a collective call: every rank's arguments, and its own share of the work. All
// ranks check the same things in the same order and so get the same answer.
class CollectiveWork {
 public:
  CollectiveWork(const ThreadGroup& group, int rank, const Stream& stream)
      : group_(group), rank_(rank), size_(group.size()), stream_(stream) {}

  absl::Status CheckCalls() const {
    if (CallsMatch(size_, [this](int rank) -> const CollectiveCall& { return call(rank); })) {
      return absl::OkStatus();
    }
    return CallsDiffer({group_.name(), group_.calls(rank_), size_,
                        [this](int rank) { return group_.Describe(rank); },
                        [this](int rank) { return call(rank).Describe(); }});
  }

  void DoShare() const {
    switch (call(rank_).collective) {
      case Collective::kAllReduce:
        return AllReduce();
      case Collective::kAllGather:
        return AllGather();
      case Collective::kReduceScatter:
        return ReduceScatter();
      case Collective::kAllToAll:
        return AllToAll();
      case Collective::kAllToAllV:
        return AllToAllV();
      case Collective::kBroadcast:
        return Broadcast();
      case Collective::kBarrier:
        return;
      case Collective::kExchange:
        break;
    }
    LOG(FATAL) << call(rank_).Describe() << " is not a collective call";
  }

 private:
  const CollectiveCall& call(int rank) const { return group_.call(rank); }

  // Each rank reduces its part of all buffers and writes it to all of them.
  void AllReduce() const {
    constexpr int64_t kAlignment = 64;  // elements: ranks do not share cache lines
    const int64_t count = call(rank_).in.numel();
    const int64_t part = ((count + size_ - 1) / size_ + kAlignment - 1) / kAlignment * kAlignment;
    absl::InlinedVector<const void*, 16> inputs;
    absl::InlinedVector<void*, 16> outputs;
    for (int peer = 0; peer < size_; ++peer) {
      inputs.push_back(call(peer).in.raw());
      outputs.push_back(call(peer).in.raw());
    }
    const int64_t begin = std::min(count, part * rank_);
    Reduce(inputs, std::min(count, begin + part) - begin, begin, absl::MakeSpan(outputs));
  }

  void ReduceScatter() const {
    const Tensor& out = call(rank_).out;
    absl::InlinedVector<const void*, 16> inputs;
    for (int peer = 0; peer < size_; ++peer) {
      inputs.push_back(static_cast<const char*>(call(peer).in.raw()) + rank_ * out.bytes());
    }
    void* const output = out.raw();
    Reduce(inputs, out.numel(), 0, absl::MakeSpan(&output, 1));
  }

  void AllGather() const {
    const int64_t bytes = call(rank_).in.bytes();
    for (int peer = 0; peer < size_; ++peer) {
      Copy(call(peer).in.raw(), 0, call(rank_).out.raw(), peer * bytes, bytes);
    }
  }

  void AllToAll() const {
    const int64_t bytes = call(rank_).in.bytes() / size_;
    for (int peer = 0; peer < size_; ++peer) {
      Copy(call(peer).in.raw(), rank_ * bytes, call(rank_).out.raw(), peer * bytes, bytes);
    }
  }

  void AllToAllV() const {
    const Tensor& out = call(rank_).out;
    int64_t row = SizeOf(out.dtype());
    for (int d = 1; d < out.rank(); ++d) row *= out.dim(d);
    int64_t to = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const absl::Span<const int64_t> counts = call(peer).send_counts;
      const int64_t from = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
      Copy(call(peer).in.raw(), from * row, out.raw(), to * row, counts[rank_] * row);
      to += counts[rank_];
    }
  }

  void Broadcast() const {
    const CollectiveCall& mine = call(rank_);
    Copy(call(mine.root).in.raw(), 0, mine.in.raw(), 0, mine.in.bytes());
  }

  // Reduces `count` elements from `begin` on.
  void Reduce(absl::Span<const void* const> inputs, int64_t count, int64_t begin,
              absl::Span<void* const> outputs) const {
    const CollectiveCall& mine = call(rank_);
    // Only the tree has an order of its own.
    std::vector<PartialSumStep> steps;
    if (mine.algorithm == CollectiveAlgorithm::kTree) steps = SumSteps(mine.algorithm, size_);
    Divide(count, SizeOf(mine.in.dtype()), [&](int64_t from, int64_t to) {
      if (steps.empty()) {
        ReduceOnHost(mine.in.dtype(), mine.reduce, inputs, begin + from, begin + to, outputs);
      } else {
        ReduceOnHost(mine.in.dtype(), mine.reduce, inputs, steps, begin + from, begin + to,
                     outputs);
      }
    });
  }

  void Copy(const void* from, int64_t from_offset, void* to, int64_t to_offset,
            int64_t bytes) const {
    const char* const source = static_cast<const char*>(from) + from_offset;
    char* const target = static_cast<char*>(to) + to_offset;
    if (source == target || bytes == 0) return;
    Divide(bytes, 1, [&](int64_t begin, int64_t end) {
      std::memcpy(target + begin, source + begin, end - begin);
    });
  }

  // Divides [0, count) among the threads of the stream's pool.
  void Divide(int64_t count, int64_t element_bytes,
              absl::FunctionRef<void(int64_t, int64_t)> body) const {
    if (count == 0) return;
    if (count * element_bytes < kParallelBytes) return body(0, count);
    stream_.pool()->ParallelFor(count, body);
  }

  const ThreadGroup& group_;
  const int rank_, size_;
  const Stream& stream_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int size() const override { return group_->size(); }
  int rank() const override { return rank_; }
  const std::string& name() const override { return group_->name(); }
  absl::Status status() const override { return group_->world().status(); }
  void Abort(const absl::Status& reason) override { group_->world().Fail(reason); }

  void Run(const CollectiveCall& call, const Stream& stream) override {
    CHECK(stream.device().type == DeviceType::kCpu) << stream.device();
    if (call.collective == Collective::kExchange) {
      group_->Exchange(rank_, call.sends, call.receives);
      return;
    }
    if (!group_->Arrive(rank_, call)) return;
    const CollectiveWork work(*group_, rank_, stream);
    const absl::Status matching = work.CheckCalls();
    if (matching.ok() && !call.compares_only) work.DoShare();
    group_->Depart(rank_);
    if (!matching.ok()) group_->world().Fail(matching);
  }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) override {
    CheckPartition(partition, size());
    if (!status().ok()) return status();
    const auto* groups = group_->SplitInto(rank_, partition, name);
    if (groups == nullptr) return status();
    for (size_t i = 0; i < partition.size(); ++i) {
      const auto found = std::find(partition[i].begin(), partition[i].end(), rank_);
      if (found == partition[i].end()) continue;
      return std::make_shared<ThreadCommunicator>((*groups)[i],
                                                  static_cast<int>(found - partition[i].begin()));
    }
    return absl::InternalError("unreachable: the partition was checked");
  }

 private:
  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
};

}  // namespace

ThreadWorld::ThreadWorld(int size, const ThreadWorldOptions& options)
    : state_(std::make_shared<ThreadWorldState>(size, options.deadline)) {
  CHECK_GE(size, 1);
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto group = std::make_shared<ThreadGroup>("world", ranks, state_);
  state_->Register(group);
  for (int rank : ranks) {
    communicators_.push_back(std::make_shared<ThreadCommunicator>(group, rank));
  }
}

int ThreadWorld::size() const { return state_->size(); }

std::shared_ptr<Communicator> ThreadWorld::communicator(int rank) const {
  CHECK(rank >= 0 && rank < size()) << rank << " of " << size();
  return communicators_[rank];
}

void ThreadWorld::Leave(int rank) { state_->Leave(rank); }
void ThreadWorld::Abort(const absl::Status& reason) { state_->Fail(reason); }
void ThreadWorld::SetFailureHook(FailureHook hook) { state_->SetFailureHook(std::move(hook)); }

absl::Duration ThreadWorld::CallersProcessorTime(int rank) const {
  return state_->CallersProcessorTime(rank);
}

bool ThreadWorld::InCall(int rank) const { return state_->InCall(rank); }
bool ThreadWorld::IsAwaited(int rank) const { return state_->IsAwaited(rank); }
std::vector<WaitingCall> ThreadWorld::WaitingCalls(int rank) const {
  return state_->WaitingCalls(rank);
}

absl::Status ThreadWorld::Overdue() const { return state_->Overdue(); }

std::vector<std::string> ThreadWorld::CallsAtFailure(int rank) const {
  return state_->CallsAtFailure(rank);
}

std::optional<std::map<int, std::string>> ThreadWorld::GatherStates(std::string state, absl::Time) {
  return std::map<int, std::string>{{0, std::move(state)}};
}

absl::Status ThreadWorld::status() const { return state_->status(); }

}  // namespace megatron
