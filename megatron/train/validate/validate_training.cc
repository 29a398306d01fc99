#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

// Places in a micro-batch are 32-bit numbers; half of them leaves room for tokens that fill up.
constexpr double kMostTokensOfMicroBatch = 1 << 30;
constexpr double kMostTokens = 9e18;  // the most tokens of a run that 64 bits can count

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
  if (optimizer.lr_decay_style() != config::LrDecayStyle::WSD) return;
  if (!check.IsWritten("optimizer.lr_wsd_decay_iters")) {
    check.Error("optimizer.lr_wsd_decay_iters",
                absl::StrCat("is required by ", check.Named("optimizer.lr_decay_style")));
  } else {
    check.MustNotExceed("optimizer.lr_wsd_decay_iters", "optimizer.lr_decay_iters",
                        optimizer.lr_wsd_decay_iters(), optimizer.lr_decay_iters());
  }
}

void CheckWeightDecay(ConfigChecker& check) {
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
}

// Returns how many samples all data-parallel ranks together take in one micro-step.
int64_t SamplesPerMicroStep(const ConfigChecker& check) {
  return check.resolved().train().micro_batch_size() *
         check.resolved().parallel().data_parallel_size();
}

void MustBeWholeMicroSteps(ConfigChecker& check, absl::string_view path, int64_t samples) {
  if (!check.Usable({path, "train.micro_batch_size", "parallel.data_parallel_size"})) return;
  const int64_t together = SamplesPerMicroStep(check);
  if (samples % together == 0) return CheckThatPipelineIsFilled(check, path, samples / together);
  // CheckElasticity says which numbers of ranks could share the batch.
  if (check.resolved().elasticity().enabled() && path == "train.global_batch_size") return;
  check.Error(path, absl::StrCat("must be divisible by ", check.Named("train.micro_batch_size"),
                                 " times ", check.Named("parallel.data_parallel_size")));
}

void CheckMicroBatch(ConfigChecker& check) {
  if (!check.Usable({"train.micro_batch_size", "model.seq_length"})) return;
  const config::ModelConfig& model = check.resolved().model();
  const SampleLengths lengths = ModelRulesOf(model).LengthsOf(model);
  const double tokens =
      static_cast<double>(check.resolved().train().micro_batch_size()) *
      static_cast<double>(std::max(lengths.seq_length, lengths.encoder_seq_length));
  if (tokens > kMostTokensOfMicroBatch) {
    check.Error("train.micro_batch_size",
                absl::StrCat("makes micro-batches of ", static_cast<int64_t>(tokens),
                             " tokens; at most ", static_cast<int64_t>(kMostTokensOfMicroBatch),
                             " are possible: lower it or model.seq_length"));
  }
}

void CheckBatch(ConfigChecker& check) {
  CheckMicroBatch(check);
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

// Moments in 8-bit floats have no scale, so that what they hold must lie in their range
// (ops/adamw_element.h).
void CheckMoments(ConfigChecker& check) {
  constexpr char kEpsilon[] = "optimizer.adam_eps", kClip[] = "optimizer.clip_grad";
  constexpr double kLeastEpsilon = 1e-8, kMostClip = 16;
  const config::OptimizerConfig& optimizer = check.resolved().optimizer();
  const auto check_moment = [&](const char* path, config::MomentDtype::Type dtype) {
    if (dtype != config::MomentDtype::fp8 || !check.Usable({path})) return;
    if (check.Usable({kEpsilon}) && optimizer.adam_eps() < kLeastEpsilon) {
      check.Error(path,
                  absl::StrCat("needs an optimizer.adam_eps of at least ", kLeastEpsilon, ", not ",
                               check.Named(kEpsilon), ": smaller moments become 0 in fp8"));
    }
    if (check.Usable({kClip}) &&
        (optimizer.clip_grad() == 0 || optimizer.clip_grad() > kMostClip)) {
      check.Error(path, absl::StrCat("needs an optimizer.clip_grad above 0 and at most ", kMostClip,
                                     ", not ", check.Named(kClip),
                                     ": greater moments are beyond the range of fp8"));
    }
  };
  check_moment("optimizer.exp_avg_dtype", optimizer.exp_avg_dtype());
  check_moment("optimizer.exp_avg_sq_dtype", optimizer.exp_avg_sq_dtype());
}

void CheckStateFiles(ConfigChecker& check) {
  constexpr char kPath[] = "optimizer.optimizer_offload_path";
  constexpr char kFraction[] = "optimizer.optimizer_offload_fraction";
  const config::OptimizerConfig& optimizer = check.resolved().optimizer();
  if (optimizer.optimizer_offload_path().empty()) return;
  if (check.Usable({kFraction}) && optimizer.optimizer_offload_fraction() == 0) {
    check.Error(kPath, absl::StrCat("has no effect with ", check.Named(kFraction)));
  }
  const config::PrecisionConfig& precision = check.resolved().precision();
  const bool keeps_nothing = optimizer.optimizer() == config::Optimizer::sgd &&
                             optimizer.sgd_momentum() == 0 && !precision.bf16() &&
                             !precision.fp16();
  if (check.Usable({"optimizer.sgd_momentum"}) && keeps_nothing) {
    check.Error(kPath, absl::StrCat("has no effect: with ", check.Named("optimizer.sgd_momentum"),
                                    " and fp32 weights the optimizer keeps nothing"));
  }
}

// Rules for whole parameters communicate, and have temporaries, where gradients are.
void CheckWholeParameters(ConfigChecker& check) {
  constexpr char kOptimizer[] = "optimizer.optimizer";
  constexpr char kSplit[] = "optimizer.muon_split_qkv";
  const config::OptimizerConfig& optimizer = check.resolved().optimizer();
  const bool is_muon = optimizer.optimizer() == config::Optimizer::muon;
  const bool is_lamb = optimizer.optimizer() == config::Optimizer::lamb;
  if ((is_muon || is_lamb) && optimizer.optimizer_cpu_offload()) {
    check.Error("optimizer.optimizer_cpu_offload",
                absl::StrCat("cannot be used with ", check.Named(kOptimizer),
                             ", which updates whole matrices on their device"));
  }
  if (is_lamb && check.Usable({"optimizer.lamb_min_coeff", "optimizer.lamb_max_coeff"}) &&
      optimizer.lamb_min_coeff() > optimizer.lamb_max_coeff()) {
    check.Error("optimizer.lamb_min_coeff",
                absl::StrCat("must be at most ", check.Named("optimizer.lamb_max_coeff")));
  }
  const config::PretrainConfig& config = check.resolved();
  if (is_muon && !optimizer.muon_split_qkv() &&
      optimizer.muon_tp_mode() != config::MuonTpMode::blockwise &&
      check.Usable({"parallel.tensor_model_parallel_size", "model.num_query_groups"}) &&
      config.parallel().tensor_model_parallel_size() > config.model().num_query_groups()) {
    check.Error(kSplit,
                absl::StrCat("must be true, or optimizer.muon_tp_mode blockwise, with ",
                             check.Named("parallel.tensor_model_parallel_size"), " and ",
                             check.Named("model.num_query_groups"),
                             ": ranks that share keys and values hold them apart from queries"));
  }
}

void CheckQkClip(ConfigChecker& check) {
  constexpr char kQkClip[] = "optimizer.qk_clip";
  const config::PretrainConfig& config = check.resolved();
  if (!config.optimizer().qk_clip()) return;
  if (config.optimizer().optimizer_cpu_offload()) {
    check.Error(kQkClip,
                absl::StrCat("cannot be used with ", check.Named("optimizer.optimizer_cpu_offload"),
                             ": it scales main weights on their device"));
  }
  if (config.model().qk_layernorm()) {
    check.Error(kQkClip, absl::StrCat("has no effect with ", check.Named("model.qk_layernorm"),
                                      ": norms undo what it scales"));
  }
  if (config.model().model_type() == config::ModelType::t5) {
    check.Error(kQkClip, absl::StrCat("cannot be used with ", check.Named("model.model_type"),
                                      ", whose scores have a bias or another stack's keys"));
  }
}

}  // namespace

void CheckTraining(ConfigChecker& check) {
  CheckLearningRate(check);
  CheckWeightDecay(check);
  CheckBatch(check);
  CheckRampup(check);
  CheckMoments(check);
  CheckStateFiles(check);
  CheckWholeParameters(check);
  CheckQkClip(check);
}

}  // namespace megatron
