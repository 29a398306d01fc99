// Times collectives as nccl-tests do, so that figures can be compared: sizes, columns and
// bandwidths have the same meaning.
//
// *size* is the bytes of the larger of a rank's two buffers, *count* what one rank gives to the
// call (all-gather: its part; reduce-scatter, all-to-all: what it gets from one rank). *algbw* is
// size over time; *busbw* is what a link would have to carry of it in the best algorithm: algbw
// times 2 (n - 1) / n for all-reduce, (n - 1) / n for all-gather, reduce-scatter and all-to-all,
// else 1.
#ifndef TOOLS_BANDWIDTH_COMM_BENCH_MEASURE_H_
#define TOOLS_BANDWIDTH_COMM_BENCH_MEASURE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"

namespace megatron {

enum class BenchOperation {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSendRecv,  // each rank to the next, around a ring
};

constexpr BenchOperation kBenchOperations[] = {
    BenchOperation::kAllReduce, BenchOperation::kAllGather, BenchOperation::kReduceScatter,
    BenchOperation::kAllToAll,  BenchOperation::kBroadcast, BenchOperation::kSendRecv};

const char* Name(BenchOperation operation);  // "all_reduce"

struct CommBenchOptions {
  std::vector<int64_t> sizes;
  DType dtype = DType::kFloat32;
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  int iterations = 20;
  int warmup = 1;
  bool check = true;
};

struct CommBenchTiming {
  double microseconds = 0;  // mean of calls and ranks
  double algbw = 0;         // GB/s, GB = 1e9 bytes
  double busbw = 0;
  std::optional<int64_t> wrong;  // elements on all ranks; none if not checked
};

struct CommBenchRow {
  int64_t size = 0;
  int64_t count = 0;
  // Not all operations exist in both forms.
  std::optional<CommBenchTiming> out_of_place, in_place;
};

struct CommBenchResult {
  BenchOperation operation = BenchOperation::kAllReduce;
  int ranks = 1;
  DType dtype = DType::kFloat32;
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  std::vector<CommBenchRow> rows;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kMesh;  // the algorithm of the group's calls
  int ranks_per_host = 0;  // 0: the call was flat, and not hierarchical

  bool reduces() const;
  bool has_root() const { return operation == BenchOperation::kBroadcast; }
  // The result over all rows and forms.
  double average_busbw() const;
  int64_t wrong() const;
};

// A collective call over the group, with the same result on all of its ranks.
absl::StatusOr<CommBenchResult> MeasureCollective(BenchOperation operation,
                                                  const CommBenchOptions& options,
                                                  const ProcessGroup& group, const Stream& stream);

double BusBandwidthFactor(BenchOperation operation, int ranks);

// Reads "8", "64K", "1.5M", "2G", with powers of 1024.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);
// Returns begin, begin * factor, ... up to end.
std::vector<int64_t> SizesBetween(int64_t begin, int64_t end, double factor);

}  // namespace megatron

#endif  // TOOLS_BANDWIDTH_COMM_BENCH_MEASURE_H_
