# The flags and values of Megatron-LM's gpt-oss, with data of its own, in bf16 and with the
# published window: the script has --fp8-* flags, --window-size 128,0 and
# --export-force-local-attention.
while [[ $# -gt 0 ]]; do
  case $1 in
    --data) DATA="$2"; shift 2 ;;
    *) echo "unknown: $1"; exit 1 ;;
  esac
done
PP_SIZE=1
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \
  --no-masked-softmax-fusion --transformer-impl transformer_engine --disable-bias-linear \
  --untie-embeddings-and-output-weights --no-rope-fusion --normalization RMSNorm \
  --num-layers 12 --hidden-size 512 --ffn-hidden-size 2048 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --seq-length 8192 \
  --max-position-embeddings 8192 --use-mcore-models --rotary-percent 1.0 --rope-type rope \
  --position-embedding-type rope --rotary-base 10000 --no-bias-gelu-fusion \
  --no-bias-dropout-fusion --quick-geglu --glu-linear-offset 1.0 --softmax-type learnable \
  --window-attn-skip-freq 2 --activation-func-clamp-value 7.0 --window-size 127,0 \
  --enable-gpt-oss --num-experts 4 --moe-router-topk 2 \
  --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3 --moe-grouped-gemm \
  --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce \
  --moe-ffn-hidden-size 2048 --moe-router-dtype fp32 --moe-z-loss-coeff 1e-3 \
  --moe-permute-fusion --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 \
  --data-cache-path cache --tiktoken-pattern v2 --split '99,1,0' \
  --no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1 \
  --micro-batch-size 1 --global-batch-size 128 --lr 1.0e-5 --train-samples 1953125000 \
  --lr-decay-samples 1949218748 --lr-decay-style cosine --min-lr 1.0e-6 --weight-decay 0.1 \
  --lr-warmup-fraction 0.05 --clip-grad 1.0 --bf16 --use-flash-attn \
  --attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32 \
  --disable-bf16-reduced-precision-matmul --recompute-activations \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size $PP_SIZE \
  --expert-model-parallel-size 1 --sequence-parallel --context-parallel-size 1 \
  --use-distributed-optimizer --log-interval 1 --save-interval 10000 \
  --eval-interval 50000000 --eval-iters 0 --save out --tensorboard-dir "out/tensorboard" \
  --moe-per-layer-logging --no-load-optim --no-load-rng --log-throughput
