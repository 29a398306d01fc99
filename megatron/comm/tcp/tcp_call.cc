#include "megatron/comm/tcp/tcp_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/call_match.h"
#include "megatron/comm/host_reduce.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

constexpr int64_t kSegmentBytes = 1 << 19;
constexpr int64_t kAlignment = 64;  // bytes, of pieces in scratch memory
// Below this many bytes a share is not worth a thread pool's wake-up.
constexpr int64_t kParallelBytes = 1 << 18;

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kAlignment); }

}  // namespace

TcpCall::TcpCall(TcpGroup* group, const CollectiveCall& call, std::string split,
                 const Stream& stream)
    : group_(*group),
      call_(call),
      split_(std::move(split)),
      stream_(stream),
      rank_(group->rank),
      size_(group->size()),
      number_(group->calls),
      element_(call.in.empty() ? 0 : SizeOf(call.in.dtype())),
      send_(size_),
      receive_(size_),
      messages_(size_),
      arrived_(size_) {}

absl::Status TcpCall::Run() {
  const auto describe = [this] { return group_.WasIn(Describe()); };
  const auto describe_awaited = [this] { return DescribeAwaited(); };
  const auto awaited = [this] { return group_.WorldRanksOf(Awaited()); };
  const CallActivity activity(group_.mesh->activities(), {describe, describe_awaited, awaited});
  if (moves_data() && call_.algorithm != CollectiveAlgorithm::kMesh) {
    routed_.emplace(&group_, call_, stream_);
  }
  PlanDirect();
  MEGATRON_RETURN_IF_ERROR(ExchangeCalls());
  if (!moves_data()) return absl::OkStatus();
  if (routed_.has_value()) {
    return routed_->Run([this](TcpOperation* operation) { return Await(operation); });
  }
  if (is_small_reduction()) {
    ReduceSmall();
    return absl::OkStatus();
  }
  if (reduces()) return ReduceLarge();
  if (spreads_broadcast()) return SpreadBroadcast();
  Unpack();
  MoveDirect();
  CopyOwn();
  return Await(&moving_);
}

bool TcpCall::moves_data() const { return split_.empty() && !call_.compares_only; }

bool TcpCall::reduces() const {
  return moves_data() && (call_.collective == Collective::kAllReduce ||
                          call_.collective == Collective::kReduceScatter);
}

bool TcpCall::is_small_reduction() const {
  const Tensor& moved = call_.collective == Collective::kAllReduce ? call_.in : call_.out;
  return !routed_.has_value() && reduces() && moved.bytes() <= kTcpEagerBytes;
}

// The root sends all of it itself to one other rank, or if there is little data.
bool TcpCall::spreads_broadcast() const {
  return !routed_.has_value() && moves_data() && call_.collective == Collective::kBroadcast &&
         size_ > 2 && call_.in.bytes() > kTcpEagerBytes;
}

void TcpCall::PlanDirect() {
  if (!moves_data() || routed_.has_value()) return;
  char* const in = static_cast<char*>(call_.in.empty() ? nullptr : call_.in.raw());
  char* const out = static_cast<char*>(call_.out.empty() ? nullptr : call_.out.raw());
  switch (call_.collective) {
    case Collective::kAllGather: {
      const int64_t bytes = call_.in.bytes();
      for (int peer = 0; peer < size_; ++peer) {
        send_[peer] = {in, bytes};
        receive_[peer] = {out + peer * bytes, bytes};
      }
      return;
    }
    case Collective::kAllToAll: {
      const int64_t bytes = call_.in.bytes() / size_;
      for (int peer = 0; peer < size_; ++peer) {
        send_[peer] = {in + peer * bytes, bytes};
        receive_[peer] = {out + peer * bytes, bytes};
      }
      return;
    }
    case Collective::kAllToAllV:
      return PlanAllToAllV();
    case Collective::kBroadcast:
      if (spreads_broadcast()) return;
      if (rank_ == call_.root) {
        ForPeers([&](int peer) { send_[peer] = {in, call_.in.bytes()}; });
      } else {
        receive_[call_.root] = {in, call_.in.bytes()};
      }
      return;
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kBarrier:
    case Collective::kExchange:
      return;
  }
}

void TcpCall::PlanAllToAllV() {
  int64_t row = element_;
  for (int d = 1; d < call_.in.rank(); ++d) row *= call_.in.dim(d);
  char* from = static_cast<char*>(call_.in.raw());
  char* to = static_cast<char*>(call_.out.raw());
  for (int peer = 0; peer < size_; ++peer) {
    send_[peer] = {from, call_.send_counts[peer] * row};
    receive_[peer] = {to, call_.receive_counts[peer] * row};
    from += send_[peer].bytes;
    to += receive_[peer].bytes;
  }
}

// All ranks tell all others what they call, and compare. What may arrive right after is expected
// before this rank says that it is there.
absl::Status TcpCall::ExchangeCalls() {
  if (routed_.has_value()) {
    routed_->Expect();
  } else if (reduces() && !is_small_reduction()) {
    const int64_t longest = Share(0).count();
    segment_elements_ = kSegmentBytes / element_;
    segments_ = (longest + segment_elements_ - 1) / segment_elements_;
    const size_t scratch = 2 * (size_ - 1) * Aligned(segment_elements_ * element_) + kAlignment;
    if (group_.scratch.size() < scratch) group_.scratch.resize(scratch);
    for (int64_t segment = 0; segment < std::min<int64_t>(segments_, 2); ++segment) {
      ExpectShares(segment);
      ExpectResults(segment);
    }
  } else if (spreads_broadcast()) {
    ExpectSpread();
  } else {
    ForPeers([&](int peer) {
      if (receive_[peer].bytes > kTcpEagerBytes) Expect(peer, 0, receive_[peer], &moving_);
    });
  }
  std::vector<MessageKey> awaited;
  ForPeers([&](int peer) {
    const MessageKey key = group_.Key(FrameKind::kCall, peer, number_);
    std::string data;
    if (is_small_reduction()) {
      data = SmallReductionData(peer);
    } else if (send_[peer].bytes > 0 && send_[peer].bytes <= kTcpEagerBytes) {
      data.assign(send_[peer].data, send_[peer].bytes);
    }
    group_.mesh->Send(key, CallMessage::Encode(call_, split_, data));
    awaited.push_back(key);
  });
  const absl::Time deadline = SteadyNow() + group_.deadline;
  while (!awaited.empty()) {
    absl::StatusOr<TcpMesh::Received> received = group_.mesh->ReceiveAny(awaited, deadline);
    if (!received.ok()) {
      std::vector<int> missing;
      for (const MessageKey& key : awaited) missing.push_back(group_.RankOf(key.peer));
      return Failed(received.status(), missing);
    }
    const int peer = group_.RankOf(awaited[received->index].peer);
    awaited.erase(awaited.begin() + received->index);
    MEGATRON_ASSIGN_OR_RETURN(messages_[peer], CallMessage::Decode(received->message, size_),
                              _ << "from " << group_.Describe(peer));
    arrived_[peer].store(true, std::memory_order_relaxed);
  }
  std::vector<CollectiveCall> calls(size_);
  bool match = true;
  for (int peer = 0; peer < size_; ++peer) {
    calls[peer] = peer == rank_ ? call_ : messages_[peer].call();
    match &= peer == rank_ || messages_[peer].split() == split_;
  }
  match =
      match && CallsMatch(size_, [&](int rank) -> const CollectiveCall& { return calls[rank]; });
  if (match) return absl::OkStatus();
  return CallsDiffer({group_.name, number_, size_, [&](int rank) { return group_.Describe(rank); },
                      [&](int rank) {
                        if (rank != rank_) return messages_[rank].Describe();
                        return split_.empty() ? call_.Describe() : split_;
                      }});
}

// Takes the data that came with the calls.
void TcpCall::Unpack() {
  ForPeers([&](int peer) {
    const Piece& piece = receive_[peer];
    const std::string& data = messages_[peer].data();
    if (piece.bytes == 0 || piece.bytes > kTcpEagerBytes) return;
    CHECK_EQ(static_cast<int64_t>(data.size()), piece.bytes) << group_.Describe(peer);
    std::memcpy(piece.data, data.data(), piece.bytes);
  });
}

void TcpCall::MoveDirect() {
  // Each rank begins with the next one, so that not all send to the same.
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    if (send_[peer].bytes > kTcpEagerBytes) Send(peer, 0, send_[peer], &moving_);
  }
}

void TcpCall::CopyOwn() {
  const Piece& from = send_[rank_];
  const Piece& to = receive_[rank_];
  if (to.bytes > 0 && from.data != to.data) std::memcpy(to.data, from.data, to.bytes);
}

TcpCall::Range TcpCall::Share(int owner) const {
  if (call_.collective == Collective::kReduceScatter) {
    const int64_t count = call_.out.numel();
    return {owner * count, (owner + 1) * count};
  }
  const int64_t count = call_.in.numel();
  // Elements; the first share is longest.
  const int64_t part = Aligned((count + size_ - 1) / size_);
  return {std::min(count, owner * part), std::min(count, (owner + 1) * part)};
}

TcpCall::Range TcpCall::Segment(int owner, int64_t segment) const {
  const Range share = Share(owner);
  const int64_t begin = std::min(share.end, share.begin + segment * segment_elements_);
  return {begin, std::min(share.end, begin + segment_elements_)};
}

TcpCall::Piece TcpCall::In(const Range& range) const {
  return {static_cast<char*>(call_.in.raw()) + range.begin * element_, range.count() * element_};
}

std::string TcpCall::SmallReductionData(int peer) const {
  const int64_t bytes =
      call_.collective == Collective::kAllReduce ? call_.in.bytes() : call_.out.bytes();
  const char* const data = static_cast<const char*>(call_.in.raw()) +
                           (call_.collective == Collective::kAllReduce ? 0 : peer * bytes);
  return std::string(data, bytes);
}

void TcpCall::ReduceSmall() {
  const Tensor& result = call_.collective == Collective::kAllReduce ? call_.in : call_.out;
  if (result.numel() == 0) return;
  const int64_t bytes = result.bytes();
  if (group_.scratch.size() < static_cast<size_t>(size_ * Aligned(bytes))) {
    group_.scratch.resize(size_ * Aligned(bytes));
  }
  std::vector<const void*> inputs;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) {
      const int64_t begin = call_.collective == Collective::kAllReduce ? 0 : rank * bytes;
      inputs.push_back(static_cast<const char*>(call_.in.raw()) + begin);
      continue;
    }
    const std::string& data = messages_[rank].data();
    CHECK_EQ(static_cast<int64_t>(data.size()), bytes) << group_.Describe(rank);
    char* const aligned = group_.scratch.data() + rank * Aligned(bytes);
    std::memcpy(aligned, data.data(), bytes);
    inputs.push_back(aligned);
  }
  Reduce(inputs, result.numel(), result.raw());
}

// Slot (segment mod 2) of the scratch memory is free again when the result of `segment` has been
// sent; peers know by receiving it, and then send segment + 2. A reduce-scatter sends empty
// results.
absl::Status TcpCall::ReduceLarge() {
  for (int64_t segment = 0; segment < std::min<int64_t>(segments_, 2); ++segment) {
    SendShares(segment);
  }
  for (int64_t segment = 0; segment < segments_; ++segment) {
    const bool more = segment + 2 < segments_;
    MEGATRON_RETURN_IF_ERROR(Await(&shares_[segment % 2]));
    ReduceSegment(segment);
    if (more) ExpectShares(segment + 2);
    SendResults(segment);
    MEGATRON_RETURN_IF_ERROR(Await(&results_[segment % 2]));
    if (!more) continue;
    ExpectResults(segment + 2);
    SendShares(segment + 2);
  }
  return Await(&moving_);
}

void TcpCall::ExpectShares(int64_t segment) {
  const int64_t stride = Aligned(segment_elements_ * element_);
  char* slot = group_.scratch.data() + (segment % 2) * (size_ - 1) * stride;
  ForPeers([&](int peer) {
    Expect(peer, static_cast<uint32_t>(2 * segment),
           {slot, Segment(rank_, segment).count() * element_}, &shares_[segment % 2]);
    slot += stride;
  });
}

void TcpCall::SendShares(int64_t segment) {
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    Send(peer, static_cast<uint32_t>(2 * segment), In(Segment(peer, segment)), &moving_);
  }
}

void TcpCall::ExpectResults(int64_t segment) {
  ForPeers([&](int peer) {
    Piece piece = In(Segment(peer, segment));
    if (call_.collective == Collective::kReduceScatter) piece = {};
    Expect(peer, static_cast<uint32_t>(2 * segment + 1), piece, &results_[segment % 2]);
  });
}

void TcpCall::SendResults(int64_t segment) {
  Piece piece = In(Segment(rank_, segment));
  if (call_.collective == Collective::kReduceScatter) piece = {};
  for (int step = 1; step < size_; ++step) {
    Send((rank_ + step) % size_, static_cast<uint32_t>(2 * segment + 1), piece, &moving_);
  }
}

void TcpCall::ReduceSegment(int64_t segment) {
  const Range range = Segment(rank_, segment);
  const int64_t stride = Aligned(segment_elements_ * element_);
  const char* slot = group_.scratch.data() + (segment % 2) * (size_ - 1) * stride;
  std::vector<const void*> inputs;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) {
      inputs.push_back(In(range).data);
    } else {
      inputs.push_back(slot);
      slot += stride;
    }
  }
  char* output = In(range).data;
  if (call_.collective == Collective::kReduceScatter) {
    output = static_cast<char*>(call_.out.raw()) + (range.begin - Share(rank_).begin) * element_;
  }
  Reduce(inputs, range.count(), output);
}

void TcpCall::Reduce(const std::vector<const void*>& inputs, int64_t count, void* output) const {
  if (count == 0) return;
  const auto body = [&](int64_t begin, int64_t end) {
    ReduceOnHost(call_.in.dtype(), call_.reduce, inputs, begin, end, absl::MakeSpan(&output, 1));
  };
  if (count * element_ < kParallelBytes) return body(0, count);
  stream_.pool()->ParallelFor(count, body);
}

// The root sends each rank one share, and each rank sends its share on to the others: nobody sends
// more than twice the whole. Tag 0 comes from the root, tag 1 from the owner of a share.
void TcpCall::ExpectSpread() {
  if (rank_ == call_.root) return;
  Expect(call_.root, 0, In(Share(rank_)), &shares_[0]);
  ForPeers([&](int peer) { Expect(peer, 1, In(Share(peer)), &moving_); });
}

absl::Status TcpCall::SpreadBroadcast() {
  if (rank_ == call_.root) {
    ForPeers([&](int peer) { Send(peer, 0, In(Share(peer)), &moving_); });
  }
  MEGATRON_RETURN_IF_ERROR(Await(&shares_[0]));  // the root waits for none
  ForPeers([&](int peer) {
    if (peer != call_.root) Send(peer, 1, In(Share(rank_)), &moving_);
  });
  return Await(&moving_);
}

void TcpCall::Expect(int peer, uint32_t tag, const Piece& piece, TcpOperation* operation) {
  group_.mesh->ReceiveData(group_.Key(FrameKind::kData, peer, number_, tag), piece.data,
                           piece.bytes, operation);
}

void TcpCall::Send(int peer, uint32_t tag, const Piece& piece, TcpOperation* operation) {
  group_.mesh->SendData(group_.Key(FrameKind::kData, peer, number_, tag), piece.data, piece.bytes,
                        operation);
}

absl::Status TcpCall::Await(TcpOperation* operation) {
  const absl::Status status = group_.mesh->Await(operation, SteadyNow() + group_.deadline);
  if (status.ok()) return status;
  std::vector<int> missing;
  for (int peer : group_.mesh->AwaitedPeers(operation)) missing.push_back(group_.RankOf(peer));
  return Failed(status, missing);
}

std::string TcpCall::Describe() const {
  return absl::StrCat("call ", number_, ", ", split_.empty() ? call_.Describe() : split_);
}

std::vector<int> TcpCall::Awaited() const {
  std::vector<int> awaited;
  ForPeers([&](int peer) {
    if (!arrived_[peer].load(std::memory_order_relaxed)) awaited.push_back(peer);
  });
  return awaited;
}

std::string TcpCall::DescribeAwaited() const {
  const std::vector<int> awaited = Awaited();
  if (awaited.empty()) return ", which all ranks have entered";
  std::vector<int> entered;
  for (int rank = 0; rank < size_; ++rank) {
    if (!absl::c_linear_search(awaited, rank)) entered.push_back(rank);
  }
  return absl::StrCat("; entered by: ", group_.DescribeAll(entered),
                      "; awaited: ", group_.DescribeAll(awaited));
}

absl::Status TcpCall::Failed(const absl::Status& why, const std::vector<int>& missing) const {
  const absl::Status status = group_.WaitFailed(Describe(), why, missing);
  group_.mesh->Fail(status);  // while this call is there to say what it awaited
  return status;
}

}  // namespace megatron
