// The text at the end of a run: the trained model continues a prompt, or fills its gaps.
#ifndef MEGATRON_TRAIN_RANK_GENERATE_TEXT_H_
#define MEGATRON_TRAIN_RANK_GENERATE_TEXT_H_

#include "megatron/comm/process_group.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/tensor/memory.h"
#include "megatron/train/metrics/rank_console.h"
#include "megatron/train/rank/pretrain_run.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// Prints what the model makes of the section `generation`, until a stop signal comes to any rank or
// a rank fails. Collective over `world`, all ranks of the run.
void GenerateText(const PretrainRun& run, const ProcessGroup& world, MemoryLedger* ledger,
                  Trainer* trainer, RankConsole* console, RankProgress* progress);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_GENERATE_TEXT_H_
