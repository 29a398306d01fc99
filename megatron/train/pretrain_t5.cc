// Pretrains a T5:  pretrain_t5 --config=t5_demo.textproto [--set path.to.field=value]...
// [--dry_run]

#include "megatron/train/pretrain_main.h"

int main(int argc, char** argv) {
  return megatron::PretrainMain({"pretrain_t5", "T5", "t5", "t5_demo"}, argc, argv);
}
