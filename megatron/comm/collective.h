// One operation between the ranks of a group, with its buffers, as a value: backends compare calls
// across ranks, number them and report them without knowing what each means. *Ranks* and *peers*
// are numbers within the group.
#ifndef MEGATRON_COMM_COLLECTIVE_H_
#define MEGATRON_COMM_COLLECTIVE_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

enum class Collective : uint8_t {
  kAllReduce,      // `in` is reduced in place
  kAllGather,      // `in` to `out`
  kReduceScatter,  // `in` to `out`
  kAllToAll,       // equal parts of `in` to `out`
  kAllToAllV,      // parts of send_counts and receive_counts rows of `in` to `out`
  kBroadcast,      // `in` is written in place, from root
  kBarrier,
  kExchange,  // sends, receives
};

// The way that data takes between the ranks, for collectives that have several: the first four.
// Their names are those of NCCL_ALGO, except for the mesh. docs/communication.md compares them.
enum class CollectiveAlgorithm : uint8_t {
  kMesh,  // from every rank straight to every other
  kRing,  // from rank to rank + 1
  kTree,  // along a binary tree
};

constexpr CollectiveAlgorithm kCollectiveAlgorithms[] = {
    CollectiveAlgorithm::kMesh, CollectiveAlgorithm::kRing, CollectiveAlgorithm::kTree};

const char* Name(ReduceOp op);                    // "sum"
const char* Name(Collective collective);          // "all-reduce"
const char* Name(CollectiveAlgorithm algorithm);  // "ring"

// Returns whether the collective has other algorithms than the mesh.
bool HasAlgorithms(Collective collective);

// Returns how many times the size of a call, as nccl-tests define it, a link has to carry of it in
// the best algorithm. The size of a call is that of the whole tensor: of `out` for kAllGather, else
// of what the rank gives.
double BusBandwidthFactor(Collective collective, int ranks);

// A message of an exchange: the tensor to send to `peer`, or to receive from it.
struct Transfer {
  int peer = 0;
  Tensor tensor;
};

// One operation. Tensors are contiguous. Spans and tensors need to live until Run returns.
struct CollectiveCall {
  Collective collective = Collective::kBarrier;
  Tensor in, out;
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kMesh;  // NCCL has its own choice
  absl::Span<const int64_t> send_counts, receive_counts;
  absl::Span<const Transfer> sends, receives;
  // The ranks compare the call, and nothing moves: a communicator that makes a call of several
  // others lets the whole be compared first. NCCL compares it only where it compares calls.
  bool compares_only = false;

  // Returns what ranks must agree on, for messages: "all-reduce(sum) of fp32[2, 3]",
  // "all-reduce(sum) of fp32[2, 3] by ring".
  std::string Describe() const;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_COLLECTIVE_H_
