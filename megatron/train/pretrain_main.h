// The main function of the pretrain_* programs, which differ in what they train, and of programs
// that add something to them: a section of the configuration (config/own_sections.h), or a look at
// what the ranks do.
#ifndef MEGATRON_TRAIN_PRETRAIN_MAIN_H_
#define MEGATRON_TRAIN_PRETRAIN_MAIN_H_

#include <string>

#include "megatron/train/pretrain.h"
#include "megatron/train/rank/pretrain_run.h"

namespace megatron {

struct PretrainProgram {
  std::string name;                    // "pretrain_gpt"
  std::string model;                   // "GPT"
  std::string model_type;              // the kind, as in model.model_type
  std::string example;                 // a shipped configuration
  PieceListener on_piece = nullptr;    // null: nobody listens
  ConfigListener on_config = nullptr;  // null: nobody listens
};

// Returns what main() returns: one of exit_code.h.
int PretrainMain(const PretrainProgram& program, int argc, char** argv);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRETRAIN_MAIN_H_
