#!/bin/bash
# The flags and values of Megatron-LM's BERT of 340 million parameters.
FLAGS="
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
  --seq-length 512 --max-position-embeddings 512 --attention-backend auto \
  --micro-batch-size 4 --global-batch-size 32 --train-iters 1000000 \
  --weight-decay 1e-2 --clip-grad 1.0 --fp16 \
  --lr 0.0001 --lr-decay-iters 990000 --lr-decay-style linear --min-lr 1.0e-5 \
  --lr-warmup-fraction .01 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16
"
DATA="--data-path $DATA_PATH --vocab-file $VOCAB_FILE --split 949,50,1"
LOGS="--log-interval 100 --save-interval 10000 --eval-interval 1000 \
  --save $CHECKPOINTS --load $CHECKPOINTS --eval-iters 10 --tensorboard-dir $TENSORBOARD"

srun --nodes=16 --ntasks-per-node=8 python -u pretrain_bert.py $FLAGS $DATA $LOGS
