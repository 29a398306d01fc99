#include "megatron/comm/recorded_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "megatron/base/crc32c.h"
#include "megatron/comm/forwarding_communicator.h"

namespace megatron {
namespace {

uint32_t Extend(uint32_t crc, const Tensor& tensor) {
  if (tensor.empty() || tensor.numel() == 0) return crc;
  return ExtendCrc32c(crc, absl::string_view(static_cast<const char*>(tensor.raw()),
                                             static_cast<size_t>(tensor.bytes())));
}

uint32_t GivenOf(const CollectiveCall& call, int rank) {
  switch (call.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kBroadcast:
      return rank == call.root ? Extend(0, call.in) : 0;
    case Collective::kExchange: {
      uint32_t crc = 0;
      for (const Transfer& transfer : call.sends) crc = Extend(crc, transfer.tensor);
      return crc;
    }
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      return Extend(0, call.in);
  }
  return 0;
}

uint32_t GotBy(const CollectiveCall& call, int rank) {
  switch (call.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kBroadcast:
      return rank == call.root ? 0 : Extend(0, call.in);
    case Collective::kExchange: {
      uint32_t crc = 0;
      for (const Transfer& transfer : call.receives) crc = Extend(crc, transfer.tensor);
      return crc;
    }
    case Collective::kAllReduce:
      return Extend(0, call.in);
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      return Extend(0, call.out);
  }
  return 0;
}

class RecordedCommunicator : public ForwardingCommunicator {
 public:
  RecordedCommunicator(std::shared_ptr<Communicator> communicator, CallRecord* record)
      : ForwardingCommunicator(std::move(communicator)), record_(record) {}

  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (!record_->is_on() || call.compares_only) return inner().Run(call, stream);
    RecordedCall recorded;
    recorded.group = name();
    recorded.call = call.Describe();
    recorded.given = GivenOf(call, rank());
    recorded.began = record_->Now();
    inner().Run(call, stream);
    recorded.ended = record_->Now();
    recorded.got = GotBy(call, rank());
    record_->Add(std::move(recorded));
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return Recorded(std::move(part), record_);
  }

  CallRecord* const record_;
};

}  // namespace

void CallRecord::Start() {
  const absl::MutexLock lock(&mutex_);
  calls_.clear();
  is_on_ = true;
}

std::vector<RecordedCall> CallRecord::Stop() {
  is_on_ = false;
  const absl::MutexLock lock(&mutex_);
  std::vector<RecordedCall> calls = std::exchange(calls_, {});
  // Each group's calls are in order; threads may have added those of several groups in any.
  std::stable_sort(calls.begin(), calls.end(),
                   [](const RecordedCall& a, const RecordedCall& b) { return a.group < b.group; });
  return calls;
}

void CallRecord::Add(RecordedCall call) {
  const absl::MutexLock lock(&mutex_);
  calls_.push_back(std::move(call));
}

std::shared_ptr<Communicator> Recorded(std::shared_ptr<Communicator> communicator,
                                       CallRecord* record) {
  return std::make_shared<RecordedCommunicator>(std::move(communicator), record);
}

}  // namespace megatron
