#include "megatron/comm/counted_communicator.h"

#include <utility>

#include "absl/strings/match.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/forwarding_communicator.h"

namespace megatron {
namespace {

class CountedCommunicator : public ForwardingCommunicator {
 public:
  CountedCommunicator(std::shared_ptr<Communicator> communicator, BytesSent* sent)
      : ForwardingCommunicator(std::move(communicator)), sent_(sent) {}

  void Run(const CollectiveCall& call, const Stream& stream) override {
    sent_->Add(name(), call.collective, OptimalBytesSent(call, size(), rank()));
    inner().Run(call, stream);
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return Counted(std::move(part), sent_);
  }

  BytesSent* const sent_;
};

}  // namespace

void BytesSent::Add(const std::string& group, Collective collective, int64_t bytes) {
  const absl::MutexLock lock(&mutex_);
  Count& count = counts_[{group, collective}];
  count.bytes += bytes;
  ++count.calls;
}

BytesSent::Count BytesSent::CountOf(const std::string& prefix, Collective collective) const {
  const absl::MutexLock lock(&mutex_);
  Count sum;
  for (const auto& [key, count] : counts_) {
    if (key.second != collective || !absl::StartsWith(key.first, prefix)) continue;
    sum.bytes += count.bytes;
    sum.calls += count.calls;
  }
  return sum;
}

int64_t BytesSent::Of(const std::string& prefix, Collective collective) const {
  return CountOf(prefix, collective).bytes;
}

int64_t BytesSent::CallsOf(const std::string& prefix, Collective collective) const {
  return CountOf(prefix, collective).calls;
}

int64_t BytesSent::Total() const {
  const absl::MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const auto& [key, count] : counts_) bytes += count.bytes;
  return bytes;
}

void BytesSent::Reset() {
  const absl::MutexLock lock(&mutex_);
  counts_.clear();
}

int64_t OptimalBytesSent(const CollectiveCall& call, int size, int rank) {
  if (call.compares_only) return 0;
  switch (call.collective) {
    case Collective::kAllReduce:
      return call.in.bytes() * 2 * (size - 1) / size;
    case Collective::kAllGather:
      return call.in.bytes() * (size - 1);
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return call.in.bytes() / size * (size - 1);
    case Collective::kAllToAllV: {
      const int64_t rows = call.in.dim(0);
      return rows == 0 ? 0 : call.in.bytes() / rows * (rows - call.send_counts[rank]);
    }
    case Collective::kBroadcast:
      return rank == call.root ? call.in.bytes() : 0;
    case Collective::kBarrier:
      return 0;
    case Collective::kExchange: {
      int64_t bytes = 0;
      for (const Transfer& transfer : call.sends) bytes += transfer.tensor.bytes();
      return bytes;
    }
  }
  return 0;
}

std::shared_ptr<Communicator> Counted(std::shared_ptr<Communicator> communicator, BytesSent* sent) {
  return std::make_shared<CountedCommunicator>(std::move(communicator), sent);
}

}  // namespace megatron
