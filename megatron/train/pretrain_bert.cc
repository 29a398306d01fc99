// Pretrains a BERT:  pretrain_bert --config=bert_demo.textproto [--set path.to.field=value]...
// [--dry_run]

#include "megatron/train/pretrain_main.h"

int main(int argc, char** argv) {
  return megatron::PretrainMain({"pretrain_bert", "BERT", "bert", "bert_demo"}, argc, argv);
}
