// Pretrains a GPT:  pretrain_gpt --config=gpt_demo.textproto [--set path.to.field=value]...
// [--dry_run]

#include "megatron/train/pretrain_main.h"

int main(int argc, char** argv) {
  return megatron::PretrainMain({"pretrain_gpt", "GPT", "gpt", "gpt_demo"}, argc, argv);
}
