#include "megatron/comm/call_match.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

bool TwoMatch(const CollectiveCall& a, const CollectiveCall& b) {
  if (a.collective != b.collective || a.compares_only != b.compares_only) return false;
  if (a.algorithm != b.algorithm) return false;
  if (a.in.empty()) return true;
  if (a.in.dtype() != b.in.dtype()) return false;
  if (a.collective == Collective::kAllToAllV) {
    return a.in.rank() == b.in.rank() &&
           std::equal(a.in.shape().begin() + 1, a.in.shape().end(), b.in.shape().begin() + 1);
  }
  return a.in.shape() == b.in.shape() && a.reduce == b.reduce && a.root == b.root;
}

}  // namespace

bool CallsMatch(int size, absl::FunctionRef<const CollectiveCall&(int rank)> call) {
  for (int rank = 1; rank < size; ++rank) {
    if (!TwoMatch(call(0), call(rank))) return false;
  }
  if (call(0).collective != Collective::kAllToAllV) return true;
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      if (call(from).send_counts[to] != call(to).receive_counts[from]) return false;
    }
  }
  return true;
}

absl::Status CallsDiffer(const GroupCall& group_call) {
  std::string text = absl::StrCat("group ", group_call.group, ", call ", group_call.number,
                                  ": ranks do not agree");
  for (int rank = 0; rank < group_call.size; ++rank) {
    absl::StrAppend(&text, "; ", group_call.describe_rank(rank), ": ",
                    group_call.describe_call(rank));
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace megatron
