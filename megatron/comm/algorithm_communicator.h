// Chooses the algorithm of a communicator's calls, and of the groups split from it.
//
//   auto by_ring = WithAlgorithm(communicator, CollectiveAlgorithm::kRing);
//
// Calls that have no other algorithm than the mesh keep it.
#ifndef MEGATRON_COMM_ALGORITHM_COMMUNICATOR_H_
#define MEGATRON_COMM_ALGORITHM_COMMUNICATOR_H_

#include <memory>

#include "megatron/comm/collective.h"

namespace megatron {

class Communicator;

// Returns the communicator itself for the mesh. All its ranks give the same algorithm; else the
// first call that has it fails, and says what each rank called.
std::shared_ptr<Communicator> WithAlgorithm(std::shared_ptr<Communicator> communicator,
                                            CollectiveAlgorithm algorithm);

}  // namespace megatron

#endif  // MEGATRON_COMM_ALGORITHM_COMMUNICATOR_H_
