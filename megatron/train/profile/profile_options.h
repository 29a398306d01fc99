// Options of the profiler: the part of a run that is profiled, and where the result is written.
#ifndef MEGATRON_TRAIN_PROFILE_PROFILE_OPTIONS_H_
#define MEGATRON_TRAIN_PROFILE_PROFILE_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

struct ProfileOptions {
  bool enabled = false;
  // Profiling begins when `start` iterations are done and ends when `end` are.
  int64_t start = 0, end = 0;
  std::vector<int64_t> ranks;
  std::string directory;

  bool Covers(int rank) const {
    return enabled && std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_PROFILE_OPTIONS_H_
