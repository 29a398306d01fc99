// Tells whether the calls that ranks make at the same place of a group's sequence are one
// collective call.
#ifndef MEGATRON_COMM_CALL_MATCH_H_
#define MEGATRON_COMM_CALL_MATCH_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "megatron/comm/collective.h"

namespace megatron {

// Returns whether the calls of all ranks match: operation, dtype, shape, reduction, root, and the
// rows that go between every two ranks.
bool CallsMatch(int size, absl::FunctionRef<const CollectiveCall&(int rank)> call);

// Call number `number` of a group, for a message about it.
struct GroupCall {
  std::string group;
  uint64_t number = 0;
  int size = 0;
  absl::FunctionRef<std::string(int rank)> describe_rank;
  absl::FunctionRef<std::string(int rank)> describe_call;
};

// Returns the error that lists each rank and its call: the same text on every rank.
absl::Status CallsDiffer(const GroupCall& group_call);

}  // namespace megatron

#endif  // MEGATRON_COMM_CALL_MATCH_H_
