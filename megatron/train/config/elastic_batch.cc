#include "megatron/train/config/elastic_batch.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// The highly composite numbers that DeepSpeed's rule has.
constexpr int64_t kComposites[] = {1,      2,      4,      6,      12,     24,     36,     48,
                                   60,     120,    180,    240,    360,    720,    840,    1260,
                                   1680,   2520,   5040,   7560,   10080,  15120,  20160,  25200,
                                   27720,  45360,  50400,  55440,  83160,  110880, 166320, 221760,
                                   277200, 332640, 498960, 554400, 665280, 720720};

// Returns the least common multiple; nothing above `most` is of use, and `most + 1` stands for it.
int64_t LeastCommonMultiple(const std::vector<int64_t>& numbers, int64_t most) {
  int64_t multiple = 1;
  for (const int64_t number : numbers) {
    const int64_t factor = number / std::gcd(multiple, number);
    if (multiple > most / factor) return most + 1;
    multiple *= factor;
  }
  return multiple;
}

// Returns the numbers of nodes within the limits that can share the batch in whole micro-batches.
std::vector<int64_t> CountsOf(int64_t batch, const std::vector<int64_t>& micro_batches,
                              int64_t least, int64_t most) {
  std::set<int64_t> counts;
  const auto add = [&](int64_t count) {
    if (count >= least && count <= most) counts.insert(count);
  };
  for (const int64_t micro : micro_batches) {
    if (batch % micro != 0) continue;
    const int64_t pieces = batch / micro;
    for (int64_t divisor = 1; divisor * divisor <= pieces; ++divisor) {
      if (pieces % divisor != 0) continue;
      add(divisor);
      add(pieces / divisor);
    }
  }
  return {counts.begin(), counts.end()};
}

}  // namespace

absl::StatusOr<ElasticBatch> ChooseElasticBatch(const ElasticRule& rule) {
  const int64_t node = rule.ranks_per_node;
  const int64_t most = rule.max_batch / node;  // the most samples for each rank number of a node
  std::vector<int64_t> bases = rule.micro_batches;
  for (const int64_t micro : bases) {
    if (micro <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_sizes holds ", micro, ", and max_train_batch_size leaves ", most,
                     " samples", node > 1 ? " for each of a node's data-parallel ranks" : ""));
  }
  bases.push_back(LeastCommonMultiple(rule.micro_batches, most));
  ElasticBatch best;
  for (const int64_t base : bases) {
    if (base > most) continue;
    const int64_t* const above =
        std::upper_bound(std::begin(kComposites), std::end(kComposites), most / base);
    const int64_t size = base * *(above - 1);
    std::vector<int64_t> counts =
        CountsOf(size, rule.micro_batches, rule.min_ranks / node, rule.max_ranks / node);
    const bool as_many = counts.size() == best.rank_counts.size();
    const bool preferred = rule.prefer_larger ? size > best.size : size < best.size;
    if (counts.size() > best.rank_counts.size() || (as_many && preferred && !counts.empty()))
      best = {size, std::move(counts)};
  }
  if (best.rank_counts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no number of data-parallel ranks from ", rule.min_ranks, " to ", rule.max_ranks,
        " can share a global batch up to max_train_batch_size = ", rule.max_batch,
        " in micro-batches of micro_batch_sizes"));
  }
  best.size *= node;
  for (int64_t& count : best.rank_counts) count *= node;
  return best;
}

int64_t ElasticMicroBatch(const ElasticRule& rule, int64_t batch, int64_t ranks) {
  int64_t largest = 0;
  if (batch % ranks != 0) return largest;
  for (const int64_t micro : rule.micro_batches) {
    if (batch / ranks % micro == 0) largest = std::max(largest, micro);
  }
  return largest;
}

absl::StatusOr<ElasticRule> ElasticRuleOf(const config::PretrainConfig& config) {
  const config::ElasticityConfig& section = config.elasticity();
  const config::ParallelConfig& parallel = config.parallel();
  const int64_t model = parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
                        parallel.pipeline_model_parallel_size();
  ElasticRule rule;
  rule.max_batch = section.max_train_batch_size();
  if (!section.micro_batch_sizes().empty())
    rule.micro_batches = {section.micro_batch_sizes().begin(), section.micro_batch_sizes().end()};
  rule.min_ranks = (section.min_gpus() + model - 1) / model;
  rule.max_ranks = section.max_gpus() / model;
  rule.prefer_larger = section.prefer_larger_batch();
  if (!section.has_num_gpus_per_node()) return rule;
  const int64_t node = section.num_gpus_per_node();
  if (node % model != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_gpus_per_node is ", node, " and a model has ", model,
                     " ranks (tensor, context and pipeline parallelism), which must divide it"));
  }
  rule.ranks_per_node = node / model;
  rule.min_ranks = std::max<int64_t>(section.min_gpus() / node, 1) * rule.ranks_per_node;
  rule.max_ranks = section.max_gpus() / node * rule.ranks_per_node;
  return rule;
}

// The losses of routers, FP8's scales and QK-clip see all tokens, whatever their weight, and a mean
// of micro-batches' means weighs micro-batches alike.
bool MayShareUnevenly(const config::PretrainConfig& config) {
  return config.parallel().in_process_recovery() && config.train().calculate_per_token_loss() &&
         !config.model().has_num_experts() && !config.optimizer().qk_clip() &&
         config.precision().fp8_format() == config::Fp8Format::none;
}

std::string DescribeRankCounts(const std::vector<int64_t>& ascending) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < ascending.size(); begin = end) {
    for (end = begin + 1; end < ascending.size() && ascending[end] == ascending[end - 1] + 1;)
      ++end;
    absl::StrAppend(&text, begin == 0 ? "" : ", ", ascending[begin]);
    if (end - begin > 1) absl::StrAppend(&text, end - begin > 2 ? "-" : ", ", ascending[end - 1]);
  }
  return text;
}

}  // namespace megatron
