// The first lines that a run prints: on what it runs, what it trains, and what that takes.
#ifndef MEGATRON_TRAIN_INTRODUCTION_H_
#define MEGATRON_TRAIN_INTRODUCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/train/config/config.pb.h"
#include "megatron/train/rank/pretrain_run.h"

namespace megatron {

// The part of a run that is on this machine.
struct RanksOfMachine {
  int ranks = 1;
  int64_t bytes = 0;   // planned host memory
  std::string launch;  // what started this process as one rank of several; empty: nothing did
  int restarts = 0;    // times that a launcher started the run again
  std::string restart_reason;  // why it last did; may be empty
};

std::vector<std::string> Introduce(const config::PretrainConfig& config, const PretrainRun& run,
                                   const RanksOfMachine& here);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_INTRODUCTION_H_
