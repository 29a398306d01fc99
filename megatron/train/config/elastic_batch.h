// DeepSpeed's rule for elastic training: a global batch that can be divided over many numbers of
// data-parallel ranks, so that a run may go on with more or fewer of them and keeps its batch.
//
//   rule.max_batch = 2000, rule.micro_batches = {2, 4, 6};
//   MEGATRON_ASSIGN_OR_RETURN(const ElasticBatch batch, ChooseElasticBatch(rule));
//   batch.size, 1680, is the same on every start; batch.rank_counts, {1, 2, 3, ...}, may share it
//   ElasticMicroBatch(rule, batch.size, 70)   // 6: each of 70 ranks has 24 samples, 4 times 6
#ifndef MEGATRON_TRAIN_CONFIG_ELASTIC_BATCH_H_
#define MEGATRON_TRAIN_CONFIG_ELASTIC_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// All numbers are 1 or more. Ranks are data-parallel ones.
struct ElasticRule {
  int64_t max_batch = 2000;
  std::vector<int64_t> micro_batches = {2, 4, 6};
  int64_t min_ranks = 1, max_ranks = 10000;
  bool prefer_larger = true;
  // Ranks come by nodes of so many: DeepSpeed's version 0.2. With 1 it is that of version 0.1.
  int64_t ranks_per_node = 1;
};

struct ElasticBatch {
  int64_t size = 0;
  std::vector<int64_t> rank_counts;  // ascending; not empty
};

// Candidates are the micro-batches and their least common multiple, each times the largest highly
// composite number with which it stays within max_batch. The one that most numbers of ranks can
// share is taken. kInvalidArgument: a micro-batch is larger than max_batch (a node's part of it),
// or no number of ranks within the limits can share any candidate.
absl::StatusOr<ElasticBatch> ChooseElasticBatch(const ElasticRule& rule);

// Returns the largest micro-batch that divides a rank's part; 0 if there is none.
int64_t ElasticMicroBatch(const ElasticRule& rule, int64_t batch, int64_t ranks);

// Reads the section `elasticity`, and from `parallel` how many ranks a model has. Expects numbers
// in their ranges. kInvalidArgument where a node is not a whole number of models.
absl::StatusOr<ElasticRule> ElasticRuleOf(const config::PretrainConfig& config);

// Returns whether data-parallel ranks may share the global batch unevenly: those that have fewer
// samples fill their micro-batches up with samples without weight. Ranks that recover in process
// may, where all that a sample does to a step goes by its weight.
bool MayShareUnevenly(const config::PretrainConfig& config);

// Returns "1-8, 10, 12": neighbours are joined.
std::string DescribeRankCounts(const std::vector<int64_t>& ascending);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_ELASTIC_BATCH_H_
