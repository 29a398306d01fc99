// The first lines of a run: on what it runs, what it trains, and what that takes.
#ifndef MEGATRON_TRAIN_INTRODUCTION_H_
#define MEGATRON_TRAIN_INTRODUCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/train/config/config.pb.h"
#include "megatron/train/pretrain_rank.h"

namespace megatron {

// What of a run is on this machine.
struct RunHere {
  int ranks = 1;
  int64_t bytes = 0;   // of host memory that are planned
  std::string launch;  // by whom this process was started as one rank of several; empty: by nobody
};

std::vector<std::string> Introduce(const config::PretrainConfig& config, const PretrainRun& run,
                                   const RunHere& here);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_INTRODUCTION_H_
