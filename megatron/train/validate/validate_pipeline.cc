#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/pipeline/pipeline_layout.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/trainer/pipeline_section.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr char kStages[] = "parallel.pipeline_model_parallel_size";
constexpr char kSchedule[] = "parallel.pipeline_schedule";
constexpr char kLayout[] = "parallel.pipeline_model_parallel_layout";
constexpr char kVirtualLayers[] = "parallel.num_layers_per_virtual_pipeline_stage";
constexpr char kVirtualStages[] = "parallel.num_virtual_stages_per_pipeline_rank";
constexpr char kPassCosts[] = "parallel.pipeline_pass_costs";
constexpr char kGroup[] = "parallel.microbatch_group_size_per_virtual_pipeline_stage";
constexpr char kFirst[] = "parallel.decoder_first_pipeline_num_layers";
constexpr char kLast[] = "parallel.decoder_last_pipeline_num_layers";
constexpr char kEmbeddingCounts[] = "parallel.account_for_embedding_in_pipeline_split";
constexpr char kLossCounts[] = "parallel.account_for_loss_in_pipeline_split";
constexpr char kTimeline[] = "logging.pipeline_timeline_file";
constexpr char kLayers[] = "model.num_layers";
constexpr char kSplit[] = "parallel.pipeline_model_parallel_split_rank";

constexpr absl::string_view kSchedules[] = {"gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"};

std::vector<StackLayers> StacksOf(const ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  return ModelRulesOf(model).StacksOf(model);
}

std::string NamedLayers(const ConfigChecker& check) {
  std::vector<std::string> named;
  for (const StackLayers& stack : StacksOf(check)) named.push_back(check.Named(stack.field));
  return absl::StrJoin(named, " and ");
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
  const auto layout =
      ParsePipelineLayout(check.resolved().parallel().pipeline_model_parallel_layout());
  if (!layout.ok()) return check.Error(kLayout, layout.status().message());
  const std::vector<int64_t>& parts = layout->layers;
  const int64_t stages = check.resolved().parallel().pipeline_model_parallel_size();
  if (static_cast<int64_t>(parts.size()) % stages != 0) {
    check.Error(kLayout, absl::StrCat("has ", parts.size(), " parts, which ", check.Named(kStages),
                                      " ranks cannot share evenly"));
  }
  const int64_t layers = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  if (layers != TotalLayers(check.resolved().model()))
    check.Error(kLayout, absl::StrCat("has ", layers, " layers, not ", NamedLayers(check)));
}

// Checks a cut between the pipeline ranks of the first stack and those of the second.
void CheckSplit(ConfigChecker& check, const StackLayers& first, const StackLayers& second) {
  check.HaveNoEffect({kVirtualLayers, kVirtualStages, kEmbeddingCounts, kLossCounts},
                     absl::StrCat("with ", check.Named(kSplit)));
  if (!check.Usable({kSplit})) return;
  const int64_t stages = check.resolved().parallel().pipeline_model_parallel_size();
  const int64_t split = check.resolved().parallel().pipeline_model_parallel_split_rank();
  if (split >= stages)
    return check.Error(kSplit, absl::StrCat("must be less than ", check.Named(kStages)));
  if (check.resolved().parallel().pipeline_schedule() == "zb_v")
    return check.Error(kSplit, absl::StrCat("makes one part for each pipeline rank, and ",
                                            check.Named(kSchedule), " takes two"));
  check.MustDivide(kSplit, first.field, split, first.num_layers);
  if (check.Usable({second.field}) && second.num_layers % (stages - split) != 0)
    check.Error(kSplit,
                absl::StrCat("leaves ", stages - split, " ranks for ", check.Named(second.field),
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

// Returns "model.num_layers = 12 and the embedding".
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
  const bool counted = things != StacksOf(check).front().num_layers;
  check.Error(kLayers, absl::StrCat("must be divisible by ", check.Named(kStages),
                                    chunks > 1 ? absl::StrCat(" times ", chunks) : "",
                                    counted ? absl::StrCat(" as ", NamedThings(check)) : "",
                                    ", or ", kLayout, " say where layers go"));
}

// Checks that the schedule can work with as many parts as there are.
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

void CheckPassCosts(ConfigChecker& check) {
  const int count = check.resolved().parallel().pipeline_pass_costs_size();
  if (count == 0 || count == 3 || !check.Usable({kPassCosts})) return;
  check.Error(kPassCosts, absl::StrCat("has ", count, " numbers; expects three: a forward pass, a ",
                                       "backward pass for inputs, and one for weights"));
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
  const std::vector<StackLayers> stacks = StacksOf(check);
  if (stacks.size() > 1) {
    check.HaveNoEffect({kFirst, kLast},
                       absl::StrCat("with model.model_type: ", check.ValueOf("model.model_type"),
                                    "; ", kLayout, " says which part has how many layers"));
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
  } else if (stacks.size() == 2 && check.IsWritten(kSplit)) {
    CheckSplit(check, stacks[0], stacks[1]);
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
  CheckPassCosts(check);
}

void CheckThatPipelineIsFilled(ConfigChecker& check, absl::string_view path,
                               const std::vector<int64_t>& micro_batches) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (!check.Usable({kStages, kLayers})) return;
  for (absl::string_view field : {kVirtualLayers, kVirtualStages, kGroup}) {
    if (check.IsWritten(field) && !check.Usable({field})) return;
  }
  if (ChunksOf(check.resolved()) == 1 || parallel.pipeline_schedule() == "zb_v") return;
  const int stages = static_cast<int>(parallel.pipeline_model_parallel_size());
  const int64_t group = parallel.microbatch_group_size_per_virtual_pipeline_stage();
  for (const int64_t count : micro_batches) {
    if (count % stages != 0) {
      return check.Error(path, absl::StrCat("makes ", count, " micro-batches, which ",
                                            check.Named(FieldOfChunks(check)),
                                            " needs to be divisible by ", check.Named(kStages)));
    }
    if (group >= stages && !FillsGroups(stages, static_cast<int>(group), static_cast<int>(count))) {
      return check.Error(
          path, absl::StrCat("makes ", count, " micro-batches, of which ", check.Named(kGroup),
                             " leaves a group of less than ", check.Named(kStages)));
    }
  }
}

}  // namespace megatron
