#include "megatron/comm/tcp/tcp_exchange.h"

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

std::string ToText(DType dtype, const Shape& shape) {
  return absl::StrCat(Name(dtype), "[", absl::StrJoin(shape, ", "), "]");
}

// Each message is offered to its receiver, which accepts it when it arrives to receive it. Small
// messages are in the offer, others follow the acceptance.
class TcpExchange {
 public:
  TcpExchange(TcpGroup* group, const CollectiveCall& call)
      : group_(*group),
        call_(call),
        deadline_(SteadyNow() + group->deadline),
        open_(group->size()) {}

  absl::Status Run() {
    const auto describe = [this] { return group_.WasIn(absl::StrCat("an ", call_.Describe())); };
    const auto describe_awaited = [this] { return DescribeAwaited(); };
    const auto awaited = [this] { return group_.WorldRanksOf(OpenRanks()); };
    const CallActivity activity(group_.mesh->activities(), {describe, describe_awaited, awaited});
    for (const Transfer& send : call_.sends) Offer(send);
    for (const Transfer& receive : call_.receives) {
      const uint64_t number = ++group_.received[receive.peer];
      awaited_.push_back(group_.Key(FrameKind::kOffer, receive.peer, number));
      ++open_[receive.peer];
      transfers_.push_back(&receive);
    }
    while (!awaited_.empty()) {
      absl::StatusOr<TcpMesh::Received> received = group_.mesh->ReceiveAny(awaited_, deadline_);
      if (!received.ok()) return Failed(received.status(), AwaitedRanks());
      const MessageKey key = awaited_[received->index];
      const Transfer& transfer = *transfers_[received->index];
      awaited_.erase(awaited_.begin() + received->index);
      transfers_.erase(transfers_.begin() + received->index);
      --open_[transfer.peer];
      if (key.kind == FrameKind::kOffer) {
        MEGATRON_RETURN_IF_ERROR(Accept(transfer, key.sequence, received->message));
      } else if (transfer.tensor.bytes() > kTcpEagerBytes) {
        group_.mesh->SendData(group_.Key(FrameKind::kData, transfer.peer, key.sequence, kTag),
                              static_cast<const char*>(transfer.tensor.raw()),
                              transfer.tensor.bytes(), &moving_);
      }
    }
    const absl::Status status = group_.mesh->Await(&moving_, deadline_);
    if (status.ok()) return status;
    std::vector<int> missing;
    for (int peer : group_.mesh->AwaitedPeers(&moving_)) missing.push_back(group_.RankOf(peer));
    return Failed(status, missing);
  }

 private:
  // Exchanges and calls number their data apart.
  static constexpr uint32_t kTag = 0xffffffff;

  void Offer(const Transfer& send) {
    const uint64_t number = ++group_.sent[send.peer];
    std::string data;
    const int64_t bytes = send.tensor.bytes();
    if (bytes > 0 && bytes <= kTcpEagerBytes) {
      data.assign(static_cast<const char*>(send.tensor.raw()), bytes);
    }
    group_.mesh->Send(group_.Key(FrameKind::kOffer, send.peer, number),
                      OfferMessage::Encode(send.tensor, data));
    awaited_.push_back(group_.Key(FrameKind::kAccept, send.peer, number));
    ++open_[send.peer];
    transfers_.push_back(&send);
  }

  absl::Status Accept(const Transfer& receive, uint64_t number, const std::string& message) {
    MEGATRON_ASSIGN_OR_RETURN(const OfferMessage offer, OfferMessage::Decode(message),
                              _ << "from " << group_.Describe(receive.peer));
    const Tensor& tensor = receive.tensor;
    const int64_t bytes = tensor.bytes();
    if (offer.dtype != tensor.dtype() || offer.shape != tensor.shape() ||
        (bytes <= kTcpEagerBytes && static_cast<int64_t>(offer.data.size()) != bytes)) {
      return absl::FailedPreconditionError(absl::StrCat(
          group_.Describe(group_.rank), ", exchange: ", group_.Describe(receive.peer), " sends ",
          ToText(offer.dtype, offer.shape), " but ", group_.Describe(group_.rank), " receives ",
          ToText(tensor.dtype(), tensor.shape())));
    }
    if (bytes > kTcpEagerBytes) {
      group_.mesh->ReceiveData(group_.Key(FrameKind::kData, receive.peer, number, kTag),
                               static_cast<char*>(tensor.raw()), bytes, &moving_);
    } else if (bytes > 0) {
      std::memcpy(tensor.raw(), offer.data.data(), bytes);
    }
    group_.mesh->Send(group_.Key(FrameKind::kAccept, receive.peer, number), "");
    return absl::OkStatus();
  }

  std::vector<int> AwaitedRanks() const {
    std::vector<int> ranks;
    for (const Transfer* transfer : transfers_) ranks.push_back(transfer->peer);
    return ranks;
  }

  // Returns the ranks that are still awaited; other threads call it.
  std::vector<int> OpenRanks() const {
    std::vector<int> ranks;
    for (int peer = 0; peer < group_.size(); ++peer) {
      if (open_[peer].load() > 0) ranks.push_back(peer);
    }
    return ranks;
  }

  std::string DescribeAwaited() const {
    const std::vector<int> ranks = OpenRanks();
    if (ranks.empty()) return ", which all ranks have entered";
    return absl::StrCat("; awaited: ", group_.DescribeAll(ranks));
  }

  absl::Status Failed(const absl::Status& why, const std::vector<int>& missing) const {
    const absl::Status status = group_.WaitFailed("exchange", why, missing);
    group_.mesh->Fail(status);  // while this exchange is there to say what it awaited
    return status;
  }

  TcpGroup& group_;
  const CollectiveCall& call_;
  const absl::Time deadline_;
  TcpOperation moving_;
  // The messages that this rank waits for, and the transfer of each.
  std::vector<MessageKey> awaited_;
  std::vector<const Transfer*> transfers_;
  std::vector<std::atomic<int>> open_;  // number of awaited messages, by peer
};

}  // namespace

absl::Status RunTcpExchange(TcpGroup* group, const CollectiveCall& call) {
  return TcpExchange(group, call).Run();
}

}  // namespace megatron
