#include "megatron/train/validate/pipeline_config.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/pipeline/pipeline_layout.h"
#include "megatron/plan/model_costs.h"
#include "megatron/train/costs/layer_shape.h"

namespace megatron {
namespace {

constexpr char kStages[] = "parallel.pipeline_model_parallel_size";
constexpr char kSchedule[] = "parallel.pipeline_schedule";
constexpr char kLayout[] = "parallel.pipeline_model_parallel_layout";
constexpr char kVirtualLayers[] = "parallel.num_layers_per_virtual_pipeline_stage";
constexpr char kVirtualStages[] = "parallel.num_virtual_stages_per_pipeline_rank";
constexpr char kGroup[] = "parallel.microbatch_group_size_per_virtual_pipeline_stage";
constexpr char kFirst[] = "parallel.decoder_first_pipeline_num_layers";
constexpr char kLast[] = "parallel.decoder_last_pipeline_num_layers";
constexpr char kEmbeddingCounts[] = "parallel.account_for_embedding_in_pipeline_split";
constexpr char kLossCounts[] = "parallel.account_for_loss_in_pipeline_split";
constexpr char kTimeline[] = "logging.pipeline_timeline_file";
constexpr char kLayers[] = "model.num_layers";
constexpr char kSplit[] = "parallel.pipeline_model_parallel_split_rank";

constexpr absl::string_view kSchedules[] = {"gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"};

bool IsT5(const config::PretrainConfig& config) {
  return config.model().model_type() == config::ModelType::t5;
}

// Those of an encoder come before the decoder's.
int64_t LayersOf(const config::PretrainConfig& config) {
  const config::ModelConfig& model = config.model();
  return IsT5(config) ? model.encoder_num_layers() + model.decoder_num_layers()
                      : model.num_layers();
}

// The number of layers that are shared out evenly over the parts; the embedding and the loss count
// as one each where the fields say so.
int64_t LayersToShare(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  return LayersOf(config) + parallel.account_for_embedding_in_pipeline_split() +
         parallel.account_for_loss_in_pipeline_split();
}

// Parts of the model on each rank, of fields that agree with each other.
int64_t ChunksOf(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  const int64_t stages = parallel.pipeline_model_parallel_size();
  if (parallel.has_pipeline_model_parallel_layout()) {
    const auto parts = ParsePipelineLayout(parallel.pipeline_model_parallel_layout());
    return parts.ok() ? static_cast<int64_t>(parts->size()) / stages : 1;
  }
  if (parallel.pipeline_schedule() == "zb_v") return stages > 1 ? 2 : 1;
  if (parallel.has_num_virtual_stages_per_pipeline_rank())
    return parallel.num_virtual_stages_per_pipeline_rank();
  if (parallel.has_num_layers_per_virtual_pipeline_stage()) {
    return std::max<int64_t>(
        1, LayersToShare(config) / (stages * parallel.num_layers_per_virtual_pipeline_stage()));
  }
  return 1;
}

std::string NamedLayers(const ConfigChecker& check) {
  if (!IsT5(check.resolved())) return check.Named(kLayers);
  return absl::StrCat(check.Named("model.encoder_num_layers"), " and ",
                      check.Named("model.decoder_num_layers"));
}

// The field that makes several parts of each rank.
absl::string_view FieldOfChunks(const ConfigChecker& check) {
  if (check.IsWritten(kLayout)) return kLayout;
  return check.IsWritten(kVirtualStages) ? kVirtualStages : kVirtualLayers;
}

void CheckWrittenLayout(ConfigChecker& check) {
  const std::string with = absl::StrCat("with ", check.Named(kLayout));
  check.HaveNoEffect(
      {kVirtualLayers, kVirtualStages, kFirst, kLast, kSplit, kEmbeddingCounts, kLossCounts}, with);
  const auto parts =
      ParsePipelineLayout(check.resolved().parallel().pipeline_model_parallel_layout());
  if (!parts.ok()) return check.Error(kLayout, parts.status().message());
  const int64_t stages = check.resolved().parallel().pipeline_model_parallel_size();
  if (static_cast<int64_t>(parts->size()) % stages != 0) {
    check.Error(kLayout, absl::StrCat("has ", parts->size(), " parts, which ", check.Named(kStages),
                                      " ranks cannot share evenly"));
  }
  const int64_t layers = std::accumulate(parts->begin(), parts->end(), int64_t{0});
  if (layers != LayersOf(check.resolved()))
    check.Error(kLayout, absl::StrCat("has ", layers, " layers, not ", NamedLayers(check)));
}

// Ranks of the encoder, and of the decoder.
void CheckSplit(ConfigChecker& check) {
  check.HaveNoEffect({kVirtualLayers, kVirtualStages, kEmbeddingCounts, kLossCounts},
                     absl::StrCat("with ", check.Named(kSplit)));
  if (!check.Usable({kSplit})) return;
  const config::ModelConfig& model = check.resolved().model();
  const int64_t stages = check.resolved().parallel().pipeline_model_parallel_size();
  const int64_t split = check.resolved().parallel().pipeline_model_parallel_split_rank();
  if (split >= stages)
    return check.Error(kSplit, absl::StrCat("must be less than ", check.Named(kStages)));
  if (check.resolved().parallel().pipeline_schedule() == "zb_v")
    return check.Error(kSplit, absl::StrCat("makes one part for each pipeline rank, and ",
                                            check.Named(kSchedule), " takes two"));
  check.MustDivide(kSplit, "model.encoder_num_layers", split, model.encoder_num_layers());
  if (check.Usable({"model.decoder_num_layers"}) && model.decoder_num_layers() % (stages - split))
    check.Error(kSplit, absl::StrCat("leaves ", stages - split, " ranks for ",
                                     check.Named("model.decoder_num_layers"),
                                     ", which cannot share them evenly"));
}

void CheckUnevenEnds(ConfigChecker& check) {
  check.HaveNoEffect({kEmbeddingCounts, kLossCounts},
                     absl::StrCat("with ", check.Named(check.IsWritten(kFirst) ? kFirst : kLast)));
  const config::ParallelConfig& parallel = check.resolved().parallel();
  int64_t rest = check.resolved().model().num_layers();
  int64_t others = parallel.pipeline_model_parallel_size();
  for (absl::string_view path : {kFirst, kLast}) {
    if (!check.IsWritten(path)) continue;
    if (!check.Usable({path})) return;
    rest -= path == kFirst ? parallel.decoder_first_pipeline_num_layers()
                           : parallel.decoder_last_pipeline_num_layers();
    --others;
  }
  if (others == 0 ? rest == 0 : rest >= others && rest % others == 0) return;
  check.Error(check.IsWritten(kFirst) ? kFirst : kLast,
              absl::StrCat("leaves ", rest, " of ", check.Named(kLayers), " for ", others,
                           " other stages, which cannot share them evenly"));
}

// "model.num_layers = 12 and the embedding".
std::string NamedThings(const ConfigChecker& check) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  return absl::StrCat(
      NamedLayers(check),
      parallel.account_for_embedding_in_pipeline_split() ? " and the embedding" : "",
      parallel.account_for_loss_in_pipeline_split() ? " and the loss" : "");
}

void CheckEvenParts(ConfigChecker& check) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const int64_t things = LayersToShare(check.resolved());
  const int64_t stages = parallel.pipeline_model_parallel_size();
  if (check.IsWritten(kVirtualLayers) && parallel.pipeline_schedule() != "zb_v") {
    if (!check.Usable({kVirtualLayers})) return;
    const int64_t part = parallel.num_layers_per_virtual_pipeline_stage();
    if (things % (stages * part) != 0) {
      check.Error(kVirtualLayers, absl::StrCat("times ", check.Named(kStages), " must divide ",
                                               NamedThings(check)));
    } else if (things == stages * part) {
      check.Error(kVirtualLayers,
                  "makes one part for each pipeline rank, as without it: leave it out");
    }
    return;
  }
  if (check.IsWritten(kVirtualStages) && !check.Usable({kVirtualStages})) return;
  const int64_t chunks = ChunksOf(check.resolved());
  if (things % (stages * chunks) == 0) return;
  const bool counted = things != check.resolved().model().num_layers();
  check.Error(kLayers, absl::StrCat("must be divisible by ", check.Named(kStages),
                                    chunks > 1 ? absl::StrCat(" times ", chunks) : "",
                                    counted ? absl::StrCat(" as ", NamedThings(check)) : "",
                                    ", or ", kLayout, " say where layers go"));
}

// Whether the schedule can work with as many parts as there are.
void CheckScheduleName(ConfigChecker& check) {
  const std::string& name = check.resolved().parallel().pipeline_schedule();
  if (!check.IsWritten(kSchedule)) return;
  if (std::find(std::begin(kSchedules), std::end(kSchedules), name) == std::end(kSchedules)) {
    return check.Error(kSchedule,
                       "expects \"gpipe\", \"1f1b\", \"interleaved\", \"zb_h1\" or \"zb_v\"");
  }
  const int64_t chunks = ChunksOf(check.resolved());
  if (name == "zb_v") {
    check.HaveNoEffect({kVirtualLayers, kVirtualStages, kFirst, kLast},
                       absl::StrCat("with ", check.Named(kSchedule)));
    if (chunks != 2) {
      check.Error(kSchedule, absl::StrCat("needs two parts on each rank, not the ", chunks, " of ",
                                          check.Named(kLayout)));
    }
  } else if (name == "interleaved") {
    if (chunks == 1) {
      check.Error(kSchedule, absl::StrCat("needs several parts on each rank: set ", kVirtualLayers,
                                          ", ", kVirtualStages, " or ", kLayout));
    }
  } else if (chunks > 1) {
    check.Error(kSchedule, absl::StrCat("takes one part on each rank, and there are ", chunks,
                                        " by ", check.Named(FieldOfChunks(check))));
  }
}

void CheckGroup(ConfigChecker& check) {
  if (!check.IsWritten(kGroup) || !check.Usable({kGroup})) return;
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (ChunksOf(check.resolved()) == 1 || parallel.pipeline_schedule() == "zb_v") {
    check.HaveNoEffect({kGroup}, "without an interleaved schedule");
  } else if (parallel.microbatch_group_size_per_virtual_pipeline_stage() <
             parallel.pipeline_model_parallel_size()) {
    check.Error(kGroup, absl::StrCat("must be at least ", check.Named(kStages)));
  }
}

}  // namespace

void CheckPipeline(ConfigChecker& check) {
  if (!check.Usable({kStages, kLayers})) return;
  if (check.resolved().parallel().pipeline_model_parallel_size() == 1) return;
  if (IsT5(check.resolved())) {
    check.HaveNoEffect({kFirst, kLast}, "with model.model_type: t5; " + std::string(kLayout) +
                                            " says which part has how many layers");
  }
  if (check.IsWritten(kTimeline) && check.resolved().system().device() == config::Device::cuda) {
    check.Error(kTimeline, absl::StrCat("is measured on the CPU only, not with ",
                                        check.Named("system.device")));
  }
  if (check.IsWritten(kVirtualLayers) && check.IsWritten(kVirtualStages)) {
    return check.Error(kVirtualStages,
                       absl::StrCat("contradicts ", check.Named(kVirtualLayers), "; choose one"));
  }
  const bool virtual_stages = check.IsWritten(kVirtualLayers) || check.IsWritten(kVirtualStages);
  if (check.IsWritten(kLayout)) {
    CheckWrittenLayout(check);
  } else if (IsT5(check.resolved()) && check.IsWritten(kSplit)) {
    CheckSplit(check);
  } else if (virtual_stages || !(check.IsWritten(kFirst) || check.IsWritten(kLast))) {
    if (virtual_stages) {
      check.HaveNoEffect({kFirst, kLast}, absl::StrCat("with ", check.Named(FieldOfChunks(check))));
    }
    CheckEvenParts(check);
  } else if (check.resolved().parallel().pipeline_schedule() != "zb_v") {
    CheckUnevenEnds(check);
  }
  if (!check.Usable({kVirtualLayers}) && check.IsWritten(kVirtualLayers)) return;
  if (!check.Usable({kVirtualStages}) && check.IsWritten(kVirtualStages)) return;
  CheckScheduleName(check);
  CheckGroup(check);
}

void CheckThatPipelineIsFilled(ConfigChecker& check, absl::string_view path,
                               int64_t micro_batches) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (!check.Usable({kStages, kLayers})) return;
  for (absl::string_view field : {kVirtualLayers, kVirtualStages, kGroup}) {
    if (check.IsWritten(field) && !check.Usable({field})) return;
  }
  if (ChunksOf(check.resolved()) == 1 || parallel.pipeline_schedule() == "zb_v") return;
  const int stages = static_cast<int>(parallel.pipeline_model_parallel_size());
  const int64_t group = parallel.microbatch_group_size_per_virtual_pipeline_stage();
  if (micro_batches % stages != 0) {
    check.Error(path, absl::StrCat("makes ", micro_batches, " micro-batches, which ",
                                   check.Named(FieldOfChunks(check)), " needs to be divisible by ",
                                   check.Named(kStages)));
  } else if (group >= stages &&
             !FillsGroups(stages, static_cast<int>(group), static_cast<int>(micro_batches))) {
    check.Error(path, absl::StrCat("makes ", micro_batches, " micro-batches, of which ",
                                   check.Named(kGroup), " leaves a group of less than ",
                                   check.Named(kStages)));
  }
}

ScheduleKind ToScheduleKind(const config::ParallelConfig& config) {
  const std::string& name = config.pipeline_schedule();
  if (name == "gpipe") return ScheduleKind::kGPipe;
  if (name == "zb_h1") return ScheduleKind::kZeroBubbleH1;
  return name == "zb_v" ? ScheduleKind::kZeroBubbleV : ScheduleKind::kOneForwardOneBackward;
}

StagePlacement ToPlacement(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  StagePlacement placement;
  placement.stages = static_cast<int>(parallel.pipeline_model_parallel_size());
  placement.chunks = static_cast<int>(ChunksOf(config));
  placement.order = OrderOf(ToScheduleKind(parallel));
  const int64_t parts = int64_t{placement.stages} * placement.chunks;
  if (parallel.has_pipeline_model_parallel_layout()) {
    placement.layers = ParsePipelineLayout(parallel.pipeline_model_parallel_layout()).value();
    return placement;
  }
  if (parallel.has_pipeline_model_parallel_split_rank()) {
    const int64_t split = parallel.pipeline_model_parallel_split_rank();
    placement.layers.assign(split, config.model().encoder_num_layers() / split);
    placement.layers.resize(parts, config.model().decoder_num_layers() / (parts - split));
    return placement;
  }
  const bool first = parallel.has_decoder_first_pipeline_num_layers(),
             last = parallel.has_decoder_last_pipeline_num_layers();
  if (!first && !last) {
    if (LayersToShare(config) == LayersOf(config)) return placement;  // even
    placement.layers.assign(parts, LayersToShare(config) / parts);
    placement.layers.front() -= parallel.account_for_embedding_in_pipeline_split();
    placement.layers.back() -= parallel.account_for_loss_in_pipeline_split();
    return placement;
  }
  const int64_t ends = (first ? parallel.decoder_first_pipeline_num_layers() : 0) +
                       (last ? parallel.decoder_last_pipeline_num_layers() : 0);
  const int64_t others = parts - first - last;
  placement.layers.assign(parts, others == 0 ? 0 : (config.model().num_layers() - ends) / others);
  if (first) placement.layers.front() = parallel.decoder_first_pipeline_num_layers();
  if (last) placement.layers.back() = parallel.decoder_last_pipeline_num_layers();
  return placement;
}

namespace {

constexpr double kEmptyPart = 0.5;  // in layers

// The arithmetic that is done twice, in pairs of a multiplication and an addition.
double Recomputed(const config::RecomputeConfig& recompute, const MatrixProducts& layer) {
  if (recompute.recompute_granularity() == config::RecomputeGranularity::full)
    return MultiplyAdds(layer);
  double again = 0;
  if (recompute.recompute_granularity() != config::RecomputeGranularity::selective) return again;
  for (int module : recompute.recompute_modules()) {
    if (module == config::RecomputeModule::core_attn) again += ActivationMultiplyAdds(layer);
    if (module != config::RecomputeModule::mlp) continue;
    for (const MatrixProduct& product : layer) {
      if (absl::string_view(product.name) == "fc1") again += MultiplyAdds(product);
    }
  }
  return again;
}

// A product of activations has two gradients, both of which belong to the inputs' part, as does
// what is recomputed.
ActionCosts CostsOf(const config::RecomputeConfig& recompute, const MatrixProducts& layer) {
  const double weights = WeightMultiplyAdds(layer), attention = ActivationMultiplyAdds(layer);
  return {weights + attention, weights + 2 * attention + Recomputed(recompute, layer), weights};
}

// A layer over `tokens` tokens, each of which attends to `seen`.
MatrixProducts LayerProducts(const LayerShape& layer, double tokens, double seen) {
  return Joined(SelfAttentionProducts(layer, tokens, seen), MlpProducts(layer, tokens));
}

ActionCosts Sum(double a, const ActionCosts& x, double b, const ActionCosts& y) {
  return {a * x.forward + b * y.forward, a * x.backward_input + b * y.backward_input,
          a * x.backward_weight + b * y.backward_weight};
}

PartCosts ToT5Costs(const config::PretrainConfig& config) {
  const config::ModelConfig& model = config.model();
  const double read = static_cast<double>(model.seq_length());
  const double written = static_cast<double>(model.decoder_seq_length());
  const LayerShape layer = ToLayerShape(model);
  const ActionCosts encoder = CostsOf(config.recompute(), LayerProducts(layer, read, read));
  const ActionCosts decoder =
      CostsOf(config.recompute(), Joined(LayerProducts(layer, written, written / 2),
                                         CrossAttentionProducts(layer, written, read)));
  const StagePlacement placement = ToPlacement(config);
  const int64_t parts = int64_t{placement.stages} * placement.chunks;
  std::vector<int64_t> layers = placement.layers;
  if (layers.empty()) layers.assign(parts, LayersOf(config) / parts);
  std::vector<ActionCosts> costs;
  int64_t encoder_left = model.encoder_num_layers();
  for (const int64_t count : layers) {
    const int64_t encoders = std::min(count, encoder_left);
    encoder_left -= encoders;
    // A part that only embeds or measures takes some time too.
    costs.push_back(count == 0 ? Sum(kEmptyPart, encoder, 0, decoder)
                               : Sum(static_cast<double>(encoders), encoder,
                                     static_cast<double>(count - encoders), decoder));
  }
  return PartCosts(std::move(costs));
}

}  // namespace

PartCosts ToActionCosts(const config::PretrainConfig& config) {
  if (IsT5(config)) return ToT5Costs(config);
  const config::ModelConfig& model = config.model();
  // A token attends to half of a sequence.
  const MatrixProducts layer =
      LayerProducts(ToLayerShape(model), 1, static_cast<double>(model.seq_length()) / 2);
  const ActionCosts costs = CostsOf(config.recompute(), layer);
  return ActionCosts{1, costs.backward_input / costs.forward,
                     costs.backward_weight / costs.forward};
}

}  // namespace megatron
