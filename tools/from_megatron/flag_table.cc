#include "tools/from_megatron/flag_table.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"

namespace megatron {
namespace {

constexpr Effect kResults = Effect::kResults;
constexpr Effect kRounding = Effect::kRounding;
constexpr Effect kSaid = Effect::kSaid;
constexpr Effect kSpeed = Effect::kSpeed;
constexpr Effect kNothing = Effect::kNothing;

constexpr char kKernels[] = "it chooses kernels, which the program does by itself";
constexpr char kOneCheckpointFormat[] =
    "checkpoints have one format here, which every layout loads";
constexpr char kInMetrics[] =
    "metrics.jsonl and TensorBoard's files have the numbers of every step";
constexpr char kTracked[] =
    "bazel run //tools:track sends a run's metrics to W&B, MLflow or trackio";
constexpr char kDiagnostics[] = "logging.diagnostics_interval measures layers and attention scores";
constexpr char kMessages[] = "messages are sent in the way that docs/communication.md describes";
constexpr char kGroups[] = "communicators are made as docs/communication.md describes";
constexpr char kOffload[] = "nothing is moved to the host: the run needs more memory on its GPUs";
constexpr char kFp32State[] = "master weights are fp32 always";
constexpr char kMoments[] = "moments are in fp32, fp8 or bf16, which is rounded by chance";
constexpr char kMoments8[] = "moments in fp8 have no scale, and are rounded by chance";
constexpr char kFp32[] = "it is computed in fp32 always";
constexpr char kExpertMessages[] = "tokens reach their experts by all-to-all";
constexpr char kDispatchByHost[] =
    "parallel.moe_deduplicated_dispatch sends a token to each host of its experts once";
constexpr char kNoGenerator[] =
    "dropout and the order of samples follow from the seed and the sample; no generator is saved";
constexpr char kFaults[] = "ranks watch each other in the way that docs/operations.md describes";
constexpr char kLoader[] = "data files are read in one way";
constexpr char kMtp[] =
    "each layer of multi-token prediction has weights of its own, and one input";
constexpr char kHybrid[] =
    "layers of one branch are those of hybrid_layer_pattern (docs/hybrid.md)";
constexpr char kEvaluation[] = "it changes how evaluations are done, which is the same here always";
constexpr char kOptimizers[] = "the optimizers are adam, sgd, lion, muon, lamb and onebit_adam";
constexpr char kOtherMuon[] = "Muon is that of docs/optimizers.md";
constexpr char kFsdp[] = "sharded weights are gathered and sent as docs/data_parallel.md describes";
constexpr char kInference[] = "it is about inference";

constexpr FlagRow kRows[] = {
    // Other names.
    {"model-parallel-size", "", "parallel.tensor_model_parallel_size", "", kNothing, ""},
    {"intra-layer-model-parallel-size", "", "parallel.tensor_model_parallel_size", "", kNothing,
     ""},
    {"batch-size", "", "train.micro_batch_size", "", kNothing, ""},
    {"warmup", "", "optimizer.lr_warmup_fraction", "", kNothing, ""},
    {"layernorm-epsilon", "", "model.norm_epsilon", "", kNothing, ""},
    {"use-rotary-position-embeddings", "", "model.position_embedding_type", "rope", kNothing, ""},
    {"topk", "", "model.moe_router_topk", "", kNothing, ""},
    {"moe-loss-coeff", "", "model.moe_aux_loss_coeff", "", kNothing, ""},
    {"fp8-hybrid", "", "precision.fp8_format", "hybrid", kNothing, ""},
    {"fp8-e4m3", "", "precision.fp8_format", "e4m3", kNothing, ""},
    {"ds-sequence-parallel-size", "", "parallel.context_parallel_size", "", kSaid,
     "it is context parallelism by all-to-all"},
    {"ds-sequence-parallel-size", "", "parallel.cp_comm_type", "a2a", kNothing, ""},
    {"enable-zbh1-pipeline", "", "parallel.pipeline_schedule", "zb_h1", kNothing, ""},
    {"enable-zbh1-exact-semantics", "", "", "", kNothing, "zb_h1 gives the results of 1f1b"},

    // Switches that turn something off, or on under another name.
    {"no-mmap-bin-files", "", "data.mmap_bin_files", "false", kNothing, ""},
    {"no-data-sharding", "", "data.data_sharding", "false", kNothing, ""},
    {"bert-no-binary-head", "", "model.bert_binary_head", "false", kNothing, ""},
    {"no-fp8-wgrad", "", "precision.fp8_wgrad", "false", kNothing, ""},
    {"no-bias-gelu-fusion", "", "model.activation_func", "gelu_erf", kSaid,
     "Megatron computes the exact GELU without the fusion, and GELU by tanh with it"},
    {"recompute-activations", "", "recompute.recompute_granularity", "selective", kNothing, ""},
    {"checkpoint-activations", "", "recompute.recompute_granularity", "full", kNothing, ""},
    {"activations-checkpoint-method", "", "recompute.recompute_method", "", kNothing, ""},
    {"activations-checkpoint-method", "", "recompute.recompute_granularity", "full", kNothing, ""},
    {"activations-checkpoint-num-layers", "", "recompute.recompute_num_layers", "", kNothing, ""},
    {"checkpoint-num-layers", "", "recompute.recompute_num_layers", "", kNothing, ""},
    {"dataloader-inter-document-masking", "", "data.reset_attention_mask", "true", kSaid,
     "it is reset_attention_mask and reset_position_ids"},
    {"dataloader-inter-document-masking", "", "data.reset_position_ids", "true", kNothing, ""},
    {"distributed-backend", "gloo", "parallel.distributed_backend", "host", kNothing, ""},
    {"distributed-backend", "nccl", "", "", kNothing,
     "NCCL is taken wherever each rank has a GPU of its own"},

    // These are read by code, because they depend on each other.
    {"train-tokens", "", "", "", kNothing, kReadWithOthers},
    {"lr-decay-tokens", "", "", "", kNothing, kReadWithOthers},
    {"lr-warmup-tokens", "", "", "", kNothing, kReadWithOthers},
    {"use-megatron-fsdp", "", "", "", kNothing, kReadWithOthers},
    {"use-custom-fsdp", "", "", "", kNothing, kReadWithOthers},
    {"use-torch-fsdp2", "", "", "", kNothing, kReadWithOthers},
    {"torch-fsdp2-no-reshard-after-forward", "", "", "", kNothing, kReadWithOthers},
    {"data-parallel-sharding-strategy", "", "", "", kNothing, kReadWithOthers},
    {"zero-stage", "", "", "", kNothing, kReadWithOthers},
    {"deepspeed-config", "", "", "", kNothing, kReadWithOthers},

    // Kernels.
    {"use-mcore-models", "", "", "", kNothing, "there is one implementation of each model"},
    {"transformer-impl", "", "", "", kNothing, "there is one implementation of each model"},
    {"attention-backend", "unfused", "", "", kRounding, kKernels},
    {"use-flash-attn", "", "", "", kNothing, kKernels},
    {"use-flash-attn-v2", "", "", "", kNothing, kKernels},
    {"no-masked-softmax-fusion", "", "", "", kNothing, kKernels},
    {"no-bias-swiglu-fusion", "", "", "", kNothing, kKernels},
    {"no-bias-dropout-fusion", "", "", "", kNothing, kKernels},
    {"no-rope-fusion", "", "", "", kNothing, kKernels},
    {"apply-rope-fusion", "", "", "", kNothing, kKernels},
    {"no-gradient-accumulation-fusion", "", "", "", kNothing, kKernels},
    {"no-persist-layer-norm", "", "", "", kNothing, kKernels},
    {"cross-entropy-loss-fusion", "", "", "", kNothing, kKernels},
    {"cross-entropy-fusion-impl", "", "", "", kNothing, kKernels},
    {"moe-grouped-gemm", "", "", "", kNothing, kKernels},
    {"moe-permute-fusion", "", "", "", kNothing, kKernels},
    {"moe-router-fusion", "", "", "", kNothing, kKernels},
    {"moe-use-legacy-grouped-gemm", "", "", "", kNothing, kKernels},
    {"cuda-graph-impl", "transformer_engine", "", "", kSpeed,
     "CUDA graphs are system.cuda_graph_impl: local"},
    {"cuda-graph-impl", "full_iteration", "", "", kSpeed,
     "CUDA graphs are system.cuda_graph_impl: local"},
    {"enable-cuda-graph", "", "system.cuda_graph_impl", "local", kNothing, ""},
    {"external-cuda-graph", "", "", "", kSpeed, "CUDA graphs are system.cuda_graph_impl: local"},
    {"cuda-graph-scope", "", "", "", kSpeed, "a graph is a pass through a pipeline stage"},
    {"cuda-graph-modules", "", "", "", kSpeed, "a graph is a pass through a pipeline stage"},
    {"tp-comm-*", "", "", "", kSpeed, kMessages},
    {"disable-tp-comm-*", "", "", "", kSpeed, kMessages},
    {"no-async-tensor-model-parallel-allreduce", "", "", "", kSpeed, kMessages},
    {"manual-gc", "", "", "", kNothing, "there is no garbage collector"},
    {"manual-gc-interval", "", "", "", kNothing, "there is no garbage collector"},
    {"empty-unused-memory-level", "", "", "", kNothing, "there is no caching allocator to empty"},

    // Precision.
    {"attention-softmax-in-fp32", "", "", "", kNothing, kFp32},
    {"accumulate-allreduce-grads-in-fp32", "", "", "", kNothing, kFp32},
    {"apply-query-key-layer-scaling", "", "", "", kRounding,
     "scores are not divided by the layer's number and multiplied by it again"},
    {"fp16-lm-cross-entropy", "", "", "", kRounding, kFp32},
    {"fp32-residual-connection", "", "", "", kRounding,
     "the residual stream has the type of the activations"},
    {"output-logit-dtype", "", "", "", kRounding, kFp32},
    {"moe-router-dtype", "fp32", "", "", kNothing, kFp32},
    {"moe-router-dtype", "", "", "", kRounding, kFp32},
    {"disable-bf16-reduced-precision-matmul", "", "", "", kNothing, "products are summed in fp32"},
    {"fp8-recipe", "mxfp8", "precision.fp8_recipe", "tensorwise", kRounding,
     "a tensor has one scale, not one for each 32 numbers"},
    {"fp8-interval", "", "", "", kNothing, "scales follow every step"},
    {"tp-only-amax-red", "", "", "", kRounding,
     "delayed scales are made of the largest magnitudes over all ranks"},
    {"fp4-*", "", "", "", kRounding, "there are no 4-bit floats"},
    {"use-precision-aware-optimizer", "", "", "", kNothing,
     "exp_avg_dtype and exp_avg_sq_dtype count without it"},
    {"main-params-dtype", "", "", "", kRounding, kFp32State},
    {"exp-avg-dtype", "fp16", "optimizer.exp_avg_dtype", "bf16", kRounding, kMoments},
    {"exp-avg-dtype", "fp8", "optimizer.exp_avg_dtype", "fp8", kRounding, kMoments8},
    {"exp-avg-sq-dtype", "fp16", "optimizer.exp_avg_sq_dtype", "bf16", kRounding, kMoments},
    {"exp-avg-sq-dtype", "fp8", "optimizer.exp_avg_sq_dtype", "fp8", kRounding, kMoments8},
    {"no-check-for-nan-in-loss-and-grad", "", "", "", kNothing,
     "a gradient that is not finite is never applied"},
    {"check-for-nan-in-loss-and-grad", "", "", "", kNothing,
     "a gradient that is not finite is never applied"},

    // The model: what is not there.
    {"spec", "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec", "", "", kNothing,
     kReadWithOthers},
    {"spec", "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", "", "", kNothing,
     kReadWithOthers},
    {"spec", "", "", "", kResults, "layers of the user's own are not read"},
    {"no-position-embedding", "", "", "", kNothing, "position_embedding_type says it"},
    {"rope-type", "", "", "", kNothing, kReadWithOthers},
    {"mscale", "", "", "", kNothing, kReadWithOthers},
    {"mscale-all-dim", "", "", "", kNothing, kReadWithOthers},
    {"rotary-scaling-factor", "", "", "", kNothing, kReadWithOthers},
    {"squared-relu", "", "model.activation_func", "squared_relu", kNothing, ""},
    {"quick-geglu", "", "model.activation_func", "quick_gelu", kNothing, ""},
    {"quick-geglu", "", "model.gated_linear_unit", "true", kNothing, ""},
    {"enable-gpt-oss", "", "", "", kNothing,
     "it sets YaRN for models of ModelOpt's checkpoints alone; pretraining follows "
     "--position-embedding-type"},
    {"qk-l2-norm", "", "", "", kResults, "queries and keys are normalized by qk_layernorm alone"},
    {"apply-residual-connection-post-layernorm", "", "", "", kResults,
     "the residual stream begins before the norm"},
    {"scaling-recipe", "mup", "model.use_mup", "true", kNothing, ""},
    {"scaling-recipe", "none", "", "", kNothing, "it is what runs do without it"},
    {"scaling-recipe", "", "", "", kResults, "the only recipe is mup"},
    {"scaling-base-hidden-size", "", "model.mup_base_hidden_size", "", kNothing, ""},
    {"scaling-base-head-dim", "", "model.mup_base_head_dim", "", kNothing, ""},
    {"mup-output-mult", "1", "", "", kNothing, "Megatron takes 1 for not set"},
    {"mup-output-mult", "1.0", "", "", kNothing, "Megatron takes 1 for not set"},
    {"mup-width-mult", "", "", "", kNothing, "it is hidden_size / mup_base_hidden_size"},
    {"cache-mla-latents", "", "", "", kNothing, kInference},
    {"mtp-use-repeated-layer", "", "", "", kResults, kMtp},
    {"mtp-hybrid-*", "", "", "", kResults, kMtp},
    {"hybrid-override-pattern", "", "model.hybrid_layer_pattern", "", kNothing, ""},
    {"hybrid-*", "", "", "", kResults, kHybrid},
    {"mamba-*", "", "", "", kResults, kHybrid},
    {"is-hybrid-model", "", "", "", kNothing, kReadWithOthers},
    {"linear-attention-*", "", "", "", kResults, kHybrid},
    {"heterogeneous-*", "", "", "", kResults, "layers that differ from each other are not there"},
    {"experimental-attention-variant*", "", "", "", kResults, "there is one kind of attention"},
    {"no-initialization", "", "", "", kNothing, "weights are initialized where they are kept"},
    {"use-cpu-initialization", "", "", "", kNothing,
     "weights do not depend on the device or the layout"},
    {"init-model-with-meta-device", "", "", "", kNothing,
     "weights are made where they are kept, part by part"},
    {"enable-experimental", "", "", "", kNothing, "nothing is hidden behind a switch"},
    {"data-parallel-random-init", "", "", "", kResults,
     "the ranks that share a model start with the same weights"},

    // Experts.
    {"moe-token-dispatcher-type", "", "", "", kSpeed, kExpertMessages},
    {"moe-flex-dispatcher-backend", "", "", "", kSpeed, kDispatchByHost},
    {"moe-enable-deepep", "", "", "", kSpeed, kDispatchByHost},
    {"moe-shared-expert-overlap", "", "", "", kSpeed, kExpertMessages},
    {"overlap-moe-expert-parallel-comm", "", "", "", kSpeed, kExpertMessages},
    {"moe-layer-recompute", "", "recompute.recompute_granularity", "selective", kNothing, ""},
    {"moe-layer-recompute", "", "recompute.recompute_modules", "moe", kNothing, ""},
    {"moe-router-qb-update-scope", "global_batch", "", "", kNothing, "it is the only one"},
    {"moe-router-qb-update-scope", "", "", "", kResults,
     "quantiles are those of the global batch's tokens"},
    {"moe-upcycling-granularity", "", "", "", kNothing,
     "it is ffn_hidden_size / moe_ffn_hidden_size"},
    {"moe-per-layer-logging", "", "", "", kSpeed, kDiagnostics},
    {"moe-router-force-load-balancing", "", "", "", kResults,
     "the router's choice is never replaced by a random one"},
    {"moe-latent-size", "", "", "", kResults, "experts have the width of the layer"},
    {"moe-router-topk-limited-devices", "", "", "", kResults,
     "groups of experts are model.moe_router_num_groups"},

    // The optimizer.
    {"apply-wd-to-qk-layernorm", "", "", "", kResults, "norms do not decay"},
    {"no-weight-decay-cond-type", "", "", "", kResults, "all but biases and norms decays"},
    {"optimizer", "dist_muon", "optimizer.optimizer", "muon", kSpeed,
     "parallel.use_distributed_optimizer shares out the states of muon"},
    {"muon-nesterov", "", "optimizer.muon_use_nesterov", "", kNothing, ""},
    {"muon-no-split-qkv", "", "optimizer.muon_split_qkv", "false", kNothing, ""},
    {"muon-coefficient-type", "quintic", "", "", kNothing, kOtherMuon},
    {"muon-coefficient-type", "", "", "", kResults, kOtherMuon},
    {"muon-scalar-optimizer", "adam", "", "", kNothing, kOtherMuon},
    {"muon-scalar-optimizer", "", "", "", kResults, kOtherMuon},
    {"soap-*", "", "", "", kResults, kOptimizers},
    {"overlap-cpu-optimizer-d2h-h2d", "", "", "", kNothing,
     "copies always run beside the update in host memory"},
    {"cpu-offloading", "", "", "", kNothing, "recompute.cpu_offloading_num_layers says it"},
    {"cpu-offloading-activations", "", "", "", kNothing,
     "recompute.cpu_offloading_num_layers says it"},
    {"cpu-offloading-double-buffering", "", "", "", kNothing,
     "a GPU has up to three layers of what is offloaded at once"},
    {"cpu-offloading-weights", "", "", "", kSpeed, kOffload},
    {"cpu-optimizer", "", "", "", kSpeed, kOffload},
    {"fine-grained-activation-offloading", "", "recompute.cpu_offloading_auto", "true", kSpeed,
     "Megatron offloads modules of all layers; here the link decides of how many"},
    {"override-opt-param-scheduler", "", "", "", kNothing,
     "the schedule is that of the configuration"},
    {"use-checkpoint-opt-param-scheduler", "", "", "", kResults,
     "the schedule is that of the configuration, not of the checkpoint"},

    // The run.
    {"distribute-saved-activations", "", "", "", kSpeed,
     "each tensor-parallel rank keeps the input of a recomputed layer"},
    {"num-microbatches-with-partial-activation-checkpoints", "", "", "", kSpeed,
     "all micro-batches recompute alike"},
    {"decrease-batch-size-if-needed", "", "", "", kResults,
     "a batch size that cannot be shared out is refused"},
    {"skip-train", "", "", "", kResults, "the program trains"},
    {"start-eval-at-iter", "", "", "", kSpeed, kEvaluation},
    {"eval-global-batch-size", "", "", "", kSpeed, kEvaluation},
    {"eval-micro-batch-size", "", "", "", kSpeed, kEvaluation},
    {"exit-signal-handler", "", "", "", kNothing,
     "a run saves and ends on SIGTERM and SIGINT always"},
    {"exit-signal", "", "", "", kSpeed, "the signals are SIGTERM and SIGINT"},
    {"exit-signal-handler-for-dataloader", "", "", "", kNothing,
     "samples are read by threads, which get no signals"},
    {"adlr-autoresume*", "", "", "", kSpeed, kFaults},
    {"error-injection-*", "", "", "", kSpeed, kFaults},
    {"check-for-large-grads", "", "", "", kSpeed, kFaults},
    {"log-straggler", "", "", "", kSpeed, kFaults},
    {"straggler-*", "", "", "", kSpeed, kFaults},
    {"disable-straggler-on-startup", "", "", "", kSpeed, kFaults},
    {"gpu-sniff-test*", "", "", "", kSpeed, kFaults},
    {"enable-ft-package", "", "", "", kSpeed, kFaults},
    {"calc-ft-timeouts", "", "", "", kSpeed, kFaults},
    {"inprocess-*", "", "", "", kSpeed, kFaults},
    {"run-workload-inspector-server", "", "", "", kSpeed, kFaults},
    {"flight-recorder-dump-path", "", "", "", kSpeed, kFaults},
    {"kill-switch-file", "", "", "", kSpeed, "a run ends on SIGTERM"},
    {"inference-*", "", "", "", kNothing, kInference},
    {"max-tokens-to-oom", "", "", "", kNothing, kInference},

    // Ranks and messages.
    {"local-rank", "", "", "", kNothing, "the launcher's variables say it"},
    {"lazy-mpu-init", "", "", "", kNothing, kGroups},
    {"use-tp-pp-dp-mapping", "", "parallel.rank_order", "tp-cp-ep-pp-dp", kNothing, ""},
    {"nccl-communicator-config-path", "", "", "", kSpeed, kGroups},
    {"use-sharp", "", "", "", kSpeed, kGroups},
    {"sharp-enabled-group", "", "", "", kSpeed, kGroups},
    {"high-priority-stream-groups", "", "", "", kSpeed, kGroups},
    {"disable-gloo-process-groups", "", "", "", kSpeed, kGroups},
    {"enable-gloo-process-groups", "", "", "", kSpeed, kGroups},
    {"pipeline-model-parallel-comm-backend", "", "", "", kSpeed, kGroups},
    {"fake-process-group", "", "", "", kSpeed, "--dry_run plans a run without its ranks"},
    {"no-overlap-p2p-communication", "", "", "", kSpeed, kMessages},
    {"overlap-p2p-communication-warmup-flush", "", "", "", kSpeed, kMessages},
    {"no-scatter-gather-tensors-in-pipeline", "", "", "", kSpeed, kMessages},
    {"defer-embedding-wgrad-compute", "", "", "", kSpeed, kMessages},
    {"wgrad-deferral-limit", "", "", "", kSpeed, kMessages},
    {"delay-wgrad-compute", "", "", "", kSpeed, kMessages},
    {"no-align-grad-reduce", "", "", "", kSpeed, kMessages},
    {"no-align-param-gather", "", "", "", kSpeed, kMessages},
    {"align-param-gather", "", "", "", kSpeed, kMessages},
    {"overlap-param-gather-with-optimizer-step", "", "", "", kSpeed, kMessages},
    {"ddp-num-buckets", "", "", "", kSpeed, "parallel.ddp_bucket_size divides the messages"},
    {"ddp-pad-buckets-for-high-nccl-busbw", "", "", "", kSpeed, kMessages},
    {"ddp-average-in-collective", "", "", "", kRounding,
     "gradients are divided before they are summed, token by token"},
    {"ddp-reduce-scatter-with-fp32-accumulation", "", "", "", kNothing, kFp32},
    {"DDP-impl", "", "", "", kSpeed, kMessages},
    {"no-contiguous-buffers-in-local-ddp", "", "", "", kSpeed, kMessages},
    {"use-contiguous-buffers-in-local-ddp", "", "", "", kSpeed, kMessages},
    {"use-nccl-ub", "", "", "", kSpeed, kFsdp},
    {"fsdp-*", "", "", "", kSpeed, kFsdp},
    {"megatron-fsdp-grad-comm-dtype", "", "", "", kRounding,
     "parallel.grad_reduce_in_bf16 sends gradients in bf16"},
    {"megatron-fsdp-main-grads-dtype", "bf16", "optimizer.main_grads_dtype", "bf16", kNothing,
     "gradients are formed in fp32 and kept in bf16"},
    {"megatron-fsdp-main-grads-dtype", "", "", "", kRounding,
     "gradients are kept in fp32, or in bf16 by optimizer.main_grads_dtype"},
    {"megatron-fsdp-*", "", "", "", kSpeed, kFsdp},
    {"hybrid-context-parallel", "", "", "", kSpeed,
     "the ranks that share a sample are the same for all samples"},
    {"max-seqlen-per-dp-cp-rank", "", "", "", kSpeed,
     "the ranks that share a sample are the same for all samples"},
    {"gtp-*", "", "", "", kSpeed, "weights are shared out over data-parallel ranks alone"},
    {"expert-gtp-*", "", "", "", kSpeed, "weights are shared out over data-parallel ranks alone"},

    // Data.
    {"data-impl", "mmap", "", "", kNothing, kLoader},
    {"no-create-attention-mask-in-dataloader", "", "", "", kNothing,
     "no attention mask is made in memory"},
    {"mid-level-dataset-surplus", "", "", "", kResults, "the surplus is 0.005, the default"},
    {"num-dataset-builder-threads", "", "", "", kSpeed, kLoader},
    {"dataloader-fast-cache-load", "", "", "", kSpeed, kLoader},
    {"dataloader-defer-npy-index-mmap", "", "", "", kSpeed, kLoader},
    {"per-dataset-sequences-path", "", "", "", kSpeed, kLoader},
    {"object-storage-cache-path", "", "", "", kResults, "data files are files"},
    {"enable-msc", "", "", "", kNothing, "data files are files"},
    {"disable-msc", "", "", "", kNothing, "data files are files"},

    // Checkpoints.
    {"no-load-rng", "", "", "", kNothing, kNoGenerator},
    {"no-save-rng", "", "", "", kNothing, kNoGenerator},
    {"no-save-optim", "", "", "", kSpeed, "a checkpoint has the optimizer's state always"},
    {"ckpt-format", "", "", "", kNothing, kOneCheckpointFormat},
    {"auto-detect-ckpt-format", "", "", "", kNothing, kOneCheckpointFormat},
    {"use-dist-ckpt", "", "", "", kNothing, kOneCheckpointFormat},
    {"dist-ckpt-*", "", "", "", kNothing, kOneCheckpointFormat},
    {"ckpt-fully-parallel-*", "", "", "", kNothing, kOneCheckpointFormat},
    {"no-ckpt-fully-parallel-save", "", "", "", kNothing, kOneCheckpointFormat},
    {"ckpt-assume-constant-structure", "", "", "", kNothing, kOneCheckpointFormat},
    {"ckpt-convert-*", "", "", "", kNothing, kOneCheckpointFormat},
    {"async-strategy", "", "", "", kNothing, kOneCheckpointFormat},
    {"use-persistent-ckpt-worker", "", "", "", kNothing, kOneCheckpointFormat},
    {"verify-integrity", "", "", "", kNothing, "checkpoints have checksums, which loading checks"},
    {"exit-on-missing-checkpoint", "", "", "", kNothing,
     "checkpoint.load must hold a checkpoint, unless it is checkpoint.save"},
    {"ckpt-step", "", "", "", kResults,
     "give checkpoint.load the directory of that iteration: .../iter_0001000"},
    {"pretrained-checkpoint", "", "", "", kResults,
     "give it as checkpoint.load, with checkpoint.finetune"},
    {"use-mp-args-from-checkpoint-args", "", "", "", kResults,
     "the configuration must say the layout; nothing is taken from the checkpoint"},
    {"override-ckpt-iteration", "", "", "", kResults, "the iteration is the checkpoint's"},
    {"universal-checkpoint", "", "", "", kResults, "DeepSpeed's checkpoints are not read"},
    {"non-persistent-local-ckpt-dir", "", "checkpoint.local_save", "", kNothing, ""},
    {"non-persistent-save-interval", "", "checkpoint.local_save_interval", "", kNothing, ""},
    {"non-persistent-*", "", "", "", kSpeed,
     "checkpoint.local_save is a directory that each machine has for itself"},
    {"replication*", "", "", "", kSpeed,
     "checkpoint.peer_copies is the number of other machines that have a copy"},

    // The flags of what is written.
    {"tensorboard-log-interval", "", "", "", kSpeed, kInMetrics},
    {"tensorboard-queue-size", "", "", "", kSpeed, "each step is written at once"},
    {"wandb-*", "", "", "", kSpeed, kTracked},
    {"log-timers-to-tensorboard", "", "", "", kSpeed, kInMetrics},
    {"log-batch-size-to-tensorboard", "", "", "", kSpeed, kInMetrics},
    {"log-learning-rate-to-tensorboard", "", "", "", kSpeed, kInMetrics},
    {"log-validation-ppl-to-tensorboard", "", "", "", kSpeed, kInMetrics},
    {"log-memory-to-tensorboard", "", "", "", kSpeed, kInMetrics},
    {"log-world-size-to-tensorboard", "", "", "", kSpeed, kInMetrics},
    {"log-optimizer-states-to-tensorboard", "", "", "", kSpeed, kInMetrics},
    {"no-log-*", "", "", "", kSpeed, kInMetrics},
    {"log-memory-interval", "", "", "", kSpeed, kInMetrics},
    {"log-device-memory-used", "", "", "", kSpeed, kInMetrics},
    {"log-max-attention-logit", "", "", "", kSpeed, kDiagnostics},
    {"log-energy", "", "", "", kSpeed, kInMetrics},
    {"log-progress", "", "", "", kSpeed, kInMetrics},
    {"logging-level", "", "", "", kSpeed, "the log has one level"},
    {"no-barrier-with-level-1-timing", "", "", "", kSpeed, "no timer waits for other ranks"},
    {"use-pytorch-profiler", "", "", "", kSpeed,
     "logging.profile writes a trace for ui.perfetto.dev"},
    {"nvtx-ranges", "", "", "", kSpeed, "logging.profile writes a trace for ui.perfetto.dev"},
    {"record-memory-history", "", "", "", kSpeed, "logging.profile prints memory by name"},
    {"memory-snapshot-path", "", "", "", kSpeed, "logging.profile prints memory by name"},
    {"otel-*", "", "", "", kSpeed, kInMetrics},
    {"save-params-interval", "", "", "", kSpeed, "only checkpoints are saved"},
    {"save-wgrads-interval", "", "", "", kSpeed, "only checkpoints are saved"},
    {"save-dgrads-interval", "", "", "", kSpeed, "only checkpoints are saved"},
    {"save-activations-interval", "", "", "", kSpeed, "only checkpoints are saved"},
    {"save-tokens-per-expert-interval", "", "", "", kSpeed, "only checkpoints are saved"},

    // Megatron-DeepSpeed.
    {"deepspeed", "", "", "", kNothing, "the data-parallel ranks do what its engine does"},
    {"deepspeed-activation-checkpointing", "", "", "", kNothing,
     "recompute.recompute_granularity says it"},
    {"no-pipeline-parallel", "", "", "", kNothing, "parallel.pipeline_model_parallel_size says it"},
    {"force-ds-sequence-parallel", "", "", "", kNothing, "parallel.cp_comm_type says it"},
    {"data-efficiency-curriculum-learning", "", "", "", kResults,
     "samples are not chosen by difficulty; data.curriculum_learning lets them begin short"},
    {"curriculum-learning", "", "", "", kNothing, "DeepSpeed's configuration says it"},
    {"random-ltd", "", "", "", kNothing, "DeepSpeed's configuration says it"},
    {"kd", "", "", "", kResults, "there is no teacher model"},
    {"mos", "", "", "", kResults, "there is no teacher model"},
    {"reset-iteration", "", "", "", kResults, "checkpoint.finetune starts at iteration 0"},
    {"load-tag", "", "", "", kResults, "DeepSpeed's checkpoints are not read"},
    {"repeated-dataloader", "", "", "", kNothing, "samples are repeated as often as is needed"},
};

// Fields that no flag of Megatron's sets, and whole messages of such fields.
constexpr absl::string_view kOurOwn[] = {
    "checkpoint.keep_last",
    "checkpoint.peer_copies",
    "checkpoint.save_huggingface",
    "data.curriculum_learning",
    "data.random_ltd",
    "data.loss_weights",
    "data.sampling_alpha",
    "data.sft_long_conversations",
    "data.stories",
    "data.task",
    "diloco",
    "elasticity",
    "federated",
    "generation",
    "gradient_compression",
    "logging.diagnostics_interval",
    "logging.log_interval_seconds",
    "logging.metrics_file",
    "logging.metrics_port",
    "logging.on_event",
    "logging.pipeline_timeline_file",
    "logging.profile_dir",
    "logging.prometheus_textfile",
    "logging.spike_threshold",
    "logging.spike_window",
    "model.add_mlp_bias",
    "model.add_output_bias",
    "model.attn_logit_softcapping",
    "model.disable_bias_norm",
    "model.embedding_scale",
    "model.final_logit_softcapping",
    "model.gated_linear_unit",
    "model.longrope_attention_factor",
    "model.longrope_long_factors",
    "model.longrope_original_max_position_embeddings",
    "model.longrope_short_factors",
    "model.lora",
    "model.mamba_norm_all_groups",
    "model.model_type",
    "model.moe_router_group_score_topk",
    "model.num_choices",
    "model.num_classes",
    "model.num_tokentypes",
    "model.output_scale",
    "model.parallel_residual",
    "model.parallel_residual_shared_norm",
    "model.post_norm",
    "model.qk_layernorm_all_heads",
    "model.qk_layernorm_each_head",
    "model.reordered_norm",
    "model.residual_multiplier",
    "model.rotary_base_local",
    "model.sandwich_norm",
    "model.softmax_scale",
    "model.use_scaled_init_method",
    "optimizer.coeff_beta",
    "optimizer.delayed_update",
    "optimizer.delayed_update_warmup_steps",
    "optimizer.factor_max",
    "optimizer.factor_min",
    "optimizer.factor_threshold",
    "optimizer.freeze",
    "optimizer.freeze_step",
    "optimizer.lamb_max_coeff",
    "optimizer.lamb_min_coeff",
    "optimizer.lion_beta1",
    "optimizer.lion_beta2",
    "optimizer.local_step_clipper",
    "optimizer.local_step_scaler",
    "optimizer.optimizer_offload_path",
    "optimizer.store_param_remainders",
    "optimizer.var_freeze_step",
    "optimizer.var_update_scaler",
    "parallel.check_collectives",
    "parallel.collective_algorithm",
    "parallel.communication_data_type",
    "parallel.data_parallel_size",
    "parallel.grad_cpu_offload",
    "parallel.gradient_predivide_factor",
    "parallel.heartbeat_timeout_seconds",
    "parallel.hierarchical_collectives_ranks_per_host",
    "parallel.in_process_recovery",
    "parallel.min_data_parallel_size",
    "parallel.moe_deduplicated_dispatch",
    "parallel.moe_dispatch_in_parts",
    "parallel.param_cpu_offload",
    "parallel.param_offload_path",
    "parallel.pipeline_pass_costs",
    "parallel.pipeline_schedule",
    "parallel.prescale_gradients",
    "parallel.rank_order",
    "parallel.rank_replacements",
    "parallel.ranks_as",
    "parallel.restarts",
    "parallel.shard_copies",
    "parallel.shard_copy_interval",
    "parallel.sparse_gradients",
    "parallel.stuck_rank_timeout_seconds",
    "parallel.sum_in_rank_order",
    "parallel.tensor_parallel_depth",
    "parallel.tensor_parallel_mode",
    "parallel.topology_file",
    "parallel.zero_hpz_partition_size",
    "parallel.zero_quantized_gradients",
    "parallel.zero_quantized_weights",
    "precision.fp8_power_of_two_scales",
    "recompute.attention_chunk_tokens",
    "recompute.attention_chunks_on_host",
    "recompute.mlp_chunk_tokens",
    "system.attention_plan_file",
    "system.device",
    "system.fuse_bias_gradients",
    "system.fuse_gelu",
    "system.gemm_plan_file",
    "system.hardware_file",
    "system.kernels_file",
    "system.bind_cores_to_rank",
    "system.num_threads",
    "system.time_gemm_kernels",
    "train.auto_layout",
    "train.auto_layout_ranks",
    "train.eval_tasks",
    "train.eval_tasks_interval",
    "train.eval_tasks_limit",
    "train.logits_chunk_tokens",
    "train.overlapping_eval",
    "train.rerun_interval",
};

std::string WithUnderscores(absl::string_view name) {
  return absl::StrReplaceAll(name, {{"-", "_"}});
}

// Returns the rows' flags with underscores for dashes, in the order of the rows.
const std::vector<std::string>& RowNames() {
  static const auto* const names = [] {
    auto* const made = new std::vector<std::string>;
    for (const FlagRow& row : kRows) made->push_back(WithUnderscores(row.flag));
    return made;
  }();
  return *names;
}

using PathsByName = absl::flat_hash_map<std::string, std::string>;

PathsByName FindPaths() {
  PathsByName paths;
  for (const std::string& path : AllPaths(*config::PretrainConfig::descriptor())) {
    const size_t dot = path.rfind('.');
    // The numbers of a ramp-up are values of its flag, not flags.
    if (dot == std::string::npos || IsOurOwnField(path) ||
        absl::StartsWith(path, "train.rampup_batch_size."))
      continue;
    paths.emplace(path.substr(dot + 1), path);
  }
  return paths;
}

std::vector<std::string> FindFlags() {
  std::vector<std::string> flags;
  for (const FlagRow& row : kRows) {
    if (!absl::EndsWith(row.flag, "*")) flags.emplace_back(row.flag);
  }
  for (const std::string& path : AllPaths(*config::PretrainConfig::descriptor())) {
    const std::string name = path.substr(path.rfind('.') + 1);
    if (FindField(name) == path) flags.push_back(absl::StrReplaceAll(name, {{"_", "-"}}));
  }
  return flags;
}

// Returns whether the row's name stands for the flag. Both have underscores for dashes.
bool Names(absl::string_view row, absl::string_view flag) {
  if (absl::ConsumeSuffix(&row, "*")) return absl::StartsWith(flag, row);
  return flag == row;
}

}  // namespace

absl::Span<const FlagRow> AllFlagRows() { return kRows; }

std::vector<const FlagRow*> FindRows(absl::string_view flag, absl::string_view value) {
  const std::string name = WithUnderscores(flag);
  std::vector<const FlagRow*> exact, prefix, fallback;
  for (size_t i = 0; i < RowNames().size(); ++i) {
    if (!Names(RowNames()[i], name)) continue;
    const FlagRow& row = kRows[i];
    if (absl::EndsWith(row.flag, "*")) {
      prefix.push_back(&row);
    } else if (row.value.empty()) {
      fallback.push_back(&row);
    } else if (row.value == value) {
      exact.push_back(&row);
    }
  }
  if (!exact.empty()) return exact;
  if (!fallback.empty() || !FindField(flag).empty()) return fallback;
  return prefix;
}

std::string FindField(absl::string_view flag) {
  static const auto* const paths = new PathsByName(FindPaths());
  const auto found = paths->find(WithUnderscores(flag));
  return found == paths->end() ? "" : found->second;
}

const std::vector<std::string>& KnownFlags() {
  static const auto* const flags = new std::vector<std::string>(FindFlags());
  return *flags;
}

absl::Span<const DefaultRow> DefaultRows() {
  static constexpr DefaultRow kDefaults[] = {
      {"train.calculate_per_token_loss", "false", "false", "false", "true"},
      {"data.tokenizer_type", "GPT2BPETokenizer", "BertWordPieceLowerCase",
       "BertWordPieceLowerCase", "ByteLevel"},
      {"data.sft_tokenizer_prompt_format", "nemotron_h_aligned", "nemotron_h_aligned",
       "nemotron_h_aligned", "plain"},
      {"data.data_sharding", "true", "true", "true", "false"},
      {"model.moe_router_load_balancing_type", "aux_loss", "aux_loss", "aux_loss", "seq_aux_loss"},
      {"precision.fp8_recipe", "delayed", "delayed", "delayed", "tensorwise"},
  };
  return kDefaults;
}

bool IsOurOwnField(absl::string_view path) {
  return absl::c_any_of(kOurOwn, [&](absl::string_view own) {
    return path == own || (absl::StartsWith(path, own) && path[own.size()] == '.');
  });
}

}  // namespace megatron
