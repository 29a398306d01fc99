#include "megatron/train/rerun/step_validator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/host_name.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

constexpr double kSpikeFactor = 10;

// What a rank tells all others.
struct Row {
  int64_t any = 0, is_own = 0;
  char host[48] = {}, where[96] = {};
};

void Write(const std::string& text, char* field, size_t size) {
  std::memcpy(field, text.data(), std::min(text.size(), size - 1));
}

template <typename T>
absl::StatusOr<std::vector<T>> AllOf(const T& mine, const ProcessGroup& group) {
  std::vector<T> all(static_cast<size_t>(group.size()));
  if (group.size() == 1) {
    all[0] = mine;
    return all;
  }
  T copy = mine;
  const auto bytes = static_cast<int64_t>(sizeof(T));
  ThreadPool pool(1);
  group.AllGather(Tensor(&copy, DType::kUInt8, {bytes}),
                  Tensor(all.data(), DType::kUInt8, {bytes * group.size()}), Stream::Cpu(&pool));
  MEGATRON_RETURN_IF_ERROR(group.status());
  return all;
}

std::string NameRanks(const std::vector<std::string>& ranks) {
  constexpr size_t kMost = 4;
  if (ranks.size() <= kMost) return absl::StrJoin(ranks, ", ");
  return absl::StrCat(absl::StrJoin(ranks.begin(), ranks.begin() + kMost, ", "), " and ",
                      ranks.size() - kMost, " more");
}

}  // namespace

StepDifference CompareSteps(const ExecutedStep& a, const ExecutedStep& b) {
  StepDifference difference;
  const size_t calls = std::min(a.calls.size(), b.calls.size());
  constexpr int64_t kNever = INT64_MAX;
  // The moment of the first execution from which on this rank has got something else.
  int64_t got_other = kNever, first = kNever;
  for (size_t i = 0; i < calls; ++i) {
    if (a.calls[i].got != b.calls[i].got) got_other = std::min(got_other, a.calls[i].ended);
  }
  for (size_t i = 0; i < calls; ++i) {
    const RecordedCall& call = a.calls[i];
    const bool gave_other = call.given != b.calls[i].given || call.call != b.calls[i].call;
    if (!gave_other && call.got == b.calls[i].got) continue;
    difference.any = true;
    if (gave_other && call.began < got_other) difference.is_own = true;
    if (call.began < first) {
      first = call.began;
      difference.where = absl::StrCat(call.call, " of ", call.group);
    }
  }
  if (a.local != b.local) {
    difference.any = true;
    if (a.local_at < got_other) difference.is_own = true;
  }
  if (a.reduced != b.reduced || a.calls.size() != b.calls.size()) {
    difference.any = true;
    if (got_other == kNever) difference.is_own = true;
  }
  return difference;
}

StepValidator::StepValidator(const RerunOptions& options, const ProcessGroup& world,
                             const ProcessGroup& copies)
    : options_(options), world_(world), copies_(copies) {}

absl::StatusOr<bool> StepValidator::IsDue(int64_t iteration, const ExecutedStep& first) {
  if (options_.mode == RerunMode::kReportStats) return true;
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<int64_t> finite,
                            AllOf<int64_t>(first.finite ? 1 : 0, world_));
  is_unexpected_ = std::find(finite.begin(), finite.end(), 0) != finite.end();
  if (options_.spiky_loss_after > 0 && std::isfinite(first.loss)) {
    if (steps_ >= options_.spiky_loss_after && std::abs(first.loss) > kSpikeFactor * largest_loss_)
      is_unexpected_ = true;
    if (!is_unexpected_) largest_loss_ = std::max(largest_loss_, std::abs(first.loss));
  }
  ++steps_;
  return is_unexpected_ || (options_.interval > 0 && iteration % options_.interval == 0);
}

absl::StatusOr<StepValidator::Differences> StepValidator::Gather(const StepDifference& mine) {
  Row row;
  row.any = mine.any;
  row.is_own = mine.is_own;
  Write(std::string(HostName()), row.host, sizeof(row.host));
  Write(mine.where, row.where, sizeof(row.where));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Row> rows, AllOf(row, world_));
  Differences all;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    all.any = all.any || rows[rank].any != 0;
    if (all.where.empty()) all.where = rows[rank].where;
    if (rows[rank].is_own != 0)
      all.culprits.push_back(absl::StrCat("rank ", rank, " on ", rows[rank].host));
  }
  return all;
}

// A copy is suspected where it disagrees both with the one whose samples it computed and with the
// one that computed its own. Of two copies, both are.
absl::StatusOr<std::vector<std::string>> StepValidator::CompareCopies(uint32_t own,
                                                                      uint32_t others) {
  struct Pair {
    uint32_t own, others;
  };
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Pair> all, AllOf(Pair{own, others}, copies_));
  const int n = copies_.size(), rank = copies_.rank();
  const auto differs = [&](int executor) {
    return all[executor].others != all[(executor + 1) % n].own;
  };
  const bool as_executor = differs(rank), as_owner = differs((rank + n - 1) % n);
  bool any_in_both = false;
  for (int i = 0; i < n; ++i) any_in_both = any_in_both || (differs(i) && differs((i + n - 1) % n));
  StepDifference mine;
  mine.is_own = any_in_both ? as_executor && as_owner : as_executor || as_owner;
  MEGATRON_ASSIGN_OR_RETURN(Differences found, Gather(mine));
  return std::move(found.culprits);
}

absl::StatusOr<StepFinding> StepValidator::Validate(const ExecutedStep& first, Execute execute) {
  MEGATRON_ASSIGN_OR_RETURN(const ExecutedStep second, execute(kOwn));
  MEGATRON_ASSIGN_OR_RETURN(const Differences once, Gather(CompareSteps(first, second)));
  const std::string who =
      once.culprits.empty()
          ? absl::StrCat("no rank has given others anything else, but what came of ", once.where,
                         " was: a link, or the memory of a rank that sums, is in error")
          : absl::StrCat(NameRanks(once.culprits), once.culprits.size() == 1 ? " has" : " have",
                         " computed something else");
  if (once.any && options_.mode == RerunMode::kReportStats) {
    return StepFinding{StepFinding::kTransient,
                       absl::StrCat("the step has other results when it is computed again: ", who)};
  }
  if (once.any) {
    MEGATRON_ASSIGN_OR_RETURN(const ExecutedStep third, execute(kOwn));
    MEGATRON_ASSIGN_OR_RETURN(const Differences twice, Gather(CompareSteps(second, third)));
    if (twice.any) {
      return StepFinding{
          StepFinding::kUnreliable,
          absl::StrCat("the step has other results each time that it is computed: ", who)};
    }
    return StepFinding{
        StepFinding::kTransient,
        absl::StrCat("the step had other results once: ", who,
                     "; training goes on with the results that came twice (a transient error)")};
  }
  StepFinding own;
  if (is_unexpected_) own.kind = StepFinding::kOwn;
  if (options_.mode == RerunMode::kReportStats || copies_.size() == 1) {
    if (is_unexpected_)
      own.message =
          "the step's result is not as expected, and the same when it is computed again: it is the "
          "run's own, or its machine always errs, which no other rank can tell here";
    return own;
  }
  MEGATRON_ASSIGN_OR_RETURN(const ExecutedStep other, execute(kOfNextCopy));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> culprits,
                            CompareCopies(first.local, other.local));
  MEGATRON_ASSIGN_OR_RETURN(const ExecutedStep again, execute(kOwn));
  MEGATRON_ASSIGN_OR_RETURN(const Differences restored, Gather(CompareSteps(first, again)));
  if (restored.any) {
    return StepFinding{StepFinding::kUnreliable,
                       absl::StrCat("the step has other results now and then when it is computed "
                                    "again: ",
                                    NameRanks(restored.culprits))};
  }
  if (!culprits.empty()) {
    return StepFinding{
        StepFinding::kPersistent,
        absl::StrCat("of the same samples ", NameRanks(culprits),
                     culprits.size() == 1 ? " computes" : " compute",
                     " something else than others do, each time (a persistent error)")};
  }
  if (is_unexpected_)
    own.message =
        "the step's result is not as expected, and the same when it is computed again, also by "
        "other ranks: it is the run's own";
  return own;
}

}  // namespace megatron
