#include "megatron/checkpoint/local/local_place.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

constexpr int64_t kMostMark = 4096;

absl::Status WriteMark(FileSystem& fs, const std::string& path, absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const auto file, fs.Create(path));
  MEGATRON_RETURN_IF_ERROR(file->Append(text));
  return file->Close();
}

}  // namespace

absl::StatusOr<LocalPlace> FindMachines(FileSystem& fs, const std::string& directory,
                                        const std::string& start, const ProcessGroup& ranks,
                                        const Agreement& agree) {
  const auto mark_of = [&](int rank) { return JoinPath(directory, absl::StrCat(".rank_", rank)); };
  const std::string mine = mark_of(ranks.rank());
  absl::Status status = fs.CreateDirs(directory);
  if (status.ok()) status = WriteMark(fs, mine, start);
  if (agree) status = agree(std::move(status));
  MEGATRON_RETURN_IF_ERROR(status);
  int32_t lowest = ranks.rank();
  for (int rank = 0; rank < ranks.rank(); ++rank) {
    const absl::StatusOr<std::string> text = ReadFileToString(fs, mark_of(rank), kMostMark);
    if (!text.ok() || *text != start) continue;
    lowest = rank;
    break;
  }
  std::vector<int32_t> machines(static_cast<size_t>(ranks.size()), lowest);
  ranks.AllGather(Tensor(&lowest, DType::kInt32, {1}),
                  Tensor(machines.data(), DType::kInt32, {ranks.size()}), Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(ranks.status());
  // All have looked.
  fs.Remove(mine).IgnoreError();
  return LocalPlace{directory, start, {machines.begin(), machines.end()}};
}

std::vector<int> DistinctMachines(const std::vector<int>& machines) {
  const std::set<int> distinct(machines.begin(), machines.end());
  return {distinct.begin(), distinct.end()};
}

std::vector<int> RanksOn(const std::vector<int>& machines, int machine) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    if (machines[rank] == machine) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

int KeeperOf(const std::vector<int>& machines, int rank, int copy) {
  const std::vector<int> distinct = DistinctMachines(machines);
  const int own = machines[static_cast<size_t>(rank)];
  const size_t number = static_cast<size_t>(
      std::lower_bound(distinct.begin(), distinct.end(), own) - distinct.begin());
  const std::vector<int> neighbours = RanksOn(machines, own);
  const size_t place = static_cast<size_t>(
      std::lower_bound(neighbours.begin(), neighbours.end(), rank) - neighbours.begin());
  const std::vector<int> keepers =
      RanksOn(machines, distinct[(number + static_cast<size_t>(copy)) % distinct.size()]);
  return keepers[place % keepers.size()];
}

}  // namespace megatron
