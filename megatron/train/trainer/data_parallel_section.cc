#include "megatron/train/trainer/data_parallel_section.h"

#include <cstdint>

#include "glog/logging.h"
#include "megatron/federated/federated_options.h"
#include "megatron/train/trainer/optimizer_section.h"
#include "megatron/train/trainer/parallel_section.h"
#include "megatron/train/trainer/run_identity.h"

namespace megatron {
namespace {

bool AveragesBySigns(OptimizerOptions::Kind kind) {
  return kind == OptimizerOptions::kOneBitAdam || kind == OptimizerOptions::kZeroOneAdam ||
         kind == OptimizerOptions::kOneBitLamb;
}

OuterGradientType ToOuterGradientType(config::OuterGradient::Type type) {
  switch (type) {
    case config::OuterGradient::fp32:
      return OuterGradientType::kFloat32;
    case config::OuterGradient::int8:
      return OuterGradientType::kInt8;
    case config::OuterGradient::e3m0:
      return OuterGradientType::kE3M0;
  }
  LOG(FATAL) << "there is no form " << type;
}

FederatedOptions ToFederatedOptions(const config::FederatedConfig& config) {
  FederatedOptions options;
  options.clip_norm = config.clip_norm();
  options.secure_sum_threshold = static_cast<int>(config.secure_sum_threshold());
  options.noise_multiplier = config.noise_multiplier();
  options.delta = config.delta();
  options.max_epsilon = config.max_epsilon();
  return options;
}

CompressionType ToCompressionType(config::GradientCompression::Type type) {
  switch (type) {
    case config::GradientCompression::none:
      return CompressionType::kNone;
    case config::GradientCompression::int8:
      return CompressionType::kInt8;
    case config::GradientCompression::topk:
      return CompressionType::kTopK;
    case config::GradientCompression::powersgd:
      return CompressionType::kPowerSgd;
    case config::GradientCompression::threshold:
      return CompressionType::kThreshold;
  }
  LOG(FATAL) << "there is no form " << type;
}

GradientCompressionOptions ToCompression(const config::PretrainConfig& run) {
  GradientCompressionOptions options;
  const OptimizerOptions::Kind kind = ToOptimizerKind(run.optimizer().optimizer());
  if (AveragesBySigns(kind)) {
    options.type = CompressionType::kOneBit;
    options.joins_tensors = kind == OptimizerOptions::kOneBitLamb;
    return options;
  }
  const config::GradientCompressionConfig& config = run.gradient_compression();
  options.type = ToCompressionType(config.type());
  options.start_iteration = config.start_iteration();
  options.error_feedback = config.error_feedback();
  options.density = config.density();
  options.threshold = static_cast<float>(config.threshold());
  options.max_density = config.max_density();
  options.rank = static_cast<int>(config.matrix_approximation_rank());
  options.min_compression_rate = config.min_compression_rate();
  return options;
}

// A rank has its summand of the gradient of the whole batch. DeepSpeed's ranks have the gradient of
// their own samples' mean, which is that times the number of ranks.
void SetGradientDType(const config::ParallelConfig& config, DataParallelOptions* options) {
  if (config.grad_reduce_in_bf16()) options->gradient_dtype = DType::kBFloat16;
  if (config.communication_data_type() == config::CommunicationDataType::fp32) return;
  options->gradient_dtype = config.communication_data_type() == config::CommunicationDataType::fp16
                                ? DType::kFloat16
                                : DType::kBFloat16;
  if (config.prescale_gradients()) return;
  const auto ranks =
      static_cast<double>(config.data_parallel_size() * config.context_parallel_size());
  options->gradient_scale = static_cast<float>(ranks / config.gradient_predivide_factor());
}

// A step has a gradient in as many rows as it has tokens on a rank, or fewer.
void SetSparseTable(const config::ParallelConfig& config, const PackerOptions& packing,
                    DataParallelOptions* options) {
  if (!config.sparse_gradients()) return;
  const int64_t tokens = packing.max_micro_batches * packing.layout.micro_batch_size *
                         (packing.seq_length + packing.encoder_seq_length);
  options->sparse_table = "embedding.word_embeddings.weight";
  options->most_sparse_rows =
      (tokens + config.context_parallel_size() - 1) / config.context_parallel_size();
}

}  // namespace

DataSharding ToSharding(const config::ParallelConfig& config) {
  if (!config.use_distributed_optimizer()) return DataSharding::kNone;
  switch (config.data_parallel_sharding_strategy()) {
    case config::DataParallelSharding::optim:
      return DataSharding::kStates;
    case config::DataParallelSharding::optim_grads:
      return DataSharding::kGradients;
    case config::DataParallelSharding::optim_grads_params:
      return DataSharding::kWeights;
  }
  return DataSharding::kNone;
}

DataParallelOptions ToDataParallelOptions(const config::PretrainConfig& config,
                                          const PackerOptions& packing) {
  const config::ParallelConfig& parallel = config.parallel();
  DataParallelOptions options;
  options.overlap_grad_reduce = parallel.overlap_grad_reduce();
  options.overlap_param_gather = parallel.overlap_param_gather();
  SetGradientDType(parallel, &options);
  options.secondary_shards = SecondaryShardRanks(parallel) > 1;
  options.quantized_weights = parallel.zero_quantized_weights();
  options.quantized_gradients = parallel.zero_quantized_gradients();
  options.compression = ToCompression(config);
  options.float8_param_gather = config.precision().fp8_param_gather();
  SetSparseTable(parallel, packing, &options);
  return options;
}

OuterOptimizerOptions ToOuterOptimizerOptions(const config::PretrainConfig& config) {
  const config::DilocoConfig& diloco = config.diloco();
  OuterOptimizerOptions options;
  options.sync_every = diloco.sync_every();
  options.lr = diloco.outer_lr();
  options.momentum = diloco.outer_momentum();
  options.nesterov = diloco.nesterov();
  options.gradient_type = ToOuterGradientType(diloco.outer_gradient_dtype());
  options.num_fragments = static_cast<int>(diloco.num_fragments());
  options.sync_delay = diloco.fragment_sync_delay();
  options.update_alpha = diloco.fragment_update_alpha();
  options.last_step = config.train().train_iters();
  options.elsewhere = diloco.has_server_address();
  return options;
}

IslandLinkOptions ToIslandLinkOptions(const config::PretrainConfig& config) {
  const config::DilocoConfig& diloco = config.diloco();
  IslandLinkOptions options;
  if (!diloco.has_server_address()) return options;
  options.server_address = diloco.server_address();
  options.secret_file = diloco.secret_file();
  options.island = static_cast<int>(diloco.island());
  options.agreement = IslandAgreementText(config);
  options.outer = {diloco.outer_lr(), diloco.outer_momentum(), diloco.nesterov()};
  options.gradient_type = ToOuterGradientType(diloco.outer_gradient_dtype());
  options.federated = ToFederatedOptions(config.federated());
  return options;
}

}  // namespace megatron
