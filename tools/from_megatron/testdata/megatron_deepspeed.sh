# Megatron-DeepSpeed: the script writes its ds_config.json itself.
DIR=$(dirname "$0")
CONFIG="${DIR}/ds_config.json"
ZERO=${ZERO:-1}
MICRO=2
GLOBAL=64
cat <<JSON > $CONFIG
{
  "train_batch_size": $GLOBAL,
  "train_micro_batch_size_per_gpu": $MICRO,
  "steps_per_print": 1,
  "zero_optimization": {"stage": $ZERO},
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true, "initial_scale_power": 12, "hysteresis": 1},
  "wall_clock_breakdown": true
}
JSON
ARGS="--deepspeed --deepspeed_config=$CONFIG --zero-stage $ZERO --no-pipeline-parallel \
  --deepspeed-activation-checkpointing --checkpoint-activations"
deepspeed --num_gpus 8 pretrain_gpt.py \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --ds-sequence-parallel-size 1 \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size $MICRO --global-batch-size $GLOBAL \
  --train-tokens 300000000000 --lr-decay-tokens 260000000000 --lr-warmup-tokens 3000000000 \
  --lr 2.0e-4 --min-lr 1.0e-6 --lr-decay-style cosine --split 949,50,1 --log-interval 10 \
  --eval-interval 100 --eval-iters 10 --save-interval 1000 --weight-decay 0.1 --clip-grad 0.5 \
  --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.014 --fp16 --vocab-file vocab.json \
  --merge-file merges.txt --data-path /data/pile_text_document --save out --load out \
  --data-impl mmap $ARGS
