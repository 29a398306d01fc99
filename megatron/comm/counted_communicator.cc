#include "megatron/comm/counted_communicator.h"

#include <vector>

#include "absl/strings/match.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"

namespace megatron {
namespace {

class CountedCommunicator : public Communicator {
 public:
  CountedCommunicator(std::shared_ptr<Communicator> communicator, BytesSent* sent)
      : communicator_(std::move(communicator)), sent_(sent) {}

  int size() const override { return communicator_->size(); }
  int rank() const override { return communicator_->rank(); }
  const std::string& name() const override { return communicator_->name(); }
  absl::Status status() const override { return communicator_->status(); }
  void Abort(const absl::Status& reason) override { communicator_->Abort(reason); }

  bool TakesTensorsOf(DeviceType type) const override {
    return communicator_->TakesTensorsOf(type);
  }

  void Run(const CollectiveCall& call, const Stream& stream) override {
    sent_->Add(name(), call.collective, OptimalBytesSent(call, size(), rank()));
    communicator_->Run(call, stream);
  }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) override {
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> part,
                              communicator_->Split(partition, name));
    return Counted(std::move(part), sent_);
  }

 private:
  const std::shared_ptr<Communicator> communicator_;
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
