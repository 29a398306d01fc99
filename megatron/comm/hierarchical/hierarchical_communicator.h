// Hierarchical collectives: first between the ranks of a host, then between hosts, so that less, or
// larger messages, cross the slow links. They work over any backend.
//
//   hosts = {0, 0, 1, 1};   // the host of each rank of the group
//   MEGATRON_ASSIGN_OR_RETURN(auto levels, Hierarchical(communicator, hosts));
//
// With G ranks on each of K hosts, n = G K, and S bytes of the whole tensor:
//
//   all-reduce        reduce-scatter in the host, all-reduce of S / G between the hosts' ranks of
//                     equal local rank, all-gather in the host
//   reduce-scatter    reduce-scatter in the host, then between hosts: (K - 1) / K of S / G
//   all-gather        gather between hosts, (K - 1) S / n, then in the host
//   all-to-all        in the host to the local rank of the destination, then between hosts: K - 1
//                     messages of G S / n instead of n - G of S / n
//
// The calls are cut into chunks, so that both levels work at once: what goes between hosts runs on
// a lane (overlap/comm_lane.h), a thread or a stream of the GPU. An all-to-all with counts is cut
// by destination hosts alone. Broadcasts, barriers and exchanges are those of the communicator.
//
// Sums. An element is summed over the ranks of each host in their order, and rounded to its dtype;
// these sums are summed in the order of hosts. So the order depends neither on the chunks nor on
// the run, all ranks have the same bits, and an all-reduce has those of a reduce-scatter and
// all-gather. They are not the bits of the communicator itself, unless the sums are exact. (With
// NCCL each of the two sums has NCCL's order, unless it sums in the order of ranks.)
//
// Before a call all ranks compare it over the communicator, as backends do, so errors name the
// group and the ranks. Errors of the two levels name their groups: "dp-cp-0-in-host-1" has the
// ranks of a host, "dp-cp-0-between-hosts-0" those of equal local rank.
//
// Memory. A reduce-scatter takes scratch memory of about one chunk, an all-to-all of what the rank
// passes on for others, an all-reduce of a chunk if the elements don't divide. It is kept.
#ifndef MEGATRON_COMM_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
#define MEGATRON_COMM_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace megatron {

class Communicator;

struct HierarchicalOptions {
  // A call is cut into four chunks, or more or fewer so that the whole tensor of a chunk has at
  // least and at most these bytes.
  int64_t least_chunk_bytes = int64_t{1} << 18;
  int64_t most_chunk_bytes = int64_t{1} << 22;
};

// `hosts` has the host of each of the communicator's ranks. Returns the communicator itself if all
// are on one host, or each on another, and the error of RanksByHost if hosts have different numbers
// of ranks. Groups split from the result are hierarchical too. Collective over the communicator,
// whose ranks give the same arguments.
absl::StatusOr<std::shared_ptr<Communicator>> Hierarchical(
    std::shared_ptr<Communicator> communicator, const std::vector<int>& hosts,
    const HierarchicalOptions& options = {});

// Returns the most scratch memory of the reductions of a group with so many ranks on a host.
int64_t HierarchicalScratchBytes(int ranks_per_host, const HierarchicalOptions& options = {});

}  // namespace megatron

#endif  // MEGATRON_COMM_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
