#include "megatron/train/planning/layout_space.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/layers/context_slice.h"
#include "megatron/train/config/batch_sizes.h"
#include "megatron/train/recipes/model_rules_of.h"

namespace megatron {
namespace {

constexpr int64_t kLeastPositions = 512;  // a context-parallel rank's part of a sample
constexpr int64_t kMostMicroBatch = 32;

std::vector<int64_t> Divisors(int64_t number) {
  std::vector<int64_t> small, large;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    small.push_back(i);
    if (i != number / i) large.push_back(number / i);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

bool Divides(int64_t part, int64_t whole) { return whole % part == 0; }

}  // namespace

LayoutSpace::LayoutSpace(const config::PretrainConfig& resolved, int64_t ranks, int64_t domain,
                         int64_t ranks_of_host, std::vector<double> host_fractions,
                         PlanSchedule schedule, GridRules grids)
    : model_(resolved.model()),
      layers_(TotalLayers(model_)),
      has_encoder_(model_.model_type() == config::ModelType::t5),
      length_(std::max(model_.seq_length(), model_.decoder_seq_length())),
      batch_sizes_(BatchSizeSteps(resolved.train(), resolved.model().seq_length())
                       .value_or(std::vector<BatchSizeStep>())),
      recompute_(resolved.recompute()),
      samples_(resolved.train().global_batch_size()),
      ranks_(ranks),
      domain_(domain),
      ranks_of_host_(ranks_of_host),
      host_fractions_(std::move(host_fractions)),
      schedule_(schedule),
      grids_(std::move(grids)),
      matrices_(MatricesOf(model_.hidden_size(), model_.ffn_hidden_size(),
                           model_.swiglu() || model_.gated_linear_unit(),
                           model_.num_attention_heads(), model_.num_query_groups(),
                           model_.kv_channels())),
      element_bytes_(resolved.precision().bf16() || resolved.precision().fp16() ? 2 : 4) {}

std::vector<PrunedLayouts> LayoutSpace::pruned() const {
  return {{absl::StrCat("tensor parallelism over more than the ", domain_,
                        " ranks that fast links join"),
           across_domains_},
          {"heads, layers, positions or samples that can't be shared out", indivisible_},
          {absl::StrCat("less than ", kLeastPositions, " positions on a context-parallel rank"),
           short_},
          {"layouts with grids of tensor-parallel ranks that receive more than along one dim",
           larger_grids_}};
}

bool LayoutSpace::AllowsTensor(int64_t ranks) const {
  if (!Divides(ranks, model_.num_attention_heads()) || !Divides(ranks, model_.ffn_hidden_size()) ||
      !Divides(ranks, model_.make_vocab_size_divisible_by())) {
    return false;
  }
  const int64_t groups = model_.num_query_groups();
  return Divides(ranks, groups) || Divides(groups, ranks);
}

std::vector<PlanGrid> LayoutSpace::GridsWithin(int64_t ranks) const {
  std::vector<PlanGrid> grids;
  if (!grids_.allows || ranks > domain_) return grids;
  for (const PlanGrid& grid : TensorGridsOf(ranks)) {
    if (grids_.allows(grid)) grids.push_back(grid);
  }
  return grids;
}

bool LayoutSpace::GridSendsMore(const LayoutAxes& axes, const PlanGrid& grid) const {
  if (!AllowsTensor(axes.tensor)) return false;
  const int64_t tokens = axes.micro_batch * length_;
  return BytesReceivedOnGrid(matrices_, grid, tokens, element_bytes_) >
         BytesReceivedIn1d(matrices_, axes.tensor, tokens, element_bytes_);
}

bool LayoutSpace::HasLayers(char letter) const {
  return model_.hybrid_layer_pattern().find(letter) != std::string::npos;
}

// Layers with a state have groups of heads, which tensor- and context-parallel ranks share out.
bool LayoutSpace::AllowsStates(int64_t ranks) const {
  return (!HasLayers('M') || Divides(ranks, model_.mamba_num_groups())) &&
         (!HasLayers('G') || Divides(ranks, model_.linear_num_key_heads()));
}

bool LayoutSpace::CanCutChunks(int64_t context) const {
  const int64_t chunk = recompute_.attention_chunk_tokens();
  const int64_t multiple = kContextStripe * context;
  return chunk == 0 || (model_.num_experts() == 0 && Divides(multiple, chunk) &&
                        Divides(multiple, model_.seq_length()));
}

bool LayoutSpace::IsPossible(const LayoutAxes& axes) {
  const bool is_layered = axes.pipeline <= layers_;
  // Samples of a T5 are filled up to what ranks can share.
  const bool is_cut = axes.context == 1 || has_encoder_ ||
                      (Divides(2 * axes.context, length_) && CanCutChunks(axes.context));
  const bool has_form = AllowsTensor(axes.tensor) || !GridsWithin(axes.tensor).empty();
  if (!has_form || !AllowsStates(axes.tensor * axes.context) || !is_layered || !is_cut ||
      !Divides(axes.data, samples_)) {
    ++indivisible_;
    return false;
  }
  if (axes.tensor > std::max<int64_t>(domain_, 1)) {
    ++across_domains_;
    return false;
  }
  if (axes.context > 1 && length_ / axes.context < kLeastPositions) {
    ++short_;
    return false;
  }
  return true;
}

absl::Status LayoutSpace::VisitAll(LayoutVisit visit) {
  LayoutAxes axes;
  for (int64_t tensor : Divisors(ranks_)) {
    axes.tensor = tensor;
    for (int64_t context : Divisors(ranks_ / tensor)) {
      axes.context = context;
      for (int64_t pipeline : Divisors(ranks_ / tensor / context)) {
        axes.pipeline = pipeline;
        axes.data = ranks_ / tensor / context / pipeline;
        ++divisions_;
        if (!IsPossible(axes)) continue;
        MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitPipelines(axes, visit));
        if (!goes_on) return absl::OkStatus();
      }
    }
  }
  return absl::OkStatus();
}

// The embedding and the loss count as layers where the layers alone can't be shared out so.
absl::StatusOr<bool> LayoutSpace::VisitPipelines(LayoutAxes axes, LayoutVisit visit) {
  std::vector<int64_t> even;
  for (const bool ends_count : {false, true}) {
    axes.ends_count = ends_count;
    const int64_t things = layers_ + (ends_count ? 2 : 0);
    if (!Divides(axes.pipeline, things)) continue;
    for (const int64_t chunks : Divisors(things / axes.pipeline)) {
      if (chunks > 1 && axes.pipeline == 1) break;
      // A part that the embedding fills has no layer.
      if (ends_count && things == axes.pipeline * chunks) break;
      if (ends_count && absl::c_linear_search(even, chunks)) continue;
      if (!ends_count) even.push_back(chunks);
      axes.chunks = chunks;
      MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitSchedules(axes, visit));
      if (!goes_on) return false;
    }
    if (axes.pipeline == 1) return true;
  }
  axes.ends_count = false;
  axes.chunks = 1;
  return has_encoder_ ? VisitEncoderStages(axes, visit) : VisitUnevenPipelines(axes, visit);
}

absl::StatusOr<bool> LayoutSpace::VisitEncoderStages(LayoutAxes axes, LayoutVisit visit) {
  for (const int64_t stages : Divisors(model_.encoder_num_layers())) {
    const int64_t others = axes.pipeline - stages;
    if (others < 1 || !Divides(others, model_.decoder_num_layers())) continue;
    axes.encoder_stages = stages;
    MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitSchedules(axes, visit));
    if (!goes_on) return false;
  }
  return true;
}

// The last stage, which has the head, has fewer layers than the others: the first number that the
// others can have evenly, above their share.
absl::StatusOr<bool> LayoutSpace::VisitUnevenPipelines(LayoutAxes axes, LayoutVisit visit) {
  axes.last_layers = layers_ - (axes.pipeline - 1) * (layers_ / axes.pipeline + 1);
  return axes.last_layers < 1 ? absl::StatusOr<bool>(true) : VisitSchedules(axes, visit);
}

// GPipe has the bubble of 1F1B and holds all micro-batches, and no formula tells what ZB-V takes
// where passes differ much: they are there where they are written.
absl::StatusOr<bool> LayoutSpace::VisitSchedules(LayoutAxes axes, LayoutVisit visit) {
  MEGATRON_ASSIGN_OR_RETURN(bool goes_on, VisitBatches(axes, visit));
  if (!goes_on || axes.pipeline == 1) return goes_on;
  std::vector<PlanSchedule> others;
  const bool puts_off = !recompute_.attention_chunks_on_host();
  if (axes.chunks == 1 && puts_off) others.push_back(PlanSchedule::kZeroBubbleH1);
  for (const PlanSchedule written : {PlanSchedule::kZeroBubbleV, PlanSchedule::kGPipe}) {
    const bool is_v = written == PlanSchedule::kZeroBubbleV;
    // A V of attention in chunks takes more memory than estimated.
    const bool is_possible = !is_v || (puts_off && recompute_.attention_chunk_tokens() == 0);
    if (schedule_ == written && axes.chunks == (is_v ? 2 : 1) && is_possible)
      others.push_back(written);
  }
  for (const PlanSchedule schedule : others) {
    axes.schedule = schedule;
    MEGATRON_ASSIGN_OR_RETURN(goes_on, VisitBatches(axes, visit));
    if (!goes_on) return false;
  }
  return true;
}

absl::StatusOr<bool> LayoutSpace::VisitBatches(LayoutAxes axes, LayoutVisit visit) {
  for (int64_t size = 1; size <= kMostMicroBatch; size *= 2) {
    const int64_t passed = size * axes.data;
    if (!Divides(passed, samples_)) break;
    const auto divides = [passed](const BatchSizeStep& step) { return Divides(passed, step.size); };
    if (!absl::c_all_of(batch_sizes_, divides)) break;
    // Interleaved micro-batches go in groups of as many as there are stages.
    const bool is_interleaved =
        axes.chunks > 1 && axes.schedule == PlanSchedule::kOneForwardOneBackward;
    if (is_interleaved && !Divides(axes.pipeline, samples_ / passed)) break;
    axes.micro_batch = size;
    MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitRows(axes, visit));
    if (!goes_on) return false;
  }
  return true;
}

absl::StatusOr<bool> LayoutSpace::VisitRows(LayoutAxes axes, LayoutVisit visit) {
  MEGATRON_ASSIGN_OR_RETURN(bool goes_on, VisitGrids(axes, visit));
  if (!goes_on || !AllowsTensor(axes.tensor)) return goes_on;
  MEGATRON_ASSIGN_OR_RETURN(goes_on, VisitContexts(axes, visit));
  const bool can_cut_rows = axes.tensor > 1 &&
                            (has_encoder_ || Divides(axes.tensor, length_ / axes.context)) &&
                            recompute_.attention_chunk_tokens() == 0;
  if (!goes_on || !can_cut_rows) return goes_on;
  axes.is_sequence_parallel = true;
  return VisitContexts(axes, visit);
}

// Rows of a grid have whole samples of a micro-batch.
absl::StatusOr<bool> LayoutSpace::VisitGrids(LayoutAxes axes, LayoutVisit visit) {
  if (axes.tensor == 1 || axes.context > 1) return true;
  for (const PlanGrid& grid : GridsWithin(axes.tensor)) {
    if (!Divides(grid.samples(), axes.micro_batch)) continue;
    if (!grids_.keeps_larger && GridSendsMore(axes, grid)) {
      ++larger_grids_;
      continue;
    }
    axes.grid = grid;
    MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitOrders(axes, visit));
    if (!goes_on) return false;
  }
  return true;
}

bool LayoutSpace::CanExchangeHeads(const LayoutAxes& axes, int64_t ranks) const {
  return Divides(ranks * axes.tensor, model_.num_query_groups());
}

// Teams lie within the domain of fast links, and rings go from one to the next.
absl::StatusOr<bool> LayoutSpace::VisitContexts(LayoutAxes axes, LayoutVisit visit) {
  if (axes.context == 1) return VisitExperts(axes, visit);
  for (const PlanContext form :
       {PlanContext::kRing, PlanContext::kAllToAll, PlanContext::kGather}) {
    if (form == PlanContext::kAllToAll && !CanExchangeHeads(axes, axes.context)) continue;
    if (form != PlanContext::kAllToAll && recompute_.attention_chunk_tokens() > 0) continue;
    axes.context_form = form;
    MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitExperts(axes, visit));
    if (!goes_on) return false;
  }
  // Recurrences have no teams.
  if (recompute_.attention_chunk_tokens() > 0 || HasLayers('M') || HasLayers('G')) return true;
  axes.context_form = PlanContext::kTeams;
  for (const int64_t team : Divisors(axes.context)) {
    const bool is_team = team > 1 && team < axes.context && team * axes.tensor <= domain_;
    if (!is_team || !CanExchangeHeads(axes, team)) continue;
    axes.context_team = team;
    MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitExperts(axes, visit));
    if (!goes_on) return false;
  }
  return true;
}

absl::StatusOr<bool> LayoutSpace::VisitExperts(LayoutAxes axes, LayoutVisit visit) {
  if (model_.num_experts() == 0) return VisitOrders(axes, visit);
  const int64_t stage_ranks = axes.tensor * axes.context * axes.data;
  for (int64_t cut : Divisors(axes.tensor)) {
    if (cut != 1 && cut != axes.tensor) continue;
    if (!Divides(cut, model_.moe_ffn_hidden_size())) continue;
    axes.expert_tensor = cut;
    for (int64_t experts : Divisors(model_.num_experts())) {
      if (!Divides(experts * cut, stage_ranks)) continue;
      axes.expert = experts;
      MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitOrders(axes, visit));
      if (!goes_on) return false;
    }
  }
  return true;
}

// Where fast links join all ranks, or none of several stages, orders are alike.
absl::StatusOr<bool> LayoutSpace::VisitOrders(LayoutAxes axes, LayoutVisit visit) {
  MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitKept(axes, visit));
  const int64_t stride = axes.tensor * axes.context;
  const bool agrees = model_.num_experts() == 0 || axes.expert * axes.expert_tensor == stride;
  if (!goes_on || axes.pipeline == 1 || axes.data == 1 || domain_ >= ranks_ || stride >= domain_ ||
      !agrees) {
    return goes_on;
  }
  axes.data_is_outermost = true;
  return VisitKept(axes, visit);
}

absl::StatusOr<bool> LayoutSpace::VisitKept(LayoutAxes axes, LayoutVisit visit) {
  const bool shares = axes.data * axes.context > 1;
  for (const PlanRecompute recompute :
       {PlanRecompute::kNone, PlanRecompute::kSelective, PlanRecompute::kFull}) {
    axes.recompute = recompute;
    for (const SharedOut shared :
         {SharedOut::kNothing, SharedOut::kOptimizer, SharedOut::kGradients, SharedOut::kWeights}) {
      if (shared != SharedOut::kNothing && !shares) break;
      axes.shared_out = shared;
      MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitInstances(axes, visit));
      if (!goes_on) return false;
    }
  }
  return true;
}

int64_t LayoutSpace::HostsOf(const LayoutAxes& axes) const {
  const int64_t copies = axes.data * axes.context;
  int64_t ranks = 1;  // those of a run
  for (const int64_t divisor : Divisors(copies)) {
    if (divisor * axes.tensor <= ranks_of_host_) ranks = divisor;
  }
  const int64_t expert_copies = copies * axes.tensor / (axes.expert * axes.expert_tensor);
  const int64_t instances = copies / ranks;
  return ranks > 1 && Divides(instances, expert_copies) ? instances : 1;
}

absl::StatusOr<bool> LayoutSpace::VisitInstances(LayoutAxes axes, LayoutVisit visit) {
  MEGATRON_ASSIGN_OR_RETURN(bool goes_on, VisitHosts(axes, visit));
  const bool is_one = axes.shared_out == SharedOut::kNothing || axes.data_is_outermost;
  axes.instances = is_one ? 1 : HostsOf(axes);
  if (!goes_on || axes.instances == 1) return goes_on;
  for (const bool shares : {false, true}) {
    axes.instances_share_states = shares;
    MEGATRON_ASSIGN_OR_RETURN(goes_on, VisitHosts(axes, visit));
    if (!goes_on) return false;
  }
  return true;
}

absl::StatusOr<bool> LayoutSpace::VisitHosts(LayoutAxes axes, LayoutVisit visit) {
  for (const double fraction : host_fractions_) {
    axes.host_fraction = fraction;
    MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, visit(axes));
    if (!goes_on) return false;
  }
  // Weights lie there too where a rank has its own shards, or is alone with all of them.
  const bool may_have_weights =
      axes.shared_out == SharedOut::kWeights || axes.data * axes.context == 1;
  if (axes.host_fraction < 1 || !may_have_weights || axes.instances_share_states ||
      axes.grid.is_grid()) {
    return true;
  }
  axes.weights_on_host = true;
  return visit(axes);
}

}  // namespace megatron
