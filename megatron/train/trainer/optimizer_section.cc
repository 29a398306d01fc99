#include "megatron/train/trainer/optimizer_section.h"

#include <cstdint>

#include "glog/logging.h"
#include "megatron/optim/mup.h"
#include "megatron/train/costs/layer_shape.h"

namespace megatron {
namespace {

DType ToDType(config::MomentDtype::Type dtype) {
  switch (dtype) {
    case config::MomentDtype::bf16:
      return DType::kBFloat16;
    case config::MomentDtype::fp8:
      return DType::kUInt8;
    default:
      return DType::kFloat32;
  }
}

// Muon's modes are numbered as those of the configuration.
static_assert(static_cast<int>(MuonScaleMode::kSpectral) == config::MuonScaleMode::spectral &&
              static_cast<int>(MuonScaleMode::kUnitRmsNorm) ==
                  config::MuonScaleMode::unit_rms_norm &&
              static_cast<int>(MuonScaleMode::kShapeScaling) ==
                  config::MuonScaleMode::shape_scaling);
static_assert(static_cast<int>(MuonTensorMode::kBlockwise) == config::MuonTpMode::blockwise &&
              static_cast<int>(MuonTensorMode::kDuplicated) == config::MuonTpMode::duplicated &&
              static_cast<int>(MuonTensorMode::kDistributed) == config::MuonTpMode::distributed);

MuonOptions ToMuonOptions(const config::OptimizerConfig& config) {
  MuonOptions options;
  options.momentum = config.muon_momentum();
  options.nesterov = config.muon_use_nesterov();
  options.num_ns_steps = static_cast<int>(config.muon_num_ns_steps());
  options.scale_mode = static_cast<MuonScaleMode>(config.muon_scale_mode());
  options.extra_scale_factor = config.muon_extra_scale_factor();
  options.split_qkv = config.muon_split_qkv();
  options.tensor_mode = static_cast<MuonTensorMode>(config.muon_tp_mode());
  options.product_dtype = config.muon_fp32_matmul_prec() == config::MatmulPrecision::high
                              ? DType::kFloat32
                              : DType::kBFloat16;
  return options;
}

// The styles of lr_scheduler.h are numbered as those of the configuration.
template <typename Style>
constexpr bool Same(Style style, int in_config) {
  return static_cast<int>(style) == in_config;
}
static_assert(Same(LrDecayStyle::kConstant, config::LrDecayStyle::constant) &&
              Same(LrDecayStyle::kLinear, config::LrDecayStyle::linear) &&
              Same(LrDecayStyle::kCosine, config::LrDecayStyle::cosine) &&
              Same(LrDecayStyle::kInverseSquareRoot, config::LrDecayStyle::inverse_square_root) &&
              Same(LrDecayStyle::kWsd, config::LrDecayStyle::WSD));
static_assert(Same(WsdDecayStyle::kExponential, config::LrWsdDecayStyle::exponential) &&
              Same(WsdDecayStyle::kLinear, config::LrWsdDecayStyle::linear) &&
              Same(WsdDecayStyle::kCosine, config::LrWsdDecayStyle::cosine) &&
              Same(WsdDecayStyle::kMinusSqrt, config::LrWsdDecayStyle::minus_sqrt));
static_assert(Same(WeightDecayStyle::kConstant, config::WeightDecayIncrStyle::constant) &&
              Same(WeightDecayStyle::kLinear, config::WeightDecayIncrStyle::linear) &&
              Same(WeightDecayStyle::kCosine, config::WeightDecayIncrStyle::cosine));

}  // namespace

OptimizerOptions::Kind ToOptimizerKind(config::Optimizer::Type optimizer) {
  switch (optimizer) {
    case config::Optimizer::adam:
      return OptimizerOptions::kAdamW;
    case config::Optimizer::sgd:
      return OptimizerOptions::kSgd;
    case config::Optimizer::lion:
      return OptimizerOptions::kLion;
    case config::Optimizer::muon:
      return OptimizerOptions::kMuon;
    case config::Optimizer::lamb:
      return OptimizerOptions::kLamb;
    case config::Optimizer::onebit_adam:
      return OptimizerOptions::kOneBitAdam;
    case config::Optimizer::zero_one_adam:
      return OptimizerOptions::kZeroOneAdam;
    case config::Optimizer::onebit_lamb:
      return OptimizerOptions::kOneBitLamb;
  }
  LOG(FATAL) << "there is no optimizer " << optimizer;
}

OptimizerOptions ToOptimizerOptions(const config::OptimizerConfig& config) {
  OptimizerOptions options;
  options.kind = ToOptimizerKind(config.optimizer());
  options.adam_beta1 = config.adam_beta1();
  options.adam_beta2 = config.adam_beta2();
  options.adam_epsilon = config.adam_eps();
  options.exp_avg_dtype = ToDType(config.exp_avg_dtype());
  options.exp_avg_sq_dtype = ToDType(config.exp_avg_sq_dtype());
  options.store_param_remainders = config.store_param_remainders();
  options.sgd_momentum = config.sgd_momentum();
  options.lion_beta1 = config.lion_beta1();
  options.lion_beta2 = config.lion_beta2();
  options.muon = ToMuonOptions(config);
  options.lamb_min_coeff = config.lamb_min_coeff();
  options.lamb_max_coeff = config.lamb_max_coeff();
  options.one_bit_adam_freeze_step = config.freeze_step();
  options.one_bit_lamb = {
      config.freeze_step(), config.lamb_min_coeff(), config.lamb_max_coeff(),  config.coeff_beta(),
      config.factor_max(),  config.factor_min(),     config.factor_threshold()};
  options.zero_one = {config.var_freeze_step(), config.var_update_scaler(),
                      config.local_step_scaler(), config.local_step_clipper()};
  return options;
}

QkClipOptions ToQkClipOptions(const config::OptimizerConfig& config) {
  return {config.qk_clip(), config.qk_clip_threshold(), config.qk_clip_alpha()};
}

OptimizerParamSchedule ToSchedule(const config::PretrainConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer();
  const int64_t batch = config.train().global_batch_size();
  OptimizerParamSchedule schedule;
  schedule.max_lr = optimizer.lr();
  schedule.min_lr = optimizer.min_lr();
  schedule.init_lr = optimizer.lr_warmup_init();
  const bool in_samples = config.train().has_train_samples();
  schedule.lr_decay_steps =
      in_samples ? optimizer.lr_decay_samples() : optimizer.lr_decay_iters() * batch;
  schedule.lr_warmup_steps =
      optimizer.has_lr_warmup_fraction()
          ? static_cast<int64_t>(optimizer.lr_warmup_fraction() *
                                 static_cast<double>(schedule.lr_decay_steps))
      : in_samples ? optimizer.lr_warmup_samples()
                   : optimizer.lr_warmup_iters() * batch;
  schedule.lr_decay_style = static_cast<LrDecayStyle>(optimizer.lr_decay_style());
  schedule.wsd_decay_style = static_cast<WsdDecayStyle>(optimizer.lr_wsd_decay_style());
  schedule.wsd_decay_steps =
      in_samples ? optimizer.lr_wsd_decay_samples() : optimizer.lr_wsd_decay_iters() * batch;
  if (optimizer.has_decoupled_lr()) {
    schedule.decoupled_max_lr = optimizer.decoupled_lr();
    schedule.decoupled_min_lr = optimizer.decoupled_min_lr();
  }
  schedule.scaled_lr_factor =
      MupLrFactor(ToOptimizerKind(optimizer.optimizer()), MupWidthMult(config.model()));
  schedule.start_weight_decay = optimizer.start_weight_decay();
  schedule.end_weight_decay = optimizer.end_weight_decay();
  schedule.weight_decay_steps =
      in_samples ? config.train().train_samples() : config.train().train_iters() * batch;
  schedule.weight_decay_style = static_cast<WeightDecayStyle>(optimizer.weight_decay_incr_style());
  return schedule;
}

}  // namespace megatron
