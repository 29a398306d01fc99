// The calls between ranks of a whole run, by group and operation: how many, how many bytes, how
// long, and at which bandwidth, as nccl-tests count it.
//
// A call takes long because the link is slow or because a rank comes late. *Transfer* is what calls
// take when no rank is late: the time of a rank's fastest calls, on the rank where that is least.
// The rest is *waiting*.
#ifndef MEGATRON_TRAIN_METRICS_COMMUNICATION_TABLE_H_
#define MEGATRON_TRAIN_METRICS_COMMUNICATION_TABLE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {

// One operation of one rank in the groups of one kind. Ranks send each other its bytes.
struct CallTimes {
  std::array<char, 24> group = {}, operation = {};  // "tp", "all-reduce", ended by a 0
  int64_t ranks = 1;                                // size of the group
  int64_t calls = 0;
  int64_t bytes = 0;        // the sizes of all calls together, see BusBandwidthFactor()
  int64_t nanoseconds = 0;  // all of their time
  int64_t fastest = 0;      // the time, if each had taken as long as the fastest one of its size
};

// Returns a rank's calls since its streams were followed. Calls of an evaluation are not counted.
std::vector<CallTimes> CallsOf(absl::Span<const StreamTimes> streams);

// Returns the calls of all ranks; after a failure of the group only those that this rank gives.
std::vector<std::vector<CallTimes>> GatherCalls(const std::vector<CallTimes>& mine,
                                                const ProcessGroup& world);

// One group and operation: means over the ranks that have such calls. Times are in seconds.
struct CommunicationRow {
  std::string group, operation;
  int64_t ranks = 1;  // size of the group
  double calls = 0, bytes = 0;
  double time = 0, transfer = 0, waiting = 0;
  double algorithm_bandwidth = 0, bus_bandwidth = 0;  // bytes a second of `transfer`; 0: unknown
};
std::vector<CommunicationRow> CommunicationRows(absl::Span<const std::vector<CallTimes>> ranks);

// Returns the table. Empty if there is no row.
std::string FormatCommunicationTable(const std::vector<CommunicationRow>& rows);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_COMMUNICATION_TABLE_H_
