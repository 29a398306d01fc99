#include "megatron/comm/nccl/compare_calls.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/call_match.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/tcp/tcp_frame.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

// The largest encoding of a call without its counts: two tensors and some numbers.
constexpr size_t kMostCallBytes = 192;

}  // namespace

absl::Status CompareCalls(Communicator* host, const CollectiveCall& call, uint64_t number) {
  const int size = host->size();
  const size_t room = kMostCallBytes + 2 * sizeof(int64_t) * size;
  const std::string mine = CallMessage::Encode(call, "", "");
  CHECK_LE(sizeof(uint32_t) + mine.size(), room) << call.Describe();
  std::string sent(room, '\0'), received(room * size, '\0');
  const auto length = static_cast<uint32_t>(mine.size());
  std::memcpy(sent.data(), &length, sizeof(length));
  std::memcpy(sent.data() + sizeof(length), mine.data(), mine.size());

  CollectiveCall gather;
  gather.collective = Collective::kAllGather;
  gather.in = Tensor(sent.data(), DType::kUInt8, {static_cast<int64_t>(sent.size())});
  gather.out = Tensor(received.data(), DType::kUInt8, {static_cast<int64_t>(received.size())});
  host->Run(gather, Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(host->status());

  std::vector<CallMessage> messages;
  std::vector<CollectiveCall> calls;
  for (int rank = 0; rank < size; ++rank) {
    const char* const theirs = received.data() + room * rank;
    uint32_t bytes;
    std::memcpy(&bytes, theirs, sizeof(bytes));
    if (sizeof(bytes) + bytes > room) return absl::InternalError("a call that is too long");
    MEGATRON_ASSIGN_OR_RETURN(
        CallMessage message,
        CallMessage::Decode(absl::string_view(theirs + sizeof(bytes), bytes), size));
    messages.push_back(std::move(message));
  }
  for (const CallMessage& message : messages) calls.push_back(message.call());
  if (CallsMatch(size, [&](int rank) -> const CollectiveCall& { return calls[rank]; }))
    return absl::OkStatus();
  return CallsDiffer({host->name(), number, size,
                      [&](int rank) { return absl::StrCat("rank ", rank, " of ", host->name()); },
                      [&](int rank) { return calls[rank].Describe(); }});
}

}  // namespace megatron
