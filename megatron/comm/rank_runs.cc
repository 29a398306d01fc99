#include "megatron/comm/rank_runs.h"

#include <cstddef>

namespace megatron {

std::vector<std::vector<int>> RunsOf(const std::vector<std::vector<int>>& groups, int count) {
  std::vector<std::vector<int>> runs;
  for (const std::vector<int>& ranks : groups) {
    const size_t size = ranks.size() / count;
    for (auto begin = ranks.begin(); begin != ranks.end(); begin += size)
      runs.emplace_back(begin, begin + size);
  }
  return runs;
}

std::vector<std::vector<int>> AcrossRuns(const std::vector<std::vector<int>>& groups, int count) {
  std::vector<std::vector<int>> across;
  for (const std::vector<int>& ranks : groups) {
    const size_t size = ranks.size() / count;
    for (size_t place = 0; place < size; ++place) {
      std::vector<int>& same = across.emplace_back();
      for (size_t i = place; i < ranks.size(); i += size) same.push_back(ranks[i]);
    }
  }
  return across;
}

}  // namespace megatron
