#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/train/config/batch_sizes.h"
#include "megatron/train/config/elastic_batch.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

// Places in a micro-batch are 32-bit numbers; half of them leaves room for tokens that fill up.
constexpr double kMostTokensOfMicroBatch = 1 << 30;
constexpr double kMostTokens = 9e18;  // the most tokens of a run that 64 bits can count

// The fields that say how long the phases of the learning rate are: in iterations, or in samples if
// the run's length is in samples.
struct ScheduleFields {
  const char *warmup, *decay, *wsd, *length;
};

ScheduleFields ScheduleFieldsOf(const ConfigChecker& check) {
  if (check.raw().train().has_train_samples())
    return {"optimizer.lr_warmup_samples", "optimizer.lr_decay_samples",
            "optimizer.lr_wsd_decay_samples", "train.train_samples"};
  return {"optimizer.lr_warmup_iters", "optimizer.lr_decay_iters", "optimizer.lr_wsd_decay_iters",
          "train.train_iters"};
}

void CheckPhases(ConfigChecker& check) {
  const config::OptimizerConfig& optimizer = check.resolved().optimizer();
  const auto [kWarmup, kDecay, kWsd, kLength] = ScheduleFieldsOf(check);
  const bool in_samples = check.raw().train().has_train_samples();
  const int64_t warmup = in_samples ? optimizer.lr_warmup_samples() : optimizer.lr_warmup_iters();
  const int64_t decay = in_samples ? optimizer.lr_decay_samples() : optimizer.lr_decay_iters();
  if (check.IsWritten("optimizer.lr_warmup_fraction") && warmup > 0) {
    check.Error("optimizer.lr_warmup_fraction",
                absl::StrCat("contradicts ", check.Named(kWarmup), "; choose one"));
  }
  if (check.Usable({kWarmup, kDecay}) && warmup >= decay) {
    check.Error(kWarmup,
                absl::StrCat("must be less than ", check.Named(kDecay), "; lower ", kWarmup,
                             " or raise ", check.IsWritten(kDecay) ? kDecay : kLength));
  }
  if (optimizer.lr_decay_style() != config::LrDecayStyle::WSD) return;
  if (!check.IsWritten(kWsd)) {
    check.Error(kWsd, absl::StrCat("is required by ", check.Named("optimizer.lr_decay_style")));
  } else {
    check.MustNotExceed(kWsd, kDecay,
                        static_cast<double>(in_samples ? optimizer.lr_wsd_decay_samples()
                                                       : optimizer.lr_wsd_decay_iters()),
                        static_cast<double>(decay));
  }
}

void CheckLearningRate(ConfigChecker& check) {
  const config::OptimizerConfig& optimizer = check.resolved().optimizer();
  check.MustNotExceed("optimizer.min_lr", "optimizer.lr", optimizer.min_lr(), optimizer.lr());
  check.MustNotExceed("optimizer.lr_warmup_init", "optimizer.lr", optimizer.lr_warmup_init(),
                      optimizer.lr());
  if (optimizer.has_decoupled_lr()) {
    constexpr char kDecoupled[] = "optimizer.decoupled_lr";
    constexpr char kDecoupledMin[] = "optimizer.decoupled_min_lr";
    const bool is_given = check.IsWritten(kDecoupledMin);
    if (check.Usable({kDecoupledMin, kDecoupled}) &&
        optimizer.decoupled_min_lr() > optimizer.decoupled_lr()) {
      check.Error(kDecoupledMin,
                  absl::StrCat("must be at most ", check.Named(kDecoupled),
                               is_given ? "" : "; it is optimizer.min_lr where it is not given"));
    }
    check.MustNotExceed("optimizer.lr_warmup_init", kDecoupled, optimizer.lr_warmup_init(),
                        optimizer.decoupled_lr());
  }
  CheckPhases(check);
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

// Checks the batch sizes that the field at `path` gives, up to the first that is wrong.
void MustBeWholeMicroSteps(ConfigChecker& check, absl::string_view path,
                           const std::vector<int64_t>& sizes) {
  if (!check.Usable({path, "train.micro_batch_size", "parallel.data_parallel_size"})) return;
  const int64_t together = SamplesPerMicroStep(check);
  const bool may_share_unevenly = MayShareUnevenly(check.resolved());
  std::vector<int64_t> micro_batches;
  for (const int64_t size : sizes) {
    if (size % together == 0 || may_share_unevenly) {
      micro_batches.push_back((size + together - 1) / together);
      continue;
    }
    // CheckElasticity says which numbers of ranks could share the batch.
    if (check.resolved().elasticity().enabled() && path == "train.global_batch_size") return;
    return check.Error(path,
                       absl::StrCat("must be divisible by ", check.Named("train.micro_batch_size"),
                                    " times ", check.Named("parallel.data_parallel_size")));
  }
  CheckThatPipelineIsFilled(check, path, micro_batches);
}

std::vector<int64_t> SizesOf(const std::vector<BatchSizeStep>& steps) {
  std::vector<int64_t> sizes;
  for (const BatchSizeStep& step : steps) sizes.push_back(step.size);
  return sizes;
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

// The length of the run in iterations, which train_samples gives if it is set.
void CheckLength(ConfigChecker& check) {
  constexpr char kIterations[] = "train.train_iters", kSamples[] = "train.train_samples";
  if (!check.raw().train().has_train_samples()) {
    if (!check.IsWritten(kIterations) && !check.locations().IsBroken(kIterations))
      check.Error(kIterations,
                  absl::StrCat("is required, or ", kSamples, ": ", check.Accepted(kIterations)));
    return;
  }
  if (!check.Usable({kSamples, "train.global_batch_size"})) return;
  const config::TrainConfig& training = check.resolved().train();
  const auto steps = BatchSizeSteps(training, check.resolved().model().seq_length());
  if (!steps.ok()) return;
  const int64_t first = steps->empty() ? training.global_batch_size() : steps->front().size;
  if (training.train_samples() < first)
    check.Error(kSamples, absl::StrCat("must be at least the first batch size, ", first));
  if (!check.IsWritten(kIterations)) return;
  const int64_t iterations = steps->empty() ? training.train_samples() / first
                                            : CountIterations(*steps, training.train_samples());
  if (check.Usable({kIterations}) && training.train_iters() != iterations) {
    check.Error(kIterations, absl::StrCat("contradicts ", check.Named(kSamples), ", which is ",
                                          iterations, " iterations; choose one"));
  }
}

void CheckBatch(ConfigChecker& check) {
  CheckLength(check);
  CheckMicroBatch(check);
  MustBeWholeMicroSteps(check, "train.global_batch_size",
                        {check.resolved().train().global_batch_size()});
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
  MustBeWholeMicroSteps(check, kStart, {rampup.start()});
  if (!check.Usable({kStart, kGlobal})) return;
  const int64_t growth = check.resolved().train().global_batch_size() - rampup.start();
  if (growth <= 0) {
    check.Error(kStart, absl::StrCat("must be less than ", check.Named(kGlobal)));
  } else if (check.Usable({kIncrement}) && growth % rampup.increment() != 0) {
    check.Error(kIncrement, absl::StrCat("must divide ", check.Named(kGlobal), " less ",
                                         check.Named(kStart), ", which is ", growth));
  } else if (check.Usable({kIncrement, "train.rampup_batch_size.samples"})) {
    const auto steps = BatchSizeSteps(check.resolved().train(), /*seq_length=*/1);
    if (!steps.ok()) return check.Error(kIncrement, steps.status().message());
    // Those of the first and of the last step are fields of their own. Steps of a schedule, which
    // can't be used beside a ramp, may be fewer.
    if (steps->size() > 2)
      MustBeWholeMicroSteps(check, kIncrement, SizesOf({steps->begin() + 1, steps->end() - 1}));
  }
}

void CheckBatchSizeSchedule(ConfigChecker& check) {
  constexpr char kSchedule[] = "train.step_batch_size_schedule";
  constexpr char kGlobal[] = "train.global_batch_size";
  const config::TrainConfig& training = check.resolved().train();
  if (!training.has_step_batch_size_schedule()) return;
  if (check.raw().train().has_rampup_batch_size()) {
    check.Error(kSchedule, "cannot be used with train.rampup_batch_size; choose one");
  }
  if (!check.Usable({"model.seq_length"})) return;
  const auto steps = BatchSizeSteps(training, check.resolved().model().seq_length());
  if (!steps.ok()) return check.Error(kSchedule, steps.status().message());
  MustBeWholeMicroSteps(check, kSchedule, SizesOf(*steps));
  if (check.Usable({kGlobal}) && training.global_batch_size() != steps->back().size) {
    check.Error(kGlobal, absl::StrCat("must be the last size of ", check.Named(kSchedule),
                                      "; leave it out"));
  }
}

void CheckRetention(ConfigChecker& check) {
  constexpr char kInterval[] = "checkpoint.save_retain_interval", kKeep[] = "checkpoint.keep_last",
                 kSave[] = "checkpoint.save_interval";
  const config::CheckpointConfig& checkpoint = check.resolved().checkpoint();
  if (!checkpoint.has_save_retain_interval() || !checkpoint.has_save() ||
      !check.Usable({kInterval})) {
    return;
  }
  if (check.IsWritten(kKeep) && checkpoint.keep_last() == 0) {
    check.Error(kInterval, absl::StrCat("has no effect with ", check.Named(kKeep),
                                        ", which keeps all checkpoints"));
  } else if (!check.IsWritten(kSave)) {
    check.Error(kInterval, absl::StrCat("has no effect without ", kSave));
  } else if (check.Usable({kSave}) &&
             checkpoint.save_retain_interval() % checkpoint.save_interval() != 0) {
    check.Error(kInterval, absl::StrCat("must be a multiple of ", check.Named(kSave),
                                        ", or it names iterations without a checkpoint"));
  }
}

void CheckSkippedIterations(ConfigChecker& check) {
  constexpr char kSkip[] = "train.iterations_to_skip";
  const config::PretrainConfig& config = check.resolved();
  if (config.train().iterations_to_skip().empty()) return;
  for (const int64_t iteration : config.train().iterations_to_skip()) {
    if (check.Usable({"train.train_iters"}) && iteration >= config.train().train_iters()) {
      check.Error(kSkip, absl::StrCat("has ", iteration, ", and the run's last iteration is ",
                                      config.train().train_iters() - 1, ", counted from 0"));
    }
  }
  if (config.diloco().sync_every() > 0) {
    check.Error(kSkip, absl::StrCat("cannot be used with ", check.Named("diloco.sync_every"),
                                    ": islands join in iterations by their numbers"));
  }
}

void CheckPhaseTransitions(ConfigChecker& check) {
  constexpr char kPhases[] = "train.phase_transition_iterations";
  const config::TrainConfig& training = check.resolved().train();
  if (training.phase_transition_iterations().empty()) return;
  const auto refuse = [&](bool broken, absl::string_view path) {
    if (!broken) return;
    check.Error(kPhases, absl::StrCat("cannot be used with ", path,
                                      ": samples before a transition "
                                      "are counted by iterations of one batch size"));
  };
  refuse(training.has_rampup_batch_size(), "train.rampup_batch_size");
  refuse(check.IsWritten("train.step_batch_size_schedule"), "train.step_batch_size_schedule");
  if (!check.IsWritten("checkpoint.save")) {
    check.Error(
        kPhases,
        "needs checkpoint.save: the run ends at a transition, and the next one goes on from "
        "what it has saved");
  }
  for (const int64_t iteration : training.phase_transition_iterations()) {
    if (check.Usable({"train.train_iters"}) && iteration >= training.train_iters()) {
      check.Error(kPhases, absl::StrCat("has ", iteration, ", and the run ends with iteration ",
                                        training.train_iters()));
    }
    if (absl::c_linear_search(training.iterations_to_skip(), iteration - 1)) {
      check.Error(kPhases, absl::StrCat("has ", iteration,
                                        ", and train.iterations_to_skip passes "
                                        "over the iteration before it"));
    }
  }
}

// What passes change besides gradients and losses would be changed twice.
void CheckRerun(ConfigChecker& check) {
  constexpr char kMode[] = "train.rerun_mode";
  const config::PretrainConfig& config = check.resolved();
  if (config.train().rerun_mode() == config::RerunMode::disabled) return;
  const auto refuse = [&](bool is_used, absl::string_view path, absl::string_view what) {
    if (!is_used) return;
    check.Error(kMode, absl::StrCat("cannot be used with ", check.Named(path), ": ", what,
                                    " would change once more when a step is computed again"));
  };
  refuse(config.precision().fp8_format() != config::Fp8Format::none, "precision.fp8_format",
         "the scales of FP8");
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", "the errors of compression");
  const config::Optimizer::Type optimizer = config.optimizer().optimizer();
  refuse(optimizer == config::Optimizer::onebit_adam ||
             optimizer == config::Optimizer::onebit_lamb ||
             optimizer == config::Optimizer::zero_one_adam,
         "optimizer.optimizer", "the errors of signs");
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

// Remainders lie beside their weights, and what changes weights by itself would leave them behind.
void CheckRemainders(ConfigChecker& check) {
  constexpr char kRemainders[] = "optimizer.store_param_remainders";
  const config::PretrainConfig& config = check.resolved();
  if (!config.optimizer().store_param_remainders()) return;
  const auto refuse = [&](bool is_set, const char* other) {
    if (is_set) check.Error(kRemainders, absl::StrCat("cannot be used with ", check.Named(other)));
  };
  refuse(config.optimizer().qk_clip(), "optimizer.qk_clip");
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every");
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
  const bool has_ratios = is_lamb || optimizer.optimizer() == config::Optimizer::onebit_lamb;
  if (has_ratios && check.Usable({"optimizer.lamb_min_coeff", "optimizer.lamb_max_coeff"}) &&
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
  if (config.model().has_attn_logit_softcapping()) {
    check.Error(kQkClip,
                absl::StrCat("cannot be used with ", check.Named("model.attn_logit_softcapping"),
                             ", which bounds scores already"));
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
  CheckBatchSizeSchedule(check);
  CheckSkippedIterations(check);
  CheckPhaseTransitions(check);
  CheckRerun(check);
  CheckRetention(check);
  CheckMoments(check);
  CheckRemainders(check);
  CheckStateFiles(check);
  CheckWholeParameters(check);
  CheckQkClip(check);
}

}  // namespace megatron
