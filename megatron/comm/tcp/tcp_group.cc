#include "megatron/comm/tcp/tcp_group.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megatron {

std::string TcpGroup::Describe(int rank) const {
  return absl::StrCat("rank ", rank, " of ", name, " (world rank ", world_ranks[rank], ")");
}

std::string TcpGroup::DescribeAll(const std::vector<int>& ranks) const {
  return absl::StrJoin(
      ranks, ", ", [this](std::string* out, int rank) { absl::StrAppend(out, Describe(rank)); });
}

int TcpGroup::RankOf(int world_rank) const {
  return static_cast<int>(absl::c_find(world_ranks, world_rank) - world_ranks.begin());
}

std::vector<int> TcpGroup::WorldRanksOf(const std::vector<int>& ranks) const {
  std::vector<int> of_world;
  for (const int rank : ranks) of_world.push_back(world_ranks[rank]);
  return of_world;
}

std::string TcpGroup::WasIn(const std::string& what) const {
  return absl::StrCat(Describe(rank), " was in ", what);
}

absl::Status TcpGroup::WaitFailed(const std::string& what, const absl::Status& why,
                                  const std::vector<int>& ranks) const {
  if (!mesh->status().ok()) return mesh->status();
  const std::string where = absl::StrCat(Describe(rank), ", ", what, ": ");
  if (why.code() == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(absl::StrCat(where, "after ", absl::FormatDuration(deadline),
                                                    " still missing: ", DescribeAll(ranks)));
  }
  std::vector<int> left;
  for (int peer : ranks) {
    if (why.code() == absl::StatusCode::kUnavailable && mesh->has_left(world_ranks[peer])) {
      left.push_back(peer);
    }
  }
  if (left.empty()) return absl::Status(why.code(), absl::StrCat(where, why.message()));
  return absl::UnavailableError(
      absl::StrCat(where, DescribeAll(left), left.size() == 1 ? " has left" : " have left"));
}

}  // namespace megatron
