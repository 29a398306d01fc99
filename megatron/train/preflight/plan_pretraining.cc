#include "megatron/train/preflight/plan_pretraining.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/planning/choose_offload.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/preflight/check_tokenizer.h"
#include "megatron/train/preflight/open_data.h"
#include "megatron/train/topology/axis_traffic.h"
#include "megatron/train/topology/choose_rank_order.h"
#include "megatron/train/topology/topology_file.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/trained_layers.h"

namespace megatron {

absl::Status CheckModelType(const config::PretrainConfig& config, const std::string& config_name,
                            const std::string& model_type) {
  const std::string type = config::ModelType::Type_Name(config.model().model_type());
  if (type == model_type) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(config_name, " has model.model_type = ", type,
                                                 ", which pretrain_", type, " trains"));
}

namespace {

constexpr int64_t kMostTopologyBytes = int64_t{64} << 20;

// Reads the topology file, if there is one, and takes its order of ranks unless one is written.
absl::Status ChooseOrder(const config::PretrainConfig& config, RunOptions* options,
                         std::string* reason) {
  if (options->topology_file.empty()) return absl::OkStatus();
  const std::string named = absl::StrCat("parallel.topology_file = ", options->topology_file);
  MEGATRON_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFileToString(PosixFileSystem(), options->topology_file, kMostTopologyBytes), _ << named);
  MEGATRON_ASSIGN_OR_RETURN(const MachineShape shape, ParseTopology(text), _ << named);
  MEGATRON_ASSIGN_OR_RETURN(
      const RankOrderChoice choice,
      ChooseRankOrder(shape, TrafficOf(config, options->trainer.model.padded_vocab_size),
                      options->parallel, options->num_ranks(), config.parallel().has_rank_order()),
      _ << named);
  options->parallel.order = choice.order;
  *reason = choice.reason;
  return absl::OkStatus();
}

// Plans the run once more with as many offloaded layers as the link hides.
absl::Status ChooseOffloadedLayers(const config::PretrainConfig& config,
                                   PlannedPretraining* planned) {
  RunOptions& options = planned->options;
  if (!config.recompute().cpu_offloading_auto() || options.device != DeviceType::kCuda)
    return absl::OkStatus();
  const std::string named = "for recompute.cpu_offloading_auto";
  MEGATRON_ASSIGN_OR_RETURN(const PlanningFacts facts,
                            ReadPlanningFacts(PosixFileSystem(), options.planning, /*is_gpu=*/true),
                            _ << named);
  MEGATRON_ASSIGN_OR_RETURN(OffloadChoice choice,
                            ChooseOffload(config, options, planned->plan, facts), _ << named);
  options.trainer.model.num_offloaded_layers = choice.num_layers;
  planned->offload = std::move(choice.text);
  MEGATRON_ASSIGN_OR_RETURN(planned->plan, PlanRun(options));
  return absl::OkStatus();
}

// FLOPs of a token grow evenly with the length of samples, which are longer than one token.
void SetGrowthOfFlops(const config::PretrainConfig& config, int64_t vocab,
                      const TrainedLayers& trained, SpeedBasis* speed) {
  config::ModelConfig shortest = config.model();
  shortest.set_seq_length(1);
  const auto longer = static_cast<double>(std::max<int64_t>(config.model().seq_length() - 1, 1));
  speed->flops_per_token_and_length =
      (speed->flops_per_token -
       FlopsPerToken(shortest, vocab, FlopsConvention::kCausalHalved, trained)) /
      longer;
  speed->full_flops_per_token_and_length =
      (speed->full_flops_per_token -
       FlopsPerToken(shortest, vocab, FlopsConvention::kClassic, trained)) /
      longer;
}

// The layers that drop no tokens are the first and the last.
void SetDroppingFlops(const config::PretrainConfig& config, const MoeOptions& moe, int64_t vocab,
                      TrainedLayers trained, SpeedBasis* speed) {
  config::ModelConfig few = config.model();
  few.set_num_layers(2);
  if (few.has_num_experts()) {
    few.set_moe_layer_freq(absl::StrCat("[", moe.IsMoeLayer(0), ",",
                                        moe.IsMoeLayer(config.model().num_layers() - 1), "]"));
  }
  if (!trained.layers.empty()) trained.layers = {trained.layers.front(), trained.layers.back()};
  const auto layers = static_cast<double>(config.model().num_layers());
  speed->dropping_flops_per_token =
      speed->flops_per_token - FlopsPerToken(few, vocab, FlopsConvention::kCausalHalved, trained);
  speed->dropping_full_flops_per_token =
      speed->full_flops_per_token - FlopsPerToken(few, vocab, FlopsConvention::kClassic, trained);
  speed->dropping_share = (layers - 2) / layers;
}

absl::StatusOr<PlannedPretraining> Plan(const config::PretrainConfig& config) {
  PlannedPretraining planned;
  MEGATRON_ASSIGN_OR_RETURN(planned.tokenizer, CreateTokenizer(ToTokenizerOptions(config.data())));
  planned.options = ToRunOptions(config, planned.tokenizer->vocab_size());
  ReadListedSources(PosixFileSystem(), &planned.options);
  MEGATRON_RETURN_IF_ERROR(CheckTokenizer(planned.options, *planned.tokenizer));
  if (const CheckpointOptions& checkpoint = planned.options.checkpoint;
      !checkpoint.save_huggingface.empty()) {
    if (checkpoint.save_huggingface == checkpoint.save) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint.save_huggingface: ", checkpoint.save,
                       " is checkpoint.save, whose directories have the same names: name another"));
    }
    MEGATRON_RETURN_IF_ERROR(HfConfigJson(planned.options.trainer.model, {}).status(),
                             _ << "for checkpoint.save_huggingface");
  }
  MEGATRON_RETURN_IF_ERROR(ChooseOrder(config, &planned.options, &planned.rank_order));
  MEGATRON_ASSIGN_OR_RETURN(planned.plan, PlanRun(planned.options));
  MEGATRON_RETURN_IF_ERROR(ChooseOffloadedLayers(config, &planned));
  const int64_t vocab = planned.options.trainer.model.padded_vocab_size;
  const TrainedLayers& trained = planned.plan.trained_layers;
  planned.speed.flops_per_token =
      FlopsPerToken(config.model(), vocab, FlopsConvention::kCausalHalved, trained);
  planned.speed.full_flops_per_token =
      FlopsPerToken(config.model(), vocab, FlopsConvention::kClassic, trained);
  const TrainerOptions& trainer = planned.options.trainer;
  if (trainer.curriculum.enabled() || trainer.random_ltd.enabled())
    SetGrowthOfFlops(config, vocab, trained, &planned.speed);
  if (trainer.random_ltd.enabled())
    SetDroppingFlops(config, trainer.model.transformer.moe, vocab, trained, &planned.speed);
  return planned;
}

}  // namespace

absl::StatusOr<PlannedPretraining> PlanPretraining(const config::PretrainConfig& config) {
  return WithExitCode(Plan(config), kExitConfig);
}

}  // namespace megatron
