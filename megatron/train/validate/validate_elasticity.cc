#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/elastic_batch.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

// A batch size that is written must be the computed one.
void MustBeComputed(ConfigChecker& check, absl::string_view path, int64_t written,
                    int64_t computed) {
  if (!check.IsWritten(path) || written == computed) return;
  check.Error(path, absl::StrCat("is computed with ", check.Named("elasticity.enabled"),
                                 ", which gives ", computed, "; --set ", path,
                                 "= removes it, or set elasticity.ignore_non_elastic_batch_info"));
}

// `path` is a field with which a run goes on with other ranks or micro-batches.
void RefuseShardedData(ConfigChecker& check, absl::string_view path) {
  if (!check.resolved().data().data_sharding()) return;
  check.Error(path,
              absl::StrCat("contradicts ", check.Named("data.data_sharding"),
                           ", with which samples come in an order of one data_parallel_size and "
                           "one micro_batch_size: other ranks would repeat some of an epoch's "
                           "samples and leave out others; data.data_sharding = false has one "
                           "order for any ranks"));
}

void CheckElasticBatch(ConfigChecker& check) {
  constexpr absl::string_view kRanks = "parallel.data_parallel_size";
  const config::PretrainConfig& config = check.resolved();
  if (!config.elasticity().enabled()) return;
  RefuseShardedData(check, "elasticity.enabled");
  if (config.train().auto_layout()) {
    check.Error("elasticity.enabled", absl::StrCat("contradicts ", check.Named("train.auto_layout"),
                                                   ", which chooses the micro-batch; choose one"));
  }
  if (!check.Usable({"elasticity.max_train_batch_size", "elasticity.micro_batch_sizes",
                     "elasticity.min_gpus", "elasticity.max_gpus",
                     "parallel.tensor_model_parallel_size", "parallel.context_parallel_size",
                     "parallel.pipeline_model_parallel_size", kRanks})) {
    return;
  }
  const absl::StatusOr<ElasticRule> rule = ElasticRuleOf(config);
  if (!rule.ok()) return check.MessageError("elasticity", rule.status().message());
  const absl::StatusOr<ElasticBatch> batch = ChooseElasticBatch(*rule);
  if (!batch.ok()) return check.MessageError("elasticity", batch.status().message());
  const int64_t ranks = config.parallel().data_parallel_size();
  if (!std::binary_search(batch->rank_counts.begin(), batch->rank_counts.end(), ranks)) {
    check.Error(kRanks, absl::StrCat("cannot share the global batch of ", batch->size,
                                     " samples that the section elasticity gives; possible are ",
                                     DescribeRankCounts(batch->rank_counts)));
    return;
  }
  if (config.elasticity().ignore_non_elastic_batch_info()) return;
  MustBeComputed(check, "train.global_batch_size", config.train().global_batch_size(), batch->size);
  MustBeComputed(check, "train.micro_batch_size", config.train().micro_batch_size(),
                 ElasticMicroBatch(*rule, batch->size, ranks));
}

// `path` is a field with which the number of ranks changes in a run.
void CheckChangingRanks(ConfigChecker& check, absl::string_view path) {
  const config::PretrainConfig& config = check.resolved();
  RefuseShardedData(check, path);
  if (config.train().auto_layout()) {
    check.Error(path, absl::StrCat("contradicts ", check.Named("train.auto_layout"),
                                   ", which chooses data_parallel_size; choose one"));
  }
  if (!check.IsWritten("train.global_batch_size") && !config.elasticity().enabled()) {
    check.Error(path,
                "needs train.global_batch_size or the section elasticity, so that the global batch "
                "does not change with the number of ranks");
  }
}

void CheckElasticRestarts(ConfigChecker& check) {
  constexpr absl::string_view kLeast = "parallel.min_data_parallel_size";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (parallel.in_process_recovery()) CheckChangingRanks(check, "parallel.in_process_recovery");
  if (!check.IsWritten(kLeast)) return;
  check.MustNotExceed(kLeast, "parallel.data_parallel_size", parallel.min_data_parallel_size(),
                      parallel.data_parallel_size());
  CheckChangingRanks(check, kLeast);
}

// Refuses what a rank has besides its shard and what all have alike.
void CheckShardCopies(ConfigChecker& check) {
  constexpr absl::string_view kCopies = "parallel.shard_copies";
  const config::PretrainConfig& config = check.resolved();
  if (config.parallel().shard_copies() == 0) return;
  const auto refuse = [&](bool is_used, absl::string_view path, absl::string_view what) {
    if (!is_used) return;
    check.Error(kCopies,
                absl::StrCat("cannot be used with ", check.Named(path), ": ", what,
                             "; leave it out, and ranks go on from the newest checkpoint"));
  };
  refuse(config.model().has_num_experts(), "model.num_experts",
         "experts are shared out over other ranks");
  refuse(config.precision().fp8_format() != config::Fp8Format::none, "precision.fp8_format",
         "the scales of FP8 have no copy");
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", "the errors of compression have no copy");
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every", "each island has its own states");
  refuse(config.optimizer().has_optimizer_offload_path(), "optimizer.optimizer_offload_path",
         "states in files have no copy");
}

}  // namespace

void CheckElasticity(ConfigChecker& check) {
  CheckElasticBatch(check);
  CheckElasticRestarts(check);
  CheckShardCopies(check);
}

}  // namespace megatron
