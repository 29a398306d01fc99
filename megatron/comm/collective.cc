#include "megatron/comm/collective.h"

#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megatron {
namespace {

std::string Text(const Tensor& tensor) {
  std::ostringstream out;
  out << tensor.dtype() << tensor.shape();
  return out.str();
}

std::string Text(absl::Span<const Transfer> transfers) {
  return absl::StrJoin(transfers, ", ", [](std::string* out, const Transfer& transfer) {
    absl::StrAppend(out, Text(transfer.tensor), " of rank ", transfer.peer);
  });
}

}  // namespace

const char* Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

const char* Name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllToAll:
      return "all-to-all";
    case Collective::kAllToAllV:
      return "all-to-all-v";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kExchange:
      return "exchange";
  }
  return "?";
}

const char* Name(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kMesh:
      return "mesh";
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kTree:
      return "tree";
  }
  return "?";
}

bool HasAlgorithms(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kAllGather ||
         collective == Collective::kReduceScatter || collective == Collective::kBroadcast;
}

double BusBandwidthFactor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * (n - 1) / n;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      return (n - 1) / n;
    case Collective::kBroadcast:
    case Collective::kBarrier:
    case Collective::kExchange:
      return 1;
  }
  return 1;
}

std::string CollectiveCall::Describe() const {
  const std::string name = Name(collective);
  const std::string by =
      algorithm == CollectiveAlgorithm::kMesh ? "" : absl::StrCat(" by ", Name(algorithm));
  switch (collective) {
    case Collective::kBarrier:
      return name;
    case Collective::kExchange:
      return absl::StrCat(name, " of sends [", Text(sends), "] and receives [", Text(receives),
                          "]");
    case Collective::kBroadcast:
      return absl::StrCat(name, " of ", Text(in), " from rank ", root, by);
    case Collective::kAllToAllV:
      return absl::StrCat(name, " of ", Text(in), " to ", Text(out), " with send counts [",
                          absl::StrJoin(send_counts, ", "), "] and receive counts [",
                          absl::StrJoin(receive_counts, ", "), "]");
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
      return absl::StrCat(name, "(", Name(reduce), ") of ", Text(in), by);
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return absl::StrCat(name, " of ", Text(in), by);
  }
  return name;
}

}  // namespace megatron
