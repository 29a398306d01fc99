#include "megatron/train/planning/search_layouts.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/planning/explain_step.h"
#include "megatron/train/planning/layout_predictor.h"
#include "megatron/train/planning/memory_estimate.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/trainer/pipeline_section.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"
#include "megatron/train/validate/validate.h"

namespace megatron {
namespace {

constexpr int64_t kMostRanks = 1 << 20;
// Layouts that are tried exactly, fastest first, before the search gives up.
constexpr int kMostTries = 1000;
constexpr double kSameTime = 1e-3;
// What other parts of a layout make up for is told from this share of its worst part on.
constexpr double kMadeUp = 0.1;
// The planner's formulas are no further off than this factor: what they find larger than the limit
// by more isn't estimated on the meta device.
constexpr double kFormulaFactor = 2;
// A layout that divides the ranks in another way is preferred to a faster one if it takes no more
// than so many times as long as the fastest.
constexpr double kMostSlower = 1.5;
constexpr double kPartsOfAPass = 1000;
// Tokens of a chunk of attention on the host: the first ones take little memory, and of the second
// a GPU hides more of what its link carries (docs/long_sequences.md).
constexpr int64_t kChunkTokens[] = {4096, 16384};

// What all layouts of a search leave on the host besides what each of them may have there.
struct OnHost {
  bool activations = false;
  // The tokens of a chunk of attention, ascending, each a multiple of the first; none: attention is
  // as the configuration has it.
  std::vector<int64_t> attention_chunks = {};
  // Where all that lies there of the optimizer's states is in files instead; empty: in memory.
  std::string state_folder = {};
};

struct Candidate {
  LayoutAxes axes;
  double seconds = 0;
  double formula_bytes = 0;  // by PredictStep
  double formula_host_bytes = 0;
};

// Returns whether no other layout of the same axes needs less memory.
bool KeepsLeast(const LayoutAxes& axes) {
  return axes.micro_batch == 1 && axes.hosts == 1 && axes.ranks_per_host == 0 &&
         axes.recompute == PlanRecompute::kFull &&
         axes.schedule == PlanSchedule::kOneForwardOneBackward;
}

// Times within a thousandth are the same; then the layout with fewer ways of dividing comes first.
bool ComesBefore(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& candidate) {
    const LayoutAxes& axes = candidate.axes;
    return std::make_tuple(
        std::llround(std::log(candidate.seconds) / kSameTime), axes.count(), axes.tensor,
        axes.grid.depth, axes.grid.is_cube, axes.pipeline, axes.context, axes.chunks,
        static_cast<int>(axes.schedule), axes.last_layers, axes.encoder_stages,
        axes.data_is_outermost, axes.expert, axes.expert_tensor, axes.micro_batch,
        axes.is_sequence_parallel, static_cast<int>(axes.context_form), axes.context_team,
        static_cast<int>(axes.recompute), static_cast<int>(axes.shared_out), axes.instances,
        axes.instances_share_states, axes.host_fraction, axes.states_in_files, axes.weights_on_host,
        axes.attention_chunk_on_host, axes.ranks_per_host, axes.deduplicates_dispatch, axes.hosts,
        axes.quantizes_weights, axes.quantizes_gradients);
  };
  return key(a) < key(b);
}

// Checks the configuration for the device that it is planned for.
absl::Status CheckLayout(config::PretrainConfig config, bool is_gpu) {
  SetPlannedDevice(is_gpu, &config);
  return ToStatus(Validate(config, ConfigLocations("the layout"), ConfigPurpose::kDryRun));
}

// Returns the configuration with its computed fields, in the simplest layout.
absl::StatusOr<config::PretrainConfig> Resolve(const config::PretrainConfig& config, bool is_gpu) {
  if (!config.train().has_global_batch_size()) {
    return absl::InvalidArgumentError(
        "train.global_batch_size: must be written, since the search keeps it in all layouts");
  }
  if (config.recompute().cpu_offloading_auto()) {
    return absl::UnimplementedError(
        "recompute.cpu_offloading_auto: a search keeps the activations of all layers in host "
        "memory, or of none; leave it out, and add it to the layout that is found");
  }
  if (config.diloco().sync_every() > 0) {
    return absl::UnimplementedError(
        "diloco.sync_every: no layout is searched with islands; search one for an island alone, "
        "with its ranks and its part of train.global_batch_size, and add the islands to it");
  }
  const LayoutAxes one;
  MEGATRON_RETURN_IF_ERROR(CheckLayout(WithoutRanks(config, one, is_gpu), is_gpu));
  config::PretrainConfig simple = config;
  ApplyLayout(one, is_gpu, &simple);
  // Fields that need several ranks.
  simple.mutable_parallel()->Clear();
  ResolveDefaults(&simple);
  return simple;
}

// Returns the configuration with that chunk of attention on the host, if there is one.
config::PretrainConfig WithChunks(config::PretrainConfig resolved, const OnHost& on_host) {
  if (on_host.attention_chunks.empty()) return resolved;
  resolved.mutable_recompute()->set_attention_chunk_tokens(on_host.attention_chunks.front());
  resolved.mutable_recompute()->set_attention_chunks_on_host(true);
  return resolved;
}

// Returns the configuration with files of states in that folder, if there is one.
config::PretrainConfig WithFolder(config::PretrainConfig config, const OnHost& on_host) {
  if (!on_host.state_folder.empty())
    config.mutable_optimizer()->set_optimizer_offload_path(on_host.state_folder);
  return config;
}

bool DividesRanksAlike(const LayoutAxes& a, const LayoutAxes& b) {
  return a.tensor == b.tensor && a.context == b.context && a.pipeline == b.pipeline &&
         a.data == b.data && a.expert == b.expert && a.expert_tensor == b.expert_tensor;
}

bool DividesAlike(const LayoutAxes& a, const LayoutAxes& b) {
  return DividesRanksAlike(a, b) && a.chunks == b.chunks && a.schedule == b.schedule &&
         a.last_layers == b.last_layers && a.encoder_stages == b.encoder_stages &&
         a.micro_batch == b.micro_batch;
}

// Returns the parts of the optimizer's states that are tried on the host, ascending.
std::vector<double> HostFractions(const config::PretrainConfig& config, bool offloads) {
  if (!offloads) return {0};
  std::set<double> fractions = {0, 0.5, 1};
  if (config.optimizer().has_optimizer_offload_fraction())
    fractions.insert(config.optimizer().optimizer_offload_fraction());
  return {fractions.begin(), fractions.end()};
}

bool PutsOffGradients(PlanSchedule schedule) {
  return schedule == PlanSchedule::kZeroBubbleH1 || schedule == PlanSchedule::kZeroBubbleV;
}

PlanSchedule WrittenSchedule(const config::ParallelConfig& config) {
  if (config.pipeline_schedule() == "gpipe") return PlanSchedule::kGPipe;
  return config.pipeline_schedule() == "zb_v" ? PlanSchedule::kZeroBubbleV
                                              : PlanSchedule::kOneForwardOneBackward;
}

class Search {
 public:
  Search(const config::PretrainConfig& config, config::PretrainConfig resolved, int64_t vocab_size,
         const Planner& planner, const SearchOptions& options, OnHost on_host = {})
      : config_(WithFolder(config, on_host)),
        resolved_(WithChunks(std::move(resolved), on_host)),
        vocab_size_(vocab_size),
        planner_(planner),
        options_(options),
        activations_on_host_(on_host.activations),
        attention_chunks_(on_host.attention_chunks.empty() ? std::vector<int64_t>{0}
                                                           : std::move(on_host.attention_chunks)),
        states_in_files_(!on_host.state_folder.empty()),
        limit_(options.memory_bytes > 0 ? options.memory_bytes
                                        : DefaultMemoryLimit(*planner.hardware)),
        host_limit_(options.host_bytes > 0 ? options.host_bytes
                                           : DefaultHostLimit(*planner.hardware)),
        file_limit_(planner.hardware->disk_gb() > 0 ? planner.hardware->disk_gb() * 1e9
                                                    : std::numeric_limits<double>::infinity()),
        offloads_(options.offloads && KnowsHost(planner)),
        estimator_(config, vocab_size, planner.is_gpu),
        // Processes of one machine aren't joined by its memory, and may be cut in any way.
        layouts_(resolved_, options.ranks,
                 planner.hardware->cores() > 0 ? options.ranks : planner.hardware->domain(),
                 planner.hardware->domain(), HostFractions(config, offloads_),
                 WrittenSchedule(config.parallel()),
                 {[this](const PlanGrid& grid) { return AllowsGrid(grid); },
                  /*keeps_larger=*/config.parallel().has_tensor_parallel_mode()}) {}

  absl::StatusOr<LayoutSearch> Run();
  absl::StatusOr<bool> FitsSomewhere();

 private:
  // Predicts the layouts that are allowed: all, or of them those that keep least.
  absl::StatusOr<std::vector<Candidate>> Predict(LayoutPredictor* predictor, bool least_alone);
  absl::StatusOr<LayoutPredictor> MakePredictor() const;
  // Returns the layouts that differ in the form of their data-parallel communication or in the way
  // of tokens to their experts, and that are allowed.
  std::vector<LayoutAxes> FormsOf(const LayoutAxes& axes) const;
  // Returns whether the trainer takes the grid in the simplest layout that has it.
  bool AllowsGrid(const PlanGrid& grid);
  // Returns whether tokens may go to each host of their experts once.
  bool MayDeduplicate(const LayoutAxes& axes, int64_t ranks_per_host) const;
  // The layouts that keep least are estimated, the smallest by formulas first.
  absl::StatusOr<bool> FitsSomewhere(const std::vector<Candidate>& candidates);
  absl::StatusOr<bool> FitsSomewhere(const std::vector<Candidate>& candidates, bool on_host);
  absl::Status Take(const std::vector<Candidate>& candidates, LayoutPredictor* predictor);
  absl::Status Try(const Candidate& candidate, LayoutPredictor* predictor);
  absl::StatusOr<MemoryNeeds> Estimate(const Candidate& candidate);
  bool Fits(const MemoryNeeds& needs) const {
    return needs.device <= limit_ && needs.host <= host_limit_ && needs.files <= file_limit_;
  }
  bool IsAllowed(const LayoutAxes& axes) const { return !options_.allows || options_.allows(axes); }
  bool HasDivision(const LayoutAxes& axes) const;
  bool IsBeaten(const LayoutAxes& axes, double bytes) const;
  config::PretrainConfig Resolved(config::PretrainConfig config) const;
  absl::Status WritePassCosts(config::PretrainConfig* config) const;
  absl::StatusOr<FoundLayout> Plan(const LayoutAxes& axes) const;
  void Refuse(const std::string& why);

  const config::PretrainConfig config_;
  const config::PretrainConfig resolved_;
  const int64_t vocab_size_;
  const Planner& planner_;
  const SearchOptions options_;
  const bool activations_on_host_;
  const std::vector<int64_t> attention_chunks_;  // 0: as the configuration has them
  const bool states_in_files_;
  const double limit_;
  const double host_limit_;
  const double file_limit_;
  const bool offloads_;
  MemoryEstimator estimator_;
  LayoutSpace layouts_;
  LayoutSearch found_;
  std::map<std::tuple<int64_t, int64_t, bool>, bool> grids_;  // whether each is allowed
  int tries_ = 0;                                             // layouts that were planned
};

absl::StatusOr<std::vector<Candidate>> Search::Predict(LayoutPredictor* predictor,
                                                       bool least_alone) {
  std::vector<Candidate> candidates;
  const int64_t samples = resolved_.train().global_batch_size();
  const auto add = [&](const LayoutAxes& added, const StepPrediction& prediction) {
    candidates.push_back(
        {added, prediction.seconds.total, prediction.memory_bytes, prediction.host_bytes});
  };
  const auto predict = [&](const LayoutAxes& axes) -> absl::Status {
    const bool is_allowed = IsAllowed(axes);
    StepPrediction plain;
    if (is_allowed) {
      MEGATRON_ASSIGN_OR_RETURN(plain, predictor->Predict(axes, samples));
      add(axes, plain);
      if (!LayoutPredictor::WaitsForForms(plain)) return absl::OkStatus();
    } else {
      ++found_.not_allowed;
    }
    for (const LayoutAxes& form : FormsOf(axes)) {
      if (is_allowed && !predictor->MayPay(axes, plain, form, samples)) continue;
      MEGATRON_ASSIGN_OR_RETURN(const StepPrediction prediction, predictor->Predict(form, samples));
      add(form, prediction);
    }
    return absl::OkStatus();
  };
  const auto visit = [&](const LayoutAxes& visited) -> absl::StatusOr<bool> {
    if (least_alone && !KeepsLeast(visited)) return true;
    if (activations_on_host_ && PutsOffGradients(visited.schedule)) return true;
    if (states_in_files_ && visited.host_fraction == 0) return true;
    LayoutAxes axes = visited;
    axes.activations_on_host = activations_on_host_;
    axes.states_in_files = states_in_files_;
    for (const int64_t chunk : attention_chunks_) {
      axes.attention_chunk_on_host = chunk;
      MEGATRON_RETURN_IF_ERROR(predict(axes));
      if (least_alone) break;  // the smallest one takes least
    }
    return true;
  };
  MEGATRON_RETURN_IF_ERROR(layouts_.VisitAll(visit));
  found_.layouts = int64_t(candidates.size());
  found_.divisions = layouts_.divisions();
  found_.pruned_divisions = layouts_.pruned();
  std::sort(candidates.begin(), candidates.end(), ComesBefore);
  return candidates;
}

bool Search::AllowsGrid(const PlanGrid& grid) {
  const auto key = std::make_tuple(grid.side, grid.depth, grid.is_cube);
  const auto found = grids_.find(key);
  if (found != grids_.end()) return found->second;
  LayoutAxes axes;
  axes.tensor = grid.ranks();
  axes.grid = grid;
  axes.micro_batch = grid.samples();
  axes.attention_chunk_on_host = attention_chunks_.front();
  config::PretrainConfig config = config_;
  ApplyLayout(axes, planner_.is_gpu, &config);
  config.mutable_train()->set_global_batch_size(grid.samples() *
                                                config_.train().global_batch_size());
  // What is chosen for the ranks that there are is no part of a layout.
  config.mutable_train()->clear_auto_layout();
  config.mutable_train()->clear_auto_layout_ranks();
  return grids_[key] = CheckLayout(config, planner_.is_gpu).ok();
}

// The ranks that share experts begin with a host and fill several; parts of an expert share one.
bool Search::MayDeduplicate(const LayoutAxes& axes, int64_t ranks_per_host) const {
  const int64_t ranks = axes.expert * axes.expert_tensor;
  return ranks_per_host > 1 && axes.expert > 1 && ranks > ranks_per_host &&
         ranks % ranks_per_host == 0 && ranks_per_host % axes.expert_tensor == 0 &&
         ranks_per_host % axes.tensor == 0 && !resolved_.model().moe_pad_expert_input_to_capacity();
}

// Codes change the loss: they are taken where the configuration has them alone, as the number of
// ranks of a host is where it has one.
std::vector<LayoutAxes> Search::FormsOf(const LayoutAxes& axes) const {
  std::vector<LayoutAxes> forms;
  if (axes.instances > 1 || axes.data_is_outermost || axes.data * axes.context == 1) return forms;
  const config::ParallelConfig& parallel = config_.parallel();
  const bool has_parts = axes.shared_out == SharedOut::kWeights;
  const int64_t copies = axes.data * axes.context;
  const int64_t hosts = layouts_.HostsOf(axes);
  std::vector<int64_t> levels = {0}, secondary = {1};
  const int64_t domain = planner_.hardware->domain();
  const int64_t written = parallel.hierarchical_collectives_ranks_per_host();
  const bool has_levels = written > 0 || (hosts > 1 && axes.tensor * copies == domain * hosts);
  if (has_levels || MayDeduplicate(axes, domain)) levels.push_back(written > 0 ? written : domain);
  int64_t part = parallel.zero_hpz_partition_size();
  if (part == 0) part = parallel.hierarchical_collectives_ranks_per_host() / axes.tensor;
  if (has_parts && part > 1 && part < copies && copies % part == 0) {
    secondary.push_back(copies / part);
  } else if (has_parts && part <= 1 && hosts > 1) {
    secondary.push_back(hosts);
  }
  const auto choices = [&](bool is_written) {
    return has_parts && is_written ? std::vector<bool>{false, true} : std::vector<bool>{false};
  };
  LayoutAxes form = axes;
  for (const int64_t ranks_per_host : levels) {
    form.ranks_per_host = ranks_per_host;
    for (const int64_t count : secondary) {
      form.hosts = count;
      for (const bool weights : choices(parallel.zero_quantized_weights())) {
        form.quantizes_weights = weights;
        for (const bool gradients : choices(parallel.zero_quantized_gradients())) {
          form.quantizes_gradients = gradients;
          const bool is_plain = ranks_per_host == 0 && count == 1 && !weights && !gradients;
          if (!is_plain && (ranks_per_host == 0 || has_levels) && IsAllowed(form))
            forms.push_back(form);
          if (!MayDeduplicate(axes, ranks_per_host)) continue;
          form.deduplicates_dispatch = true;
          if (IsAllowed(form)) forms.push_back(form);
          form.deduplicates_dispatch = false;
        }
      }
    }
  }
  return forms;
}

void Search::Refuse(const std::string& why) {
  ++found_.refused;
  if (found_.first_refusal.empty()) found_.first_refusal = why;
}

absl::StatusOr<MemoryNeeds> Search::Estimate(const Candidate& candidate) {
  if (candidate.formula_bytes > kFormulaFactor * limit_)
    return MemoryNeeds{candidate.formula_bytes, candidate.formula_host_bytes};
  return estimator_.Bytes(candidate.axes);
}

// Returns whether a faster layout that divides the model alike needs no more memory.
bool Search::IsBeaten(const LayoutAxes& axes, double bytes) const {
  return std::any_of(found_.best.begin(), found_.best.end(), [&](const FoundLayout& layout) {
    return DividesAlike(layout.axes, axes) && double(layout.memory_bytes) <= bytes;
  });
}

config::PretrainConfig Search::Resolved(config::PretrainConfig config) const {
  SetPlannedDevice(planner_.is_gpu, &config);
  ResolveDefaults(&config);
  return config;
}

// The order of ZB-V follows from how long its passes take, to a thousandth of a forward pass.
absl::Status Search::WritePassCosts(config::PretrainConfig* config) const {
  if (ToScheduleKind(config->parallel()) != ScheduleKind::kZeroBubbleV) return absl::OkStatus();
  const config::PretrainConfig resolved = Resolved(*config);
  const int64_t vocab_size = ToRunOptions(resolved, vocab_size_).trainer.model.padded_vocab_size;
  MEGATRON_ASSIGN_OR_RETURN(const ActionCosts costs,
                            PredictPassCosts(resolved, vocab_size, *planner_.hardware,
                                             *planner_.program, *planner_.kernels));
  for (const double cost : {costs.forward, costs.backward_input, costs.backward_weight}) {
    const double parts = std::max(1.0, std::round(cost / costs.forward * kPartsOfAPass));
    config->mutable_parallel()->add_pipeline_pass_costs(parts / kPartsOfAPass);
  }
  return absl::OkStatus();
}

absl::StatusOr<FoundLayout> Search::Plan(const LayoutAxes& axes) const {
  FoundLayout found;
  found.axes = axes;
  found.config = config_;
  ApplyLayout(axes, planner_.is_gpu, &found.config);
  MEGATRON_RETURN_IF_ERROR(CheckLayout(found.config, planner_.is_gpu));
  MEGATRON_RETURN_IF_ERROR(WritePassCosts(&found.config));
  const config::PretrainConfig resolved = Resolved(found.config);
  const RunOptions options = ToRunOptions(resolved, vocab_size_);
  MEGATRON_ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(options));
  for (const RankPlan& stage : plan.stages) {
    found.memory_bytes = std::max(found.memory_bytes, stage.total_bytes());
    found.host_bytes = std::max(found.host_bytes, stage.host_bytes());
    found.file_bytes = std::max(found.file_bytes, stage.file_bytes);
  }
  MEGATRON_ASSIGN_OR_RETURN(const ExplainedStep step,
                            ExplainStep(resolved, options.trainer.model.padded_vocab_size,
                                        *planner_.hardware, *planner_.program, *planner_.kernels));
  found.run = step.run;
  found.prediction.seconds = step.seconds;
  return found;
}

bool Search::HasDivision(const LayoutAxes& axes) const {
  return std::any_of(found_.best.begin(), found_.best.end(), [&](const FoundLayout& layout) {
    return DividesRanksAlike(layout.axes, axes);
  });
}

// Takes the candidate if it fits and is not beaten.
absl::Status Search::Try(const Candidate& candidate, LayoutPredictor* predictor) {
  MEGATRON_ASSIGN_OR_RETURN(const MemoryNeeds needs, Estimate(candidate));
  if (!Fits(needs)) {
    ++found_.too_large;
    return absl::OkStatus();
  }
  if (IsBeaten(candidate.axes, needs.device)) return absl::OkStatus();
  ++tries_;
  auto planned = Plan(candidate.axes);
  if (!planned.ok()) {
    Refuse(std::string(planned.status().message()));
  } else if (!Fits({double(planned->memory_bytes), double(planned->host_bytes),
                    double(planned->file_bytes)})) {
    Refuse(absl::StrCat(DescribeLayout(planned->axes), " needs more memory than estimated"));
  } else if (!IsBeaten(candidate.axes, double(planned->memory_bytes))) {
    // The closed form orders candidates; those that are taken have their schedule played.
    const StepSeconds played = planned->prediction.seconds;
    MEGATRON_ASSIGN_OR_RETURN(
        planned->prediction,
        predictor->Predict(candidate.axes, resolved_.train().global_batch_size()));
    planned->prediction.seconds = played;
    found_.best.push_back(*std::move(planned));
  }
  return absl::OkStatus();
}

// Takes the fastest layout of each division of the ranks, and fills up with the fastest others.
absl::Status Search::Take(const std::vector<Candidate>& candidates, LayoutPredictor* predictor) {
  std::vector<const Candidate*> others;
  const auto is_done = [&] {
    return int(found_.best.size()) >= options_.best || tries_ >= kMostTries;
  };
  for (const Candidate& candidate : candidates) {
    if (is_done()) break;
    const bool is_slow =
        !found_.best.empty() &&
        candidate.seconds > kMostSlower * found_.best.front().prediction.seconds.total;
    if (is_slow || HasDivision(candidate.axes)) {
      others.push_back(&candidate);
      continue;
    }
    MEGATRON_RETURN_IF_ERROR(Try(candidate, predictor));
  }
  for (const Candidate* candidate : others) {
    if (is_done()) break;
    MEGATRON_RETURN_IF_ERROR(Try(*candidate, predictor));
  }
  std::stable_sort(found_.best.begin(), found_.best.end(),
                   [](const FoundLayout& a, const FoundLayout& b) {
                     return ComesBefore({a.axes, a.prediction.seconds.total},
                                        {b.axes, b.prediction.seconds.total});
                   });
  return absl::OkStatus();
}

absl::StatusOr<bool> Search::FitsSomewhere(const std::vector<Candidate>& candidates) {
  MEGATRON_ASSIGN_OR_RETURN(const bool fits, FitsSomewhere(candidates, /*on_host=*/false));
  if (fits || !offloads_) return fits;
  MEGATRON_ASSIGN_OR_RETURN(found_.needs_host, FitsSomewhere(candidates, /*on_host=*/true));
  return found_.needs_host;
}

absl::StatusOr<bool> Search::FitsSomewhere(const std::vector<Candidate>& candidates, bool on_host) {
  std::vector<const Candidate*> smallest;
  for (const bool any : {false, true}) {
    for (const Candidate& candidate : candidates) {
      if ((candidate.axes.host_fraction > 0) == on_host && (any || KeepsLeast(candidate.axes)))
        smallest.push_back(&candidate);
    }
    if (!smallest.empty()) break;
  }
  std::stable_sort(smallest.begin(), smallest.end(), [](const Candidate* a, const Candidate* b) {
    return std::make_pair(a->formula_bytes, a->axes.attention_chunk_on_host) <
           std::make_pair(b->formula_bytes, b->axes.attention_chunk_on_host);
  });
  bool is_first = true;
  for (const Candidate* candidate : smallest) {
    if (!is_first && candidate->formula_bytes > kFormulaFactor * limit_) break;
    is_first = false;
    MEGATRON_ASSIGN_OR_RETURN(const MemoryNeeds needs, estimator_.Bytes(candidate->axes));
    if (Fits(needs)) return true;
    if (found_.least_bytes > 0 && needs.device >= found_.least_bytes) continue;
    found_.least = candidate->axes;
    found_.least_bytes = needs.device;
    found_.least_host_bytes = needs.host;
    found_.least_file_bytes = needs.files;
  }
  return false;
}

absl::StatusOr<LayoutPredictor> Search::MakePredictor() const {
  const RunOptions options = ToRunOptions(resolved_, vocab_size_);
  MEGATRON_ASSIGN_OR_RETURN(
      PlannedRun run,
      ToPlannedRun(resolved_, options.trainer.model.padded_vocab_size, *planner_.program));
  SetHeldCommunication(config_, &run);
  // The machine that plans may have no GPU.
  run.layout.attention_chunks_on_host =
      planner_.is_gpu && resolved_.recompute().attention_chunks_on_host();
  return LayoutPredictor(planner_, std::move(run), LayoutOverlaps(config_, planner_.is_gpu));
}

absl::StatusOr<LayoutSearch> Search::Run() {
  MEGATRON_ASSIGN_OR_RETURN(LayoutPredictor predictor, MakePredictor());
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                            Predict(&predictor, /*least_alone=*/false));
  MEGATRON_ASSIGN_OR_RETURN(const bool fits, FitsSomewhere(candidates));
  if (!fits) {
    found_.too_large = found_.layouts;
    return std::move(found_);
  }
  MEGATRON_RETURN_IF_ERROR(Take(candidates, &predictor));
  return std::move(found_);
}

absl::StatusOr<bool> Search::FitsSomewhere() {
  MEGATRON_ASSIGN_OR_RETURN(LayoutPredictor predictor, MakePredictor());
  MEGATRON_ASSIGN_OR_RETURN(std::vector<Candidate> candidates,
                            Predict(&predictor, /*least_alone=*/true));
  // Written fields may leave out full recomputation.
  if (candidates.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(candidates, Predict(&predictor, /*least_alone=*/false));
  }
  return FitsSomewhere(candidates);
}

// Returns whether what layers keep may lie on the host, and what that takes can be predicted.
bool MayOffloadLayers(const config::PretrainConfig& resolved, const Planner& planner,
                      const SearchOptions& options) {
  return options.offloads && KnowsHost(planner) &&
         resolved.model().model_type() != config::ModelType::t5 &&
         !resolved.model().has_hybrid_layer_pattern() &&
         resolved.system().cuda_graph_impl() == config::CudaGraphImpl::none;
}

// Returns the chunks of attention that the trainer takes on the host; none where the configuration
// says where attention's tensors lie.
std::vector<int64_t> ChunksOnHost(const config::PretrainConfig& config,
                                  const config::PretrainConfig& resolved, bool is_gpu) {
  std::vector<int64_t> chunks;
  if (config.recompute().has_attention_chunks_on_host()) return chunks;
  const auto add = [&](int64_t tokens) {
    LayoutAxes one;
    one.attention_chunk_on_host = tokens;
    const bool is_several = tokens < resolved.model().seq_length();
    if (is_several && CheckLayout(WithoutRanks(config, one, is_gpu), is_gpu).ok())
      chunks.push_back(tokens);
  };
  if (config.recompute().has_attention_chunk_tokens()) {
    add(config.recompute().attention_chunk_tokens());
  } else {
    for (const int64_t tokens : kChunkTokens) add(tokens);
  }
  return chunks;
}

// Returns whether something else than a folder is there. A folder that this machine lacks may be on
// those that are planned, or be made by the run.
bool IsNoFolder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? !S_ISDIR(info.st_mode) : errno == ENOTDIR;
}

// Returns the folder in which states may lie in files; empty where there is none, or a disk of
// unknown rates that nobody asks for.
absl::StatusOr<std::string> StateFolder(const config::PretrainConfig& config,
                                        const Hardware& hardware) {
  if (config.optimizer().has_optimizer_offload_path())
    return config.optimizer().optimizer_offload_path();
  if (!KnowsDisk(hardware)) return "";
  if (!IsNoFolder(hardware.disk_directory())) return hardware.disk_directory();
  return absl::InvalidArgumentError(absl::StrCat("hardware '", hardware.name(),
                                                 "'.disk_directory is '", hardware.disk_directory(),
                                                 "', which is no folder"));
}

// Returns what further searches leave on the host, each for where nothing before it fits.
absl::StatusOr<std::vector<OnHost>> FurtherPlaces(const config::PretrainConfig& config,
                                                  const config::PretrainConfig& resolved,
                                                  const Planner& planner,
                                                  const SearchOptions& options) {
  std::vector<OnHost> places;
  const bool may_offload_layers = MayOffloadLayers(resolved, planner, options);
  std::vector<int64_t> chunks;
  if (may_offload_layers) chunks = ChunksOnHost(config, resolved, planner.is_gpu);
  const auto add = [&](const std::string& folder) {
    if (may_offload_layers) places.push_back({/*activations=*/true, {}, folder});
    if (chunks.empty()) return;
    places.push_back({/*activations=*/false, chunks, folder});
    places.push_back({/*activations=*/true, chunks, folder});
  };
  add("");
  if (!options.offloads || !KnowsHost(planner)) return places;
  MEGATRON_ASSIGN_OR_RETURN(const std::string folder, StateFolder(config, *planner.hardware));
  if (folder.empty()) return places;
  places.push_back({/*activations=*/false, {}, folder});
  add(folder);
  return places;
}

// Adds to a search the layouts of those before it, of which none fits.
void AddSearch(const LayoutSearch& before, LayoutSearch* found) {
  found->layouts += before.layouts;
  found->not_allowed += before.not_allowed;
  found->too_large += before.too_large;
  const bool is_smaller = before.least_bytes > 0 && before.least_bytes < found->least_bytes;
  if (found->least_bytes > 0 && !is_smaller) return;
  found->least = before.least;
  found->least_bytes = before.least_bytes;
  found->least_host_bytes = before.least_host_bytes;
  found->least_file_bytes = before.least_file_bytes;
}

absl::Status CheckRanks(int64_t ranks) {
  if (ranks >= 1 && ranks <= kMostRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a layout can be planned for 1 to ", kMostRanks, " ranks, not for ", ranks));
}

}  // namespace

double DefaultMemoryLimit(const Hardware& hardware) {
  return hardware.memory_gib() * double(int64_t{1} << 30) * (1 - kMemoryMargin);
}

double DefaultHostLimit(const Hardware& hardware) {
  return hardware.host_memory_gb() * 1e9 * (1 - kHostMargin);
}

bool KnowsHost(const Planner& planner) {
  const Hardware& hardware = *planner.hardware;
  return planner.is_gpu && hardware.host_link_gb_per_s() > 0 &&
         hardware.host_memory_gb_per_s() > 0 && hardware.host_memory_gb() > 0;
}

absl::StatusOr<LayoutSearch> SearchLayouts(const config::PretrainConfig& config, int64_t vocab_size,
                                           const Planner& planner, const SearchOptions& options) {
  MEGATRON_RETURN_IF_ERROR(CheckRanks(options.ranks));
  MEGATRON_ASSIGN_OR_RETURN(const config::PretrainConfig resolved, Resolve(config, planner.is_gpu));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<OnHost> places,
                            FurtherPlaces(config, resolved, planner, options));
  MEGATRON_ASSIGN_OR_RETURN(LayoutSearch found,
                            Search(config, resolved, vocab_size, planner, options).Run());
  // Whether layouts without these on the host were looked at: --set may write where they lie.
  bool without_activations = found.layouts > 0, without_attention = found.layouts > 0,
       without_files = found.layouts > 0;
  for (const OnHost& on_host : places) {
    const bool fits_nowhere = found.best.empty() && found.too_large == found.layouts;
    if (!fits_nowhere) break;
    const bool moves_attention = !on_host.attention_chunks.empty();
    MEGATRON_ASSIGN_OR_RETURN(
        LayoutSearch next, Search(config, resolved, vocab_size, planner, options, on_host).Run());
    if (next.layouts == 0) continue;
    next.needs_activations_on_host =
        !next.best.empty() && on_host.activations && without_activations;
    next.needs_attention_on_host = !next.best.empty() && moves_attention && without_attention;
    next.needs_files = !next.best.empty() && !on_host.state_folder.empty() && without_files;
    without_files |= on_host.state_folder.empty();
    without_activations |= !on_host.activations;
    without_attention |= !moves_attention;
    AddSearch(found, &next);
    found = std::move(next);
  }
  return found;
}

absl::StatusOr<int64_t> RanksThatFit(const config::PretrainConfig& config, int64_t vocab_size,
                                     const Planner& planner, const SearchOptions& options) {
  SearchOptions more = options;
  MEGATRON_ASSIGN_OR_RETURN(const config::PretrainConfig resolved, Resolve(config, planner.is_gpu));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<OnHost> places,
                            FurtherPlaces(config, resolved, planner, options));
  while (more.ranks <= kMostRanks / 2) {
    more.ranks *= 2;
    MEGATRON_ASSIGN_OR_RETURN(bool fits,
                              Search(config, resolved, vocab_size, planner, more).FitsSomewhere());
    for (const OnHost& on_host : places) {
      if (fits) break;
      MEGATRON_ASSIGN_OR_RETURN(
          fits, Search(config, resolved, vocab_size, planner, more, on_host).FitsSomewhere());
    }
    if (fits) return more.ranks;
  }
  return 0;
}

std::string WhyItLoses(const StepSeconds& first, const StepSeconds& other) {
  struct Part {
    const char* name;
    double StepSeconds::*seconds;
  };
  constexpr Part kParts[] = {
      {"compute", &StepSeconds::compute},
      {"tensor-parallel communication", &StepSeconds::tensor_parallel},
      {"context-parallel communication", &StepSeconds::context_parallel},
      {"expert-parallel communication", &StepSeconds::expert_parallel},
      {"messages between stages", &StepSeconds::messages},
      {"pipeline bubble", &StepSeconds::bubble},
      {"data-parallel communication", &StepSeconds::data_parallel},
      {"weights and gradients on the link to the host", &StepSeconds::host_link},
      {"optimizer", &StepSeconds::optimizer}};
  const Part* worst = nullptr;
  double most = 0;
  for (const Part& part : kParts) {
    const double more = other.*part.seconds - first.*part.seconds;
    if (more <= most) continue;
    most = more;
    worst = &part;
  }
  if (worst == nullptr || other.total <= first.total * (1 + kSameTime))
    return "as fast, and cut in more ways";
  std::string text = absl::StrFormat("%s +%.3g s, %.2g %% of its step", worst->name, most,
                                     100 * most / other.total);
  const double made_up = most - (other.total - first.total);
  if (made_up > kMadeUp * most)
    absl::StrAppendFormat(&text, "; its other parts take %.3g s less", made_up);
  return text;
}

}  // namespace megatron
