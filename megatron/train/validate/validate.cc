#include "megatron/train/validate/validate.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/layers/context_slice.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/config/config_checker.h"
#include "megatron/train/validate/pipeline_config.h"
#include "megatron/train/validate/validate_experts.h"
#include "megatron/train/validate/validate_profile.h"
#include "megatron/train/validate/validate_t5.h"

namespace megatron {
namespace {

constexpr double kMostTokens = 9e18;          // of a run, in 64 bits
constexpr double kWidestAttention = 1 << 22;  // num_attention_heads * kv_channels
constexpr int64_t kShortestBertSample = 5;    // two pieces of a token and three special ones
constexpr int kMostSplits = 3;
constexpr int64_t kMostThreads = 256;
constexpr int64_t kMostPlannedRanks = 1 << 20;

void CheckRequired(ConfigChecker& check) {
  const bool t5 = check.resolved().model().model_type() == config::ModelType::t5;
  for (absl::string_view path :
       {"model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.seq_length",
        "optimizer.lr", "train.micro_batch_size", "train.train_iters"}) {
    if (t5 && path == "model.num_layers" && check.IsWritten("model.encoder_num_layers")) continue;
    if (t5 && path == "model.seq_length" && check.IsWritten("model.encoder_seq_length")) continue;
    if (!check.IsWritten(path) && !check.locations().IsBroken(path)) {
      check.Error(path, absl::StrCat("is required: ", check.Accepted(path)));
    }
  }
}

void CheckHeads(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  if (!check.raw().model().has_kv_channels() &&
      check.Usable({"model.hidden_size", "model.num_attention_heads"}) &&
      model.hidden_size() % model.num_attention_heads() != 0) {
    check.Error("model.hidden_size",
                absl::StrCat("must be divisible by ", check.Named("model.num_attention_heads"),
                             ", or model.kv_channels be set"));
  }
  if (check.Usable({"model.num_attention_heads", "model.kv_channels"}) &&
      static_cast<double>(model.num_attention_heads()) * model.kv_channels() > kWidestAttention) {
    check.Error("model.num_attention_heads",
                absl::StrCat("times ", check.Named("model.kv_channels"), " must be at most ",
                             static_cast<int64_t>(kWidestAttention)));
  }
  if (!model.group_query_attention()) {
    if (check.IsWritten("model.num_query_groups") &&
        model.num_query_groups() != model.num_attention_heads()) {
      check.Error(
          "model.num_query_groups",
          absl::StrCat("needs model.group_query_attention: true; without it there are as many as ",
                       check.Named("model.num_attention_heads")));
    }
  } else if (!check.IsWritten("model.num_query_groups")) {
    if (!check.locations().IsBroken("model.num_query_groups"))
      check.Error("model.group_query_attention", "needs model.num_query_groups");
  } else {
    check.MustDivide("model.num_query_groups", "model.num_attention_heads",
                     model.num_query_groups(), model.num_attention_heads());
  }
}

void CheckPositions(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  if (check.Usable({"model.seq_length", "model.max_position_embeddings"}) &&
      model.seq_length() > model.max_position_embeddings()) {
    check.Error("model.max_position_embeddings",
                absl::StrCat("must be at least ", check.Named("model.seq_length")));
  }
  if (model.position_embedding_type() != config::PositionEmbedding::rope) {
    check.HaveNoEffect({"model.rotary_base", "model.rotary_percent", "model.rotary_interleaved",
                        "model.rotary_seq_len_interpolation_factor", "model.use_rope_scaling",
                        "model.rope_scaling_factor"},
                       absl::StrCat("with ", check.Named("model.position_embedding_type")));
    return;
  }
  if (!model.use_rope_scaling()) {
    check.HaveNoEffect({"model.rope_scaling_factor"},
                       absl::StrCat("with ", check.Named("model.use_rope_scaling")));
  }
  if (!check.Usable({"model.kv_channels", "model.rotary_percent"})) return;
  const int64_t rotated =
      static_cast<int64_t>(static_cast<double>(model.kv_channels()) * model.rotary_percent());
  if (rotated < 2 || rotated % 2 != 0) {
    check.Error("model.rotary_percent",
                absl::StrCat("of ", check.Named("model.kv_channels"), " rotates ", rotated,
                             " channels; an even number of at least 2 is needed"));
  }
}

void CheckNetworkChoices(ConfigChecker& check) {
  if (check.resolved().model().swiglu())
    check.HaveNoEffect({"model.activation_func", "model.gated_linear_unit"},
                       absl::StrCat("with ", check.Named("model.swiglu")));
  if (!check.resolved().model().disable_bias_linear()) {
    check.HaveNoEffect({"model.add_qkv_bias"},
                       absl::StrCat("with ", check.Named("model.disable_bias_linear")));
  }
}

void CheckBert(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const std::string type = absl::StrCat("with ", check.Named("model.model_type"));
  if (model.model_type() == config::ModelType::gpt)
    check.HaveNoEffect({"data.mask_prob", "data.short_seq_prob"}, type);
  if (model.model_type() != config::ModelType::bert)
    return check.HaveNoEffect({"model.bert_binary_head", "model.num_tokentypes"}, type);
  check.HaveNoEffect({"data.reset_position_ids", "data.reset_attention_mask", "data.eod_mask_loss",
                      "data.fim_data", "generation.tokens_to_generate", "generation.temperature",
                      "generation.top_k", "generation.top_p", "generation.seed"},
                     type);
  if (model.bert_binary_head() && check.Usable({"model.num_tokentypes"}) &&
      model.num_tokentypes() < 2) {
    check.Error("model.num_tokentypes",
                absl::StrCat("must be at least 2 with ", check.Named("model.bert_binary_head")));
  }
  if (check.Usable({"model.seq_length"}) && model.seq_length() < kShortestBertSample) {
    check.Error("model.seq_length",
                absl::StrCat("must be at least ", kShortestBertSample, " ", type));
  }
  if (check.resolved().has_generation() &&
      !absl::StrContains(check.resolved().generation().prompt(), "[MASK]")) {
    check.Error("generation.prompt", absl::StrCat("must hold a [MASK] ", type));
  }
}

void CheckLayout(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const int64_t tensor = check.resolved().parallel().tensor_model_parallel_size();
  check.MustDivide(kTensor, "model.num_attention_heads", tensor, model.num_attention_heads());
  check.MustDivide(kTensor, "model.ffn_hidden_size", tensor, model.ffn_hidden_size());
  check.MustDivide(kTensor, "model.make_vocab_size_divisible_by", tensor,
                   model.make_vocab_size_divisible_by());
  if (model.group_query_attention() && check.Usable({kTensor, "model.num_query_groups"}) &&
      model.num_query_groups() % tensor != 0 && tensor % model.num_query_groups() != 0) {
    check.Error("model.num_query_groups",
                absl::StrCat("must divide, or be divisible by, ", check.Named(kTensor)));
  }
  // What a T5 packs has room to be filled up, whatever its lengths.
  if (check.resolved().parallel().sequence_parallel() &&
      model.model_type() != config::ModelType::t5 && check.Usable({kTensor, "model.seq_length"}) &&
      model.seq_length() % tensor != 0) {
    check.Error("model.seq_length", absl::StrCat("must be divisible by ", check.Named(kTensor),
                                                 " with parallel.sequence_parallel: true"));
  }
}

// Samples that differ in length are filled up to what can be shared out evenly, which must have
// room in a sample of the greatest length.
void CheckStripes(ConfigChecker& check) {
  constexpr char kContext[] = "parallel.context_parallel_size";
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (!check.Usable({"model.seq_length", kTensor})) return;
  const bool rows = parallel.sequence_parallel() && parallel.tensor_model_parallel_size() > 1;
  const int64_t multiple = kContextStripe * parallel.context_parallel_size() *
                           (rows ? parallel.tensor_model_parallel_size() : 1);
  if (check.resolved().model().seq_length() % multiple == 0) return;
  check.Error("model.seq_length",
              absl::StrCat("must be divisible by ", kContextStripe, " * ", check.Named(kContext),
                           rows ? absl::StrCat(" * ", check.Named(kTensor)) : "", " with ",
                           check.Named("model.model_type")));
}

// Samples of one length are cut into chunks of equal length.
void CheckChunks(ConfigChecker& check) {
  constexpr char kContext[] = "parallel.context_parallel_size";
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const int64_t size = parallel.context_parallel_size();
  const int64_t length = check.resolved().model().seq_length();
  if (!check.Usable({"model.seq_length"})) return;
  if (length % (2 * size) != 0) {
    check.Error("model.seq_length", absl::StrCat("must be divisible by 2 * ", check.Named(kContext),
                                                 ": each rank has a part from each end"));
  } else if (parallel.sequence_parallel() && check.Usable({kTensor}) &&
             length / size % parallel.tensor_model_parallel_size() != 0) {
    check.Error("model.seq_length",
                absl::StrCat("must be divisible by ", check.Named(kContext), " times ",
                             check.Named(kTensor), " with parallel.sequence_parallel: true"));
  }
}

// How samples and heads are shared out over context-parallel ranks.
void CheckContext(ConfigChecker& check) {
  constexpr char kContext[] = "parallel.context_parallel_size";
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  const config::ModelConfig& model = check.resolved().model();
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const int64_t size = parallel.context_parallel_size();
  if (!check.Usable({kContext})) return;
  if (size == 1) {
    return check.HaveNoEffect({"parallel.cp_comm_type"},
                              absl::StrCat("with ", check.Named(kContext)));
  }
  if (model.model_type() == config::ModelType::bert) CheckStripes(check);
  if (model.model_type() == config::ModelType::gpt) CheckChunks(check);
  if (parallel.cp_comm_type() != config::ContextParallelComm::a2a) return;
  const char* const heads =
      model.group_query_attention() ? "model.num_query_groups" : "model.num_attention_heads";
  const int64_t count =
      model.group_query_attention() ? model.num_query_groups() : model.num_attention_heads();
  if (check.Usable({heads, kTensor}) &&
      count % (size * parallel.tensor_model_parallel_size()) != 0) {
    check.Error(heads,
                absl::StrCat("must be divisible by ", check.Named(kContext), " times ",
                             check.Named(kTensor), " with ", check.Named("parallel.cp_comm_type")));
  }
}

void CheckDataParallel(ConfigChecker& check) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (!parallel.use_distributed_optimizer()) {
    check.HaveNoEffect(
        {"parallel.data_parallel_sharding_strategy", "parallel.overlap_param_gather"},
        "without parallel.use_distributed_optimizer: true");
  }
  if (parallel.data_parallel_sharding_strategy() != config::DataParallelSharding::optim) {
    check.HaveNoEffect(
        {"parallel.ddp_bucket_size"},
        absl::StrCat("with ", check.Named("parallel.data_parallel_sharding_strategy"),
                     ", where a layer is whole only while it is used"));
  }
  if (parallel.grad_reduce_in_bf16() && !check.resolved().precision().bf16())
    check.Error("parallel.grad_reduce_in_bf16", "needs precision.bf16: true");
}

void CheckBackend(ConfigChecker& check) {
  constexpr absl::string_view kBackend = "parallel.distributed_backend";
  const std::initializer_list<absl::string_view> of_nccl = {"parallel.sum_in_rank_order",
                                                            "parallel.check_collectives"};
  const config::SystemConfig& system = check.resolved().system();
  if (system.has_device() && system.device() == config::Device::cpu) {
    if (check.IsWritten(kBackend)) check.Error(kBackend, "has no effect with system.device: cpu");
    check.HaveNoEffect(of_nccl, "with system.device: cpu");
  }
  if (!check.IsWritten(kBackend) ||
      check.resolved().parallel().distributed_backend() == config::DistributedBackend::nccl)
    return;
  check.HaveNoEffect(of_nccl, "with parallel.distributed_backend: host");
  if (system.device() != config::Device::cuda) return;
  for (absl::string_view path : {"parallel.overlap_grad_reduce", "parallel.overlap_param_gather"}) {
    if (!check.IsDefault(path))
      check.Error(path, absl::StrCat("on GPUs NCCL alone overlaps, not ", check.Named(kBackend)));
  }
}

void CheckGemms(ConfigChecker& check) {
  constexpr absl::string_view kTime = "system.time_gemm_kernels";
  const std::initializer_list<absl::string_view> fields = {"system.gemm_plan_file", kTime};
  const config::SystemConfig& system = check.resolved().system();
  if (system.has_device() && system.device() == config::Device::cpu)
    check.HaveNoEffect(fields, "with system.device: cpu");
  if (system.time_gemm_kernels() &&
      check.resolved().parallel().ranks_as() == config::RanksAs::processes) {
    check.Error(kTime,
                "ranks that are processes would each choose kernels of their own; time them in a "
                "run with parallel.ranks_as: threads, then give all its system.gemm_plan_file");
  }
}

void CheckPrecision(ConfigChecker& check) {
  const config::PrecisionConfig& precision = check.resolved().precision();
  if (precision.fp16() && precision.bf16()) {
    check.Error("precision.fp16",
                absl::StrCat("contradicts ", check.Named("precision.bf16"), "; choose one"));
  }
  const std::initializer_list<absl::string_view> dynamic = {
      "precision.initial_loss_scale", "precision.min_loss_scale", "precision.loss_scale_window",
      "precision.hysteresis"};
  if (!precision.fp16()) {
    check.HaveNoEffect({"precision.loss_scale"}, "without precision.fp16: true");
    check.HaveNoEffect(dynamic, "without precision.fp16: true");
  } else if (check.IsWritten("precision.loss_scale")) {
    check.HaveNoEffect(dynamic,
                       absl::StrCat("with the fixed ", check.Named("precision.loss_scale")));
  } else if (check.Usable({"precision.min_loss_scale", "precision.initial_loss_scale"}) &&
             precision.min_loss_scale() > precision.initial_loss_scale()) {
    check.Error("precision.min_loss_scale",
                absl::StrCat("must be at most ", check.Named("precision.initial_loss_scale")));
  }
}

void CheckRecompute(ConfigChecker& check) {
  const config::RecomputeConfig& recompute = check.resolved().recompute();
  const std::string granularity =
      absl::StrCat("with ", check.Named("recompute.recompute_granularity"));
  if (recompute.recompute_granularity() != config::RecomputeGranularity::full) {
    check.HaveNoEffect({"recompute.recompute_method", "recompute.recompute_num_layers"},
                       granularity);
  } else if (check.Usable({"recompute.recompute_num_layers", "model.num_layers"}) &&
             recompute.recompute_num_layers() > check.resolved().model().num_layers()) {
    check.Error("recompute.recompute_num_layers",
                absl::StrCat("must be at most ", check.Named("model.num_layers")));
  }
  if (recompute.recompute_granularity() != config::RecomputeGranularity::selective) {
    check.HaveNoEffect({"recompute.recompute_modules"}, granularity);
  }
  const std::set<int> distinct(recompute.recompute_modules().begin(),
                               recompute.recompute_modules().end());
  if (static_cast<int>(distinct.size()) != recompute.recompute_modules_size()) {
    check.Error("recompute.recompute_modules", "names a module twice");
  }
}

void CheckLearningRate(ConfigChecker& check) {
  const config::OptimizerConfig& optimizer = check.resolved().optimizer();
  check.MustNotExceed("optimizer.min_lr", "optimizer.lr", optimizer.min_lr(), optimizer.lr());
  check.MustNotExceed("optimizer.lr_warmup_init", "optimizer.lr", optimizer.lr_warmup_init(),
                      optimizer.lr());
  if (check.IsWritten("optimizer.lr_warmup_fraction") && optimizer.lr_warmup_iters() > 0) {
    check.Error(
        "optimizer.lr_warmup_fraction",
        absl::StrCat("contradicts ", check.Named("optimizer.lr_warmup_iters"), "; choose one"));
  }
  if (check.Usable({"optimizer.lr_warmup_iters", "optimizer.lr_decay_iters"}) &&
      optimizer.lr_warmup_iters() >= optimizer.lr_decay_iters()) {
    check.Error(
        "optimizer.lr_warmup_iters",
        absl::StrCat("must be less than ", check.Named("optimizer.lr_decay_iters"),
                     "; lower optimizer.lr_warmup_iters or raise ",
                     check.IsWritten("optimizer.lr_decay_iters") ? "optimizer.lr_decay_iters"
                                                                 : "train.train_iters"));
  }
  if (optimizer.lr_decay_style() != config::LrDecayStyle::WSD) {
    check.HaveNoEffect({"optimizer.lr_wsd_decay_style", "optimizer.lr_wsd_decay_iters"},
                       absl::StrCat("with ", check.Named("optimizer.lr_decay_style")));
  } else if (!check.IsWritten("optimizer.lr_wsd_decay_iters")) {
    check.Error("optimizer.lr_wsd_decay_iters",
                absl::StrCat("is required by ", check.Named("optimizer.lr_decay_style")));
  } else {
    check.MustNotExceed("optimizer.lr_wsd_decay_iters", "optimizer.lr_decay_iters",
                        optimizer.lr_wsd_decay_iters(), optimizer.lr_decay_iters());
  }
}

void CheckOptimizer(ConfigChecker& check) {
  const config::OptimizerConfig& optimizer = check.resolved().optimizer();
  const std::string style = check.Named("optimizer.weight_decay_incr_style");
  const bool constant =
      optimizer.weight_decay_incr_style() == config::WeightDecayIncrStyle::constant;
  for (absl::string_view path : {"optimizer.start_weight_decay", "optimizer.end_weight_decay"}) {
    if (!constant && !check.IsWritten(path)) {
      check.Error("optimizer.weight_decay_incr_style", absl::StrCat("needs ", path));
    }
    if (constant && check.Usable({path, "optimizer.weight_decay"}) &&
        check.ValueOf(path) != check.ValueOf("optimizer.weight_decay")) {
      check.Error(path, absl::StrCat("differs from ", check.Named("optimizer.weight_decay"),
                                     ", which ", style, " holds on to"));
    }
  }
  if (!constant) check.HaveNoEffect({"optimizer.weight_decay"}, absl::StrCat("with ", style));
  const std::string kind = absl::StrCat("with ", check.Named("optimizer.optimizer"));
  if (optimizer.optimizer() == config::Optimizer::adam) {
    check.HaveNoEffect({"optimizer.sgd_momentum"}, kind);
  } else {
    check.HaveNoEffect({"optimizer.adam_beta1", "optimizer.adam_beta2", "optimizer.adam_eps"},
                       kind);
  }
}

// Samples that all data-parallel ranks together take in one micro-step.
int64_t SamplesPerMicroStep(const ConfigChecker& check) {
  return check.resolved().train().micro_batch_size() *
         check.resolved().parallel().data_parallel_size();
}

void MustBeWholeMicroSteps(ConfigChecker& check, absl::string_view path, int64_t samples) {
  if (!check.Usable({path, "train.micro_batch_size", "parallel.data_parallel_size"})) return;
  const int64_t together = SamplesPerMicroStep(check);
  if (samples % together == 0) return CheckThatPipelineIsFilled(check, path, samples / together);
  check.Error(path, absl::StrCat("must be divisible by ", check.Named("train.micro_batch_size"),
                                 " times ", check.Named("parallel.data_parallel_size")));
}

void CheckBatch(ConfigChecker& check) {
  MustBeWholeMicroSteps(check, "train.global_batch_size",
                        check.resolved().train().global_batch_size());
  if (!check.Usable({"train.train_iters", "train.global_batch_size", "model.seq_length"})) return;
  const double tokens = static_cast<double>(check.resolved().train().train_iters()) *
                        static_cast<double>(check.resolved().train().global_batch_size()) *
                        static_cast<double>(check.resolved().model().seq_length());
  if (tokens > kMostTokens) {
    check.Error("train.train_iters", absl::StrCat("times ", check.Named("train.global_batch_size"),
                                                  " times ", check.Named("model.seq_length"),
                                                  " is more tokens than 64 bits can count"));
  }
}

void CheckRampup(ConfigChecker& check) {
  if (!check.raw().train().has_rampup_batch_size()) return;
  constexpr char kStart[] = "train.rampup_batch_size.start";
  constexpr char kIncrement[] = "train.rampup_batch_size.increment";
  constexpr char kGlobal[] = "train.global_batch_size";
  for (absl::string_view path : {kStart, kIncrement, "train.rampup_batch_size.samples"}) {
    if (!check.IsWritten(path) && !check.locations().IsBroken(path))
      check.Error(path, "is required by train.rampup_batch_size");
  }
  const config::RampupBatchSize& rampup = check.resolved().train().rampup_batch_size();
  MustBeWholeMicroSteps(check, kStart, rampup.start());
  MustBeWholeMicroSteps(check, kIncrement, rampup.increment());
  if (!check.Usable({kStart, kGlobal})) return;
  const int64_t growth = check.resolved().train().global_batch_size() - rampup.start();
  if (growth <= 0) {
    check.Error(kStart, absl::StrCat("must be less than ", check.Named(kGlobal)));
  } else if (check.Usable({kIncrement}) && growth % rampup.increment() != 0) {
    check.Error(kIncrement, absl::StrCat("must divide ", check.Named(kGlobal), " less ",
                                         check.Named(kStart), ", which is ", growth));
  }
}

void CheckSplit(ConfigChecker& check, const std::string& split) {
  double sum = 0;
  int count = 0;
  for (absl::string_view part : absl::StrSplit(split, ',')) {
    double share;
    if (++count > kMostSplits || !absl::SimpleAtod(part, &share) || !(share >= 0 && share <= 1e9)) {
      return check.Error("data.split",
                         "expects up to three shares that are not negative, as in \"969,30,1\"");
    }
    sum += share;
  }
  if (sum <= 0) check.Error("data.split", "gives nothing to any part");
}

// What only files need, and what files of their own for each part need.
void CheckDataFiles(ConfigChecker& check) {
  const config::DataConfig& data = check.resolved().data();
  for (absl::string_view path :
       {"data.data_path", "data.train_data_path", "data.valid_data_path", "data.test_data_path"}) {
    const auto& parts = path == "data.data_path"         ? data.data_path()
                        : path == "data.train_data_path" ? data.train_data_path()
                        : path == "data.valid_data_path" ? data.valid_data_path()
                                                         : data.test_data_path();
    if (std::find(parts.begin(), parts.end(), "") != parts.end())
      check.Error(path, "holds an empty prefix");
  }
  const bool own_files = data.train_data_path_size() > 0;
  const bool listed = !data.per_split_data_args_path().empty();
  if (data.data_path_size() == 0 && !own_files && !listed) {
    check.HaveNoEffect({"data.data_cache_path", "data.mmap_bin_files"},
                       "without data.data_path or data.train_data_path");
  }
  const config::TrainConfig& training = check.resolved().train();
  const bool evaluates = training.eval_iters() > 0 && training.eval_interval() > 0;
  if (listed) check.HaveNoEffect({"data.split"}, "with data.per_split_data_args_path");
  if (!own_files) {
    check.HaveNoEffect({"data.valid_data_path", "data.test_data_path"},
                       "without data.train_data_path");
  } else {
    check.HaveNoEffect({"data.split"}, "with data.train_data_path");
    if (!evaluates) {
      check.HaveNoEffect({"data.test_data_path"},
                         "where train.eval_iters or train.eval_interval is 0");
    }
    if (data.valid_data_path_size() == 0 && evaluates &&
        !check.locations().IsBroken("data.valid_data_path")) {
      check.Error("data.valid_data_path",
                  "is required by data.train_data_path; train.eval_iters = 0 turns evaluation "
                  "off");
    }
  }
  if (data.has_fim_data() && data.fim_data().fim_split_sample().empty())
    check.HaveNoEffect({"data.fim_data.fim_fragment_rate"},
                       "without data.fim_data.fim_split_sample");
  if (data.dataloader_type() != config::DataloaderType::cyclic) {
    check.HaveNoEffect({"data.data_sharding"},
                       absl::StrCat("with ", check.Named("data.dataloader_type")));
  }
}

// Each type takes the fields that the factory of tokenizers lists.
void CheckTokenizer(ConfigChecker& check) {
  const std::string tokenizer = check.Named("data.tokenizer_type");
  const absl::StatusOr<TokenizerFields> fields =
      TokenizerFieldsOf(config::Tokenizer::Type_Name(check.resolved().data().tokenizer_type()));
  CHECK(fields.ok()) << fields.status();
  for (const absl::string_view name :
       {"vocab_size", "vocab_file", "merge_file", "tokenizer_model", "vocab_extra_ids",
        "tiktoken_pattern", "tiktoken_num_special_tokens", "tiktoken_special_tokens"}) {
    const std::string path = absl::StrCat("data.", name);
    if (absl::c_linear_search(fields->required, name)) {
      const bool empty = check.IsWritten(path) && check.ValueOf(path) == "\"\"";
      if ((!check.IsWritten(path) || empty) && !check.locations().IsBroken(path)) {
        check.Error(path, absl::StrCat("is required by ", tokenizer));
      }
    } else if (!absl::c_linear_search(fields->optional, name)) {
      check.HaveNoEffect({path}, absl::StrCat("with ", tokenizer));
    }
  }
}

void CheckData(ConfigChecker& check) {
  const config::DataConfig& data = check.resolved().data();
  std::vector<std::string> sources;
  if (data.data_path_size() > 0) sources.push_back(check.Named("data.data_path"));
  if (data.train_data_path_size() > 0) sources.push_back(check.Named("data.train_data_path"));
  if (!data.per_split_data_args_path().empty())
    sources.push_back(check.Named("data.per_split_data_args_path"));
  if (data.mock_data()) sources.push_back(check.Named("data.mock_data"));
  if (data.has_stories())
    sources.push_back(absl::StrCat("data.stories (", check.locations().Where("data.stories"), ")"));
  if (sources.empty() && !check.locations().IsBroken("data.data_path")) {
    check.Error("data.data_path",
                "there is no data: set data.data_path, data.stories or data.mock_data");
  }
  for (size_t i = 1; i < sources.size(); ++i) {
    check.MessageError("data",
                       absl::StrCat(sources[i], " contradicts ", sources[0], "; choose one"));
  }
  CheckDataFiles(check);
  CheckSplit(check, data.split());
  if (data.has_stories() && data.tokenizer_type() == config::Tokenizer::NullTokenizer) {
    return check.Error("data.tokenizer_type", "cannot read data.stories, which is text");
  }
  CheckTokenizer(check);
}

void CheckCheckpoint(ConfigChecker& check) {
  if (!check.IsWritten("checkpoint.save")) {
    check.HaveNoEffect(
        {"checkpoint.save_interval", "checkpoint.keep_last", "checkpoint.async_save"},
        "without checkpoint.save");
  } else if (check.resolved().checkpoint().save().empty()) {
    check.Error("checkpoint.save", "expects the name of a directory");
  }
  if (!check.resolved().checkpoint().has_load()) {
    check.HaveNoEffect({"checkpoint.finetune", "checkpoint.no_load_optim"},
                       "without checkpoint.load");
  } else if (check.resolved().checkpoint().load().empty()) {
    check.Error("checkpoint.load", "expects the name of a directory");
  } else if (check.resolved().checkpoint().finetune() &&
             check.resolved().checkpoint().load() == check.resolved().checkpoint().save()) {
    check.Error("checkpoint.finetune",
                absl::StrCat("would start anew from its own checkpoints each time: ",
                             check.Named("checkpoint.load"), " is where it saves; load another"));
  }
  if (check.resolved().checkpoint().finetune()) {
    check.HaveNoEffect({"checkpoint.no_load_optim"},
                       absl::StrCat("with ", check.Named("checkpoint.finetune")));
  }
}

void CheckGeneration(ConfigChecker& check) {
  if (check.resolved().has_generation() &&
      check.resolved().data().tokenizer_type() == config::Tokenizer::NullTokenizer) {
    check.MessageError(
        "generation",
        absl::StrCat("prints text, which ", check.Named("data.tokenizer_type"), " cannot write"));
  }
}

void CheckRanks(ConfigChecker& check, ConfigPurpose purpose) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (check.Usable({"parallel.tensor_model_parallel_size", "parallel.context_parallel_size",
                    "parallel.pipeline_model_parallel_size", "parallel.data_parallel_size"})) {
    const int64_t ranks = parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
                          parallel.pipeline_model_parallel_size() * parallel.data_parallel_size();
    if (ranks > kMostPlannedRanks) {
      check.MessageError("parallel", absl::StrCat("makes ", ranks, " ranks; at most ",
                                                  kMostPlannedRanks, " ranks can be planned"));
    } else if (purpose == ConfigPurpose::kRun && ranks > kMostThreads &&
               parallel.ranks_as() == config::RanksAs::threads) {
      check.MessageError(
          "parallel", absl::StrCat("makes ", ranks, " ranks; at most ", kMostThreads,
                                   " can be threads of one process: set ranks_as to processes, or "
                                   "use a launcher; --dry_run plans any layout"));
    }
  }
}

void CheckThatItCanRun(ConfigChecker& check) {
  constexpr absl::string_view kBackend = "parallel.distributed_backend";
  const bool nccl =
      check.resolved().parallel().distributed_backend() == config::DistributedBackend::nccl;
  if (check.IsWritten(kBackend) && nccl && NcclLibrary() == nullptr)
    check.Error(kBackend, "this program was built without NCCL; build it with --config=cuda");
  if (check.resolved().system().device() == config::Device::cuda && CudaDeviceCount() == 0) {
    check.Error("system.device",
                "there is no GPU here, or the program was built without --config=cuda; give --set "
                "system.device=cpu, or --dry_run to plan the run");
  }
}

}  // namespace

std::vector<ConfigError> Validate(const config::PretrainConfig& config,
                                  const ConfigLocations& locations, ConfigPurpose purpose) {
  ConfigChecker check(config, locations);
  CheckRequired(check);
  CheckHeads(check);
  CheckPositions(check);
  CheckNetworkChoices(check);
  CheckBert(check);
  CheckT5(check);
  CheckLayout(check);
  CheckContext(check);
  CheckExperts(check);
  CheckPipeline(check);
  CheckDataParallel(check);
  CheckBackend(check);
  CheckGemms(check);
  CheckPrecision(check);
  CheckRecompute(check);
  CheckLearningRate(check);
  CheckOptimizer(check);
  CheckBatch(check);
  CheckRampup(check);
  CheckData(check);
  CheckCheckpoint(check);
  CheckGeneration(check);
  CheckProfile(check);
  CheckRanks(check, purpose);
  if (purpose == ConfigPurpose::kRun) CheckThatItCanRun(check);
  return check.TakeErrors();
}

}  // namespace megatron
