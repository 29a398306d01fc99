// Pretraining from a configuration to an exit code: what the pretrain_* binaries do.
#ifndef MEGATRON_TRAIN_PRETRAIN_H_
#define MEGATRON_TRAIN_PRETRAIN_H_

#include <string>
#include <vector>

#include "megatron/train/pretrain_rank.h"

namespace megatron {

struct PretrainCommand {
  std::string model_type = "gpt";      // that the program trains, as in model.model_type
  std::string config;                  // a file, or the name of a shipped configuration
  std::vector<std::string> overrides;  // path.to.field=value
  bool dry_run = false;
  PieceListener on_piece;  // null: nobody listens

  // That give this command, as pretrain_* take them.
  std::vector<std::string> arguments() const;
};

// Started by a launcher this process is one rank of the run; alone it runs, or starts, them all.
// Prints to stdout what it does and to stderr what goes wrong; returns one of exit_code.h.
int Pretrain(const PretrainCommand& command);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRETRAIN_H_
