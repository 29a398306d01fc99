# The flags and values of Megatron-LM's Llama 3 8B in FP8, as of its version with RMSNorm.
CHECKPOINTS=${1:-"checkpoints/llama3"}
TENSORBOARD=${2:-"tensorboard/llama3"}
TOKENIZER=${3:-MOCK}
DATA=${4:-MOCK}
TP=1; CP=1; PP=1; LAYERS=32; LENGTH=8192; DTYPE=fp8
LAUNCH=(--nproc_per_node 8 --nnodes 1)
MODEL=(
  --use-mcore-models --num-layers $LAYERS --hidden-size 4096 --ffn-hidden-size 14336
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
  --seq-length $LENGTH --max-position-embeddings $LENGTH
  --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0
  --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --normalization RMSNorm
  --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p
  --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING=(
  --micro-batch-size 1 --global-batch-size 128
  --train-samples 1953125000 --lr-decay-samples 1949218748 --lr-warmup-samples 3906252
  --lr 0.00015 --min-lr 0.00001 --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5
  --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1
  --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --grad-reduce-in-bf16
  --cross-entropy-loss-fusion --calculate-per-token-loss
  --manual-gc --empty-unused-memory-level 1 --exit-duration-in-mins 235
)
FP8=()
if [[ "$DTYPE" == "fp8" ]]; then
  FP8+=("--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-amax-compute-algo max"
    "--fp8-param-gather")
fi
LAYOUT=(--tensor-model-parallel-size $TP --context-parallel-size $CP --sequence-parallel)
DDP=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
LAYOUT+=("${DDP[@]}")
DATA_FLAGS=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ "$DATA" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
  DATA_FLAGS+=(--mock-data --tokenizer-type NullTokenizer --vocab-size 128256
    --data-cache-path ${PWD}/cache --tiktoken-pattern v2 --split '99,1,0'
    --no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1)
else
  DATA_FLAGS+=(--data-path "$DATA" --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model "$TOKENIZER" --vocab-size 128256 --split '99,1,0')
fi
LOGS=(
  --log-interval 1 --eval-iters 32 --eval-interval 100 --save-interval 1000 --log-throughput
  --profile --profile-step-start 4 --profile-step-end 6 --ckpt-format torch_dist
  --distributed-timeout-minutes 60 --save "$CHECKPOINTS" --load "$CHECKPOINTS"
  --tensorboard-dir "$TENSORBOARD"
)
if [ ! -f pretrain_gpt.py ]; then
  echo "stand in Megatron-LM"
  exit 1
fi
torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL[@]} ${TRAINING[@]} ${FP8[@]} ${LAYOUT[@]} \
  ${DATA_FLAGS[@]} ${LOGS[@]}
