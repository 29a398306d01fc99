#!/bin/bash
# The flags and values of Megatron-LM's DeepSeek-V3 with its FSDP.
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=8
OUT="your_own_output_path"
MODEL="--use-mcore-models --use-flash-attn --disable-bias-linear --transformer-impl transformer_engine \
  --seq-length 4096 --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 \
  --num-attention-heads 128 --kv-channels 128 --max-position-embeddings 4096 \
  --position-embedding-type rope --rotary-base 10000 --make-vocab-size-divisible-by 3232 \
  --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --untie-embeddings-and-output-weights \
  --multi-latent-attention --attention-dropout 0.0 --hidden-dropout 0.0 --qk-layernorm \
  --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 \
  --v-head-dim 128 --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 \
  --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1 --init-method-std 0.02"
EXPERTS="--num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 \
  --moe-shared-expert-intermediate-size 2048 --moe-router-load-balancing-type seq_aux_loss \
  --moe-router-topk 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep \
  --moe-router-pre-softmax --moe-grouped-gemm --moe-aux-loss-coeff 1e-4 \
  --moe-router-group-topk 4 --moe-router-num-groups 8 --moe-router-topk-scaling-factor 2.5 \
  --moe-router-score-function sigmoid --moe-router-enable-expert-bias \
  --moe-router-bias-update-rate 1e-3 --moe-router-dtype fp32 --moe-permute-fusion \
  --moe-router-force-load-balancing"
LAYOUT="--distributed-timeout-minutes 60 --tensor-model-parallel-size 1 \
  --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --context-parallel-size 1 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --sequence-parallel \
  --recompute-granularity selective --recompute-modules mlp moe mla_up_proj layernorm"
TRAINING="--micro-batch-size 4 --global-batch-size 2048 --train-samples 585937500 \
  --exit-duration-in-mins 220 --no-check-for-nan-in-loss-and-grad --manual-gc \
  --manual-gc-interval 10 --clip-grad 1.0 --weight-decay 0.1 --lr-decay-samples 584765624 \
  --lr-warmup-samples 1536000 --lr-warmup-init 3.9e-7 --lr 3.9e-6 --min-lr 3.9e-7 \
  --lr-decay-style cosine --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --calculate-per-token-loss"
DATA="--data-cache-path ${OUT}/cache --tokenizer-type HuggingFaceTokenizer \
  --tokenizer-model deepseek-ai/DeepSeek-V3 --data-path your_own_data_path --split 99,1,0 \
  --no-mmap-bin-files --no-create-attention-mask-in-dataloader --num-workers 6"
LOGS="--eval-iters 32 --eval-interval 100 --auto-detect-ckpt-format --load ${OUT}/checkpoints \
  --save ${OUT}/checkpoints --save-interval 100 --dist-ckpt-strictness log_all \
  --log-timers-to-tensorboard --log-memory-to-tensorboard --log-num-zeros-in-grad \
  --log-params-norm --log-validation-ppl-to-tensorboard --log-throughput --log-interval 1 \
  --logging-level 40 --tensorboard-dir ${OUT}/tensorboard \
  --wandb-project your_own_wandb_project --wandb-exp-name DeepSeek-V3"
FSDP="--enable-experimental --use-megatron-fsdp \
  --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion \
  --init-model-with-meta-device --ckpt-format fsdp_dtensor --fsdp-double-buffer --use-nccl-ub \
  --megatron-fsdp-grad-comm-dtype bf16 --megatron-fsdp-main-grads-dtype bf16"
PROFILE_CMD=""
if [ "${PROFILE:-0}" -eq 1 ]; then
  PROFILE_CMD="nsys profile --sample=none --cpuctxsw=none"
  LOGS="${LOGS} --profile --profile-step-start 10 --profile-step-end 12 --profile-ranks 0"
fi
CMD="cd megatron; ${PROFILE_CMD} python -u pretrain_gpt.py ${MODEL} \
  ${EXPERTS} ${LAYOUT} ${TRAINING} ${DATA} ${LOGS} ${FSDP}"
srun --mpi=pmix -l --container-image image bash -c "${CMD}"
