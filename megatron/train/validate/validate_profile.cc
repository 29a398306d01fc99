#include <cstdint>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kStart = "logging.profile_step_start",
                            kEnd = "logging.profile_step_end", kRanks = "logging.profile_ranks";

void CheckProfiledRanks(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  if (!check.Usable({kRanks})) return;
  const bool known =
      check.Usable({"parallel.tensor_model_parallel_size", "parallel.context_parallel_size",
                    "parallel.pipeline_model_parallel_size", "parallel.data_parallel_size"});
  std::set<int64_t> seen;
  for (const int64_t rank : config.logging().profile_ranks()) {
    if (!seen.insert(rank).second) {
      check.Error(kRanks, absl::StrCat("names rank ", rank, " twice"));
    }
    if (!known) continue;
    const int64_t ranks = parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
                          parallel.pipeline_model_parallel_size() * parallel.data_parallel_size();
    if (rank >= ranks)
      check.Error(kRanks, absl::StrCat("there is no rank ", rank, ": 'parallel' makes ", ranks));
  }
}

}  // namespace

void CheckProfile(ConfigChecker& check) {
  const config::LoggingConfig& logging = check.resolved().logging();
  // The collector passes over other names without a word.
  if (logging.has_prometheus_textfile() && !absl::EndsWith(logging.prometheus_textfile(), ".prom"))
    check.Error("logging.prometheus_textfile", "expects the name of a file that ends in .prom");
  if (!logging.profile()) return;
  if (logging.profile_dir().empty())
    check.Error("logging.profile_dir", "expects the name of a directory");
  if (check.Usable({kStart, kEnd}) && logging.profile_step_end() <= logging.profile_step_start())
    check.Error(kEnd, absl::StrCat("must be more than ", check.Named(kStart)));
  if (check.Usable({kStart, "train.train_iters"}) &&
      logging.profile_step_start() >= check.resolved().train().train_iters()) {
    check.Error(kStart, absl::StrCat("must be less than ", check.Named("train.train_iters"),
                                     ", or nothing is profiled"));
  }
  CheckProfiledRanks(check);
}

}  // namespace megatron
