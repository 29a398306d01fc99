#include "megatron/comm/nccl/nccl_calls.h"

#include <cstdint>
#include <vector>

#include "glog/logging.h"

namespace megatron {
namespace {

bool Failed(NcclResult result) { return result != kNcclSuccess && result != kNcclInProgress; }

// `tensor` along dim 0, with counts[r] rows to or from rank r.
std::vector<Transfer> CutByRows(const Tensor& tensor, absl::Span<const int64_t> counts) {
  std::vector<Transfer> parts;
  int64_t begin = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back({static_cast<int>(rank), tensor.Slice(0, begin, begin + counts[rank])});
    begin += counts[rank];
  }
  return parts;
}

NcclResult AllToAll(NcclApi* api, const CollectiveCall& call, absl::Span<const int64_t> send_counts,
                    absl::Span<const int64_t> receive_counts, ncclComm* comm,
                    const Stream& stream) {
  return NcclExchange(api, CutByRows(call.in, send_counts), CutByRows(call.out, receive_counts),
                      comm, stream);
}

}  // namespace

NcclResult NcclExchange(NcclApi* api, absl::Span<const Transfer> sends,
                        absl::Span<const Transfer> receives, ncclComm* comm, const Stream& stream) {
  NcclResult first_error = api->GroupStart();
  if (Failed(first_error)) return first_error;
  const auto note = [&](NcclResult result) {
    if (!Failed(first_error)) first_error = result;
  };
  for (const Transfer& transfer : sends) {
    if (transfer.tensor.bytes() > 0) note(api->Send(transfer.tensor, transfer.peer, comm, stream));
  }
  for (const Transfer& transfer : receives) {
    if (transfer.tensor.bytes() > 0)
      note(api->Receive(transfer.tensor, transfer.peer, comm, stream));
  }
  note(api->GroupEnd());
  return first_error;
}

NcclResult NcclCall(NcclApi* api, const CollectiveCall& call, int size, ncclComm* comm,
                    const Stream& stream) {
  switch (call.collective) {
    case Collective::kAllReduce:
      return api->AllReduce(call.in, call.reduce, comm, stream);
    case Collective::kAllGather:
      return api->AllGather(call.in, call.out, comm, stream);
    case Collective::kReduceScatter:
      return api->ReduceScatter(call.in, call.out, call.reduce, comm, stream);
    case Collective::kBroadcast:
      return api->Broadcast(call.in, call.root, comm, stream);
    case Collective::kAllToAll: {
      const std::vector<int64_t> counts(size, call.in.dim(0) / size);
      return AllToAll(api, call, counts, counts, comm, stream);
    }
    case Collective::kAllToAllV:
      return AllToAll(api, call, call.send_counts, call.receive_counts, comm, stream);
    case Collective::kExchange:
      return NcclExchange(api, call.sends, call.receives, comm, stream);
    case Collective::kBarrier:
      break;
  }
  LOG(FATAL) << "NCCL has no " << call.Describe();
  return kNcclSuccess;
}

}  // namespace megatron
