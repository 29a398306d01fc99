#!/bin/bash
# The flags and values of Megatron-LM's GPT-3 of 175 billion parameters.
# The script's arguments are the directories of checkpoints and of TensorBoard, the vocabulary, the
# merges and the data.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS=8
NODES=${NODES:-16}
WORLD=$(($GPUS*$NODES))
SAVE=$1 # in and out
TENSORBOARD=$2
VOCAB=$3
MERGES=$4
DATA=$5

LAUNCH=(--nproc_per_node $GPUS --nnodes $NODES --master_addr ${HOST:-localhost})
SHAPE=(
  --num-layers 96
  --hidden-size 12288
  --num-attention-heads 96
  --seq-length 2048 --max-position-embeddings 2048
  --attention-backend auto # or fused
)
TRAINING=(
  --micro-batch-size 1
  --global-batch-size 1536
  --step-batch-size-schedule "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536"
  --train-iters 500000
  --weight-decay 0.1
  --adam-beta1 0.9 --adam-beta2 0.95
  --init-method-std 0.006
  --clip-grad 1.0
  --fp16
  --lr 6.0e-5
  --lr-decay-style cosine
  --min-lr 6.0e-6
  --lr-warmup-fraction .001
  --lr-decay-iters 430000
)
LAYOUT=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
DATA_FLAGS=(--data-path $DATA --vocab-file $VOCAB --merge-file $MERGES --split 949,50,1)
LOGS=(
  --log-interval 100 --save-interval 10000 --eval-interval 1000
  --save $SAVE --load $SAVE
  --eval-iters 10
  --tensorboard-dir $TENSORBOARD
)

torchrun ${LAUNCH[@]} pretrain_gpt.py \
  ${SHAPE[@]} \
  ${TRAINING[@]} \
  ${LAYOUT[@]} \
  ${DATA_FLAGS[@]} \
  ${LOGS[@]}
