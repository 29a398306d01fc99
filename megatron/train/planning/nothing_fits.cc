#include "megatron/train/planning/nothing_fits.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {

absl::StatusOr<std::string> RanksToTake(const config::PretrainConfig& config, int64_t vocab_size,
                                        const Planner& planner, SearchOptions options) {
  const char* const ranks = planner.is_gpu ? "GPUs" : "ranks";
  const bool offloads = options.offloads && KnowsHost(planner);
  options.offloads = false;
  MEGATRON_ASSIGN_OR_RETURN(const int64_t without,
                            RanksThatFit(config, vocab_size, planner, options));
  int64_t with = without;
  if (offloads) {
    options.offloads = true;
    MEGATRON_ASSIGN_OR_RETURN(with, RanksThatFit(config, vocab_size, planner, options));
  }
  if (with == 0) return absl::StrCat("nor does it fit on more ", ranks);
  const std::string on_host =
      absl::StrCat(FormatCount(with), " ", ranks, " with the host's memory");
  if (without == 0) return absl::StrCat("it would fit on ", on_host);
  const std::string all = absl::StrCat("it would fit on ", FormatCount(without), " ", ranks);
  return with == without ? all : absl::StrCat(all, ", and on ", on_host);
}

absl::Status NothingFits(const config::PretrainConfig& config, int64_t vocab_size,
                         const Planner& planner, const SearchOptions& options,
                         const LayoutSearch& found) {
  const char* const ranks = planner.is_gpu ? "GPUs" : "ranks";
  if (found.layouts == 0) {
    std::vector<std::string> rules;
    for (const PrunedLayouts& pruned : found.pruned_divisions) {
      if (pruned.count > 0) rules.push_back(absl::StrCat(pruned.count, ": ", pruned.rule));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("no layout divides this model over ", options.ranks, " ", ranks, " (",
                     absl::StrJoin(rules, "; "), "): give another number of ", ranks,
                     ", or a train.global_batch_size that more of them can share"));
  }
  if (found.too_large < found.layouts) {
    return absl::InvalidArgumentError(
        absl::StrCat("the layouts that fit are refused: ", found.first_refusal));
  }
  const double limit =
      options.memory_bytes > 0 ? options.memory_bytes : DefaultMemoryLimit(*planner.hardware);
  std::string advice = "give the machine more memory";
  if (!options.shares_memory) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string enough,
                              RanksToTake(config, vocab_size, planner, options));
    advice = absl::StrCat(enough, "; else give ", ranks, " with more memory");
  }
  const double host_limit =
      options.host_bytes > 0 ? options.host_bytes : DefaultHostLimit(*planner.hardware);
  std::string on_host;
  if (found.least_host_bytes > 0) {
    on_host = absl::StrCat(" and ", FormatBytes(int64_t(found.least_host_bytes)),
                           " of the host's memory");
  }
  if (found.least_host_bytes > host_limit)
    absl::StrAppend(&on_host, ", of which a rank may have ", FormatBytes(int64_t(host_limit)));
  if (found.least_file_bytes > 0) {
    absl::StrAppend(&on_host, " and ", FormatBytes(int64_t(found.least_file_bytes)), " in files");
    const double room = planner.hardware->disk_gb() * 1e9;
    if (room > 0 && found.least_file_bytes > room) {
      absl::StrAppend(&on_host, ", for which a rank has ", FormatBytes(int64_t(room)),
                      " of the disk");
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "none of %s layouts fits in the %s of a rank: the smallest (%s) takes %s%s; %s, a shorter "
      "model.seq_length or a smaller model",
      FormatCount(found.layouts), FormatBytes(int64_t(limit)), DescribeLayout(found.least),
      FormatBytes(int64_t(found.least_bytes)), on_host, advice));
}

}  // namespace megatron
