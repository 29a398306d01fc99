#include "megatron/train/validate/validate.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/layers/context_slice.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/attention/attention_limits.h"
#include "megatron/train/config/config_checker.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr int64_t kMostThreads = 256;
constexpr int64_t kMostPlannedRanks = 1 << 20;

void CheckGemms(ConfigChecker& check) {
  constexpr absl::string_view kTime = "system.time_gemm_kernels";
  if (!check.resolved().system().time_gemm_kernels()) return;
  if (check.resolved().parallel().ranks_as() == config::RanksAs::processes) {
    check.Error(kTime,
                "ranks that are processes would each choose kernels of their own; time them in a "
                "run with parallel.ranks_as: threads, then give all its system.gemm_plan_file");
  }
  if (check.resolved().system().deterministic_mode()) {
    check.Error(kTime, absl::StrCat("kernels chosen by time may be others in each run, against ",
                                    check.Named("system.deterministic_mode"),
                                    "; time them in a run without it, then give its "
                                    "system.gemm_plan_file"));
  }
}

// Checks that the chosen attention backend would compute at least some of a run's attention.
void CheckAttentionBackend(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  if (config.system().has_device() && config.system().device() == config::Device::cpu) return;
  for (const AttentionLimit& limit : LimitsOf(config.system().attention_backend(), config)) {
    check.Error(
        "system.attention_backend",
        limit.field.empty()
            ? absl::StrCat(limit.why, "; set precision.bf16 or precision.fp16")
            : absl::StrCat(limit.why, "; it would have no effect with ", check.Named(limit.field)));
  }
}

void CheckPrecision(ConfigChecker& check) {
  const config::PrecisionConfig& precision = check.resolved().precision();
  if (precision.fp16() && precision.bf16()) {
    check.Error("precision.fp16",
                absl::StrCat("contradicts ", check.Named("precision.bf16"), "; choose one"));
  }
  if (precision.fp16() && !check.IsWritten("precision.loss_scale") &&
      check.Usable({"precision.min_loss_scale", "precision.initial_loss_scale"}) &&
      precision.min_loss_scale() > precision.initial_loss_scale()) {
    check.Error("precision.min_loss_scale",
                absl::StrCat("must be at most ", check.Named("precision.initial_loss_scale")));
  }
}

void CheckAttentionChunks(ConfigChecker& check) {
  constexpr absl::string_view kChunk = "recompute.attention_chunk_tokens";
  if (!check.IsWritten(kChunk)) return;
  const config::PretrainConfig& config = check.resolved();
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kChunk, absl::StrCat("is not available with ", check.Named(path), ": ", because));
  };
  refuse(config.precision().fp8_format() != config::Fp8Format::none, "precision.fp8_format",
         "its scales are made of whole tensors");
  const int64_t ranks = config.parallel().context_parallel_size();
  if (!check.Usable({"parallel.context_parallel_size"}) || ranks == 1) return;
  refuse(config.parallel().cp_comm_type() == config::ContextParallelComm::a2a_p2p,
         "parallel.cp_comm_type", "a team of ranks has no whole chunk of all ranks' tokens");
  refuse(config.model().num_experts() > 0, "model.num_experts",
         "with context parallelism, samples whose tokens are experts' are not cut into stripes");
  if (check.Usable({kChunk}) &&
      config.recompute().attention_chunk_tokens() % (ranks * kContextStripe) != 0) {
    check.Error(kChunk, absl::StrCat("must be divisible by ", kContextStripe, " * ",
                                     check.Named("parallel.context_parallel_size"),
                                     ", since each rank has whole stripes of a chunk"));
  }
}

void CheckRecompute(ConfigChecker& check) {
  const config::RecomputeConfig& recompute = check.resolved().recompute();
  if (recompute.recompute_granularity() == config::RecomputeGranularity::full &&
      check.Usable({"recompute.recompute_num_layers", "model.num_layers"}) &&
      recompute.recompute_num_layers() > check.resolved().model().num_layers()) {
    check.Error("recompute.recompute_num_layers",
                absl::StrCat("must be at most ", check.Named("model.num_layers")));
  }
  const std::set<int> distinct(recompute.recompute_modules().begin(),
                               recompute.recompute_modules().end());
  if (static_cast<int>(distinct.size()) != recompute.recompute_modules_size()) {
    check.Error("recompute.recompute_modules", "names a module twice");
  }
  CheckAttentionChunks(check);
  if (!check.IsWritten("recompute.mlp_chunk_tokens")) return;
  if (check.resolved().precision().fp8_format() != config::Fp8Format::none) {
    check.Error("recompute.mlp_chunk_tokens",
                absl::StrCat("is not available with ", check.Named("precision.fp8_format"),
                             ", whose scales are made of whole tensors"));
  }
  if (recompute.recompute_granularity() == config::RecomputeGranularity::selective &&
      distinct.count(config::RecomputeModule::mlp) > 0) {
    check.Error("recompute.recompute_modules",
                absl::StrCat("names mlp, which has no effect with ",
                             check.Named("recompute.mlp_chunk_tokens"),
                             ": MLPs in chunks are computed again in any case; leave mlp out"));
  }
}

void CheckCheckpoint(ConfigChecker& check) {
  const config::CheckpointConfig& checkpoint = check.resolved().checkpoint();
  if (check.IsWritten("checkpoint.save") && checkpoint.save().empty())
    check.Error("checkpoint.save", "expects the name of a directory");
  if (check.IsWritten("checkpoint.local_save") && checkpoint.local_save().empty())
    check.Error("checkpoint.local_save", "expects the name of a directory");
  if (!checkpoint.has_load()) return;
  if (checkpoint.load().empty()) check.Error("checkpoint.load", "expects the name of a directory");
  if (checkpoint.load().empty() || checkpoint.load() != checkpoint.save()) return;
  const std::string because =
      absl::StrCat(" each time: ", check.Named("checkpoint.load"), " is where it saves; ");
  if (checkpoint.finetune()) {
    check.Error("checkpoint.finetune",
                absl::StrCat("would start anew from its own checkpoints", because, "load another"));
  } else if (checkpoint.no_load_optim()) {
    check.Error("checkpoint.no_load_optim",
                absl::StrCat("would lose the optimizer's state of its own checkpoints", because,
                             "save to another directory"));
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
  if (CudaDeviceCount() > 0 &&
      check.resolved().system().attention_backend() == config::AttentionBackend::fused) {
    const absl::Status there = ops::cuda::CudnnVersion().status();
    if (!there.ok()) check.Error("system.attention_backend", there.message());
  }
}

// The number of layers that a wrong pattern would have given is not missing.
ConfigLocations WithoutLayersOfWrongPattern(const config::ModelConfig& model,
                                            ConfigLocations locations) {
  const bool gives_layers = model.has_hybrid_layer_pattern() && !model.has_num_layers();
  if (gives_layers && !HybridLayers(model).ok()) locations.MarkBroken("model.num_layers");
  return locations;
}

}  // namespace

std::vector<ConfigError> Validate(const config::PretrainConfig& config,
                                  const ConfigLocations& locations, ConfigPurpose purpose) {
  config::PretrainConfig known = config;
  if (purpose == ConfigPurpose::kRun && !config.system().has_device()) {
    known.mutable_system()->set_device(CudaDeviceCount() > 0 ? config::Device::cuda
                                                             : config::Device::cpu);
  }
  const ConfigLocations usable = WithoutLayersOfWrongPattern(config.model(), locations);
  ConfigChecker check(known, usable, ResolveDefaults);
  check.CheckRequired();
  check.CheckEffects();
  CheckModel(check);
  CheckLatentAttention(check);
  CheckHybridLayers(check);
  CheckMultiTokenPrediction(check);
  CheckMup(check);
  CheckParallel(check);
  CheckGemms(check);
  CheckCudaGraphs(check);
  CheckAttentionBackend(check);
  CheckPrecision(check);
  CheckFloat8(check);
  CheckRecompute(check);
  CheckActivationOffload(check);
  CheckGradientOffload(check);
  CheckDelayedUpdate(check);
  CheckParameterOffload(check);
  CheckMainGrads(check);
  CheckCurriculum(check);
  CheckRandomLtd(check);
  CheckDiloco(check);
  CheckGradientCompression(check);
  CheckSparseGradients(check);
  CheckOneBit(check);
  CheckFreeze(check);
  CheckLora(check);
  CheckTraining(check);
  CheckElasticity(check);
  CheckData(check);
  CheckCheckpoint(check);
  CheckGeneration(check);
  CheckProfile(check);
  CheckRanks(check, purpose);
  if (purpose == ConfigPurpose::kRun) CheckThatItCanRun(check);
  return check.TakeErrors();
}

}  // namespace megatron
