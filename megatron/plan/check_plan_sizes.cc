#include "megatron/plan/check_plan_sizes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/tensor_cuts.h"

namespace megatron {
namespace {

// A size that is cut, as models and layouts have it.
struct PlanSize {
  double value = 0;  // 0: they have none
  const char* name = "";
};

PlanSize SizeOf(CutSize size, const PlanModel& model, const PlanLayout& layout) {
  switch (size) {
    case CutSize::kHidden:
      return {model.hidden(), "hidden channels"};
    case CutSize::kFfn: {
      // Mixtures alone have none.
      const bool has_mlp = model.experts() == 0 || model.dense_layers() > 0;
      return {has_mlp ? model.ffn() : 0, "channels of an MLP"};
    }
    case CutSize::kHeads:
      return {model.heads(), "heads"};
    case CutSize::kQueryGroups:
      return {model.kv_heads(), "groups of queries"};
    case CutSize::kHeadChannels:
      return {model.heads() * model.head_dim(), "channels of all heads"};
    case CutSize::kVocabularyMultiple:
      break;  // The vocabulary is padded as it is needed.
    case CutSize::kSamples:
      return {double(layout.micro_batch), "samples of a micro-batch"};
  }
  return {};
}

absl::Status CheckCuts(const PlanModel& model, const PlanLayout& layout) {
  absl::Status status;
  if (layout.tp == 1) return status;
  ForEachTensorCut(layout.tp, layout.grid, [&](const TensorCut& cut) {
    const PlanSize size = SizeOf(cut.size, model, layout);
    if (!status.ok() || size.value == 0 || cut.IsEven(size.value)) return;
    status = absl::InvalidArgumentError(absl::StrFormat("%.12g %s can't be shared out over %d %s",
                                                        size.value, size.name, cut.parts, cut.of));
  });
  return status;
}

absl::Status CheckHybridLayers(const PlanModel& model, const PlanLayout& layout) {
  if (model.hybrid_layers().empty()) return absl::OkStatus();
  if (!AreLettersOfLayers(model.hybrid_layers()) ||
      int64_t(model.hybrid_layers().size()) != model.layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", model.hybrid_layers(), "' has no letter M, G, *, - or E for each of the ",
                     model.layers(), " layers"));
  }
  if (model.encoder_layers() > 0 || layout.grid.is_grid() ||
      layout.precision == PlanPrecision::kFp8 || layout.precision == PlanPrecision::kFp4) {
    return absl::InvalidArgumentError(
        "layers of one branch have no encoder, no grid of tensor-parallel ranks and no products of "
        "8 or 4 bits");
  }
  if (layout.muon_steps > 0 || layout.is_lamb ||
      layout.compression.form == PlanCompression::kLowRank) {
    return absl::InvalidArgumentError(
        "layers of one branch aren't predicted with Muon, LAMB or gradients of low rank");
  }
  const BranchCounts counts = CountBranches(model.hybrid_layers());
  if ((counts[kExpertsBranch] > 0) != (model.experts() > 0))
    return absl::InvalidArgumentError("experts need a layer E, and layers E experts");
  const auto check = [&](PlanBranch branch, double groups, double heads, double width,
                         double state) {
    if (counts[branch] == 0) return true;
    const double ranks = double(layout.tp * layout.cp);
    return groups >= 1 && width >= 1 && state >= 1 && std::fmod(heads, groups) == 0 &&
           std::fmod(groups, ranks) == 0 &&
           (layout.cp == 1 || layout.context != PlanContext::kTeams);
  };
  if (!check(kMambaBranch, model.mamba_groups(), model.mamba_heads(), model.mamba_head_dim(),
             model.mamba_state()) ||
      !check(kDeltaBranch, model.delta_key_heads(), model.delta_value_heads(),
             model.delta_value_dim(), model.delta_key_dim())) {
    return absl::InvalidArgumentError(
        "layers M and G need groups of heads that the tensor- times context-parallel ranks, which "
        "form no teams, can share out");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlanSizes(const Hardware& gpu, const PlanModel& model, const PlanLayout& layout) {
  for (int64_t size :
       {layout.tp, layout.cp, layout.cp_team, layout.pp, layout.vpp, layout.ep, layout.etp,
        layout.dp, layout.instances, layout.micro_batch, layout.micro_batches, layout.sequence}) {
    if (size < 1 || size > int64_t{1} << 30) {
      return absl::InvalidArgumentError(absl::StrCat("a size of ", size, " can't be"));
    }
  }
  if (model.layers() < 1 || model.hidden() < 1 || model.heads() < 1 || model.kv_heads() < 1 ||
      model.head_dim() < 1 || model.vocab() < 1 || (model.ffn() < 1 && model.experts() < 1)) {
    return absl::InvalidArgumentError(
        "the model needs layers, hidden, ffn, heads, head_dim and vocab");
  }
  if (layout.pp * layout.vpp > model.layers() + 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.layers(), " layers can't make ", layout.pp * layout.vpp, " stages"));
  }
  MEGATRON_RETURN_IF_ERROR(CheckHybridLayers(model, layout));
  const PlanGrid& grid = layout.grid;
  if (grid.is_grid() && grid.ranks() != layout.tp) {
    return absl::InvalidArgumentError(absl::StrCat("a grid of ", grid.ranks(), " ranks can't be ",
                                                   layout.tp, " tensor-parallel ones"));
  }
  MEGATRON_RETURN_IF_ERROR(CheckCuts(model, layout));
  if (grid.is_grid() &&
      (model.experts() > 0 || model.encoder_layers() > 0 || layout.cp > 1 ||
       layout.precision == PlanPrecision::kFp8 || layout.precision == PlanPrecision::kFp4)) {
    return absl::InvalidArgumentError(
        "grids of tensor-parallel ranks have no experts, encoders, context parallelism or "
        "products of 8 or 4 bits");
  }
  if (layout.schedule == PlanSchedule::kZeroBubbleH1 && layout.vpp > 1)
    return absl::InvalidArgumentError("ZB-H1 has one chunk on each stage");
  if (layout.schedule == PlanSchedule::kGPipe && layout.vpp > 1)
    return absl::InvalidArgumentError("GPipe has one chunk on each stage");
  if (layout.schedule == PlanSchedule::kZeroBubbleV && (layout.vpp != 2 || layout.pp == 1))
    return absl::InvalidArgumentError("ZB-V has two chunks on each of several stages");
  const int64_t at_ends =
      std::max<int64_t>(0, layout.first_layers) + std::max<int64_t>(0, layout.last_layers);
  if (at_ends > model.layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.layers(), " layers can't be ", at_ends, " at the ends of a pipeline"));
  }
  if (layout.cp % layout.cp_team != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cp ", layout.cp, " can't be cut into teams of ", layout.cp_team));
  }
  const int64_t stage_ranks = layout.dp * layout.cp * layout.tp,
                expert_ranks = layout.ep * layout.etp;
  if (model.experts() > 0 && stage_ranks % expert_ranks != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("ep ", layout.ep, " times etp ", layout.etp, " must divide the ", stage_ranks,
                     " ranks of dp times cp times tp, which share out the experts"));
  }
  const int64_t expert_copies = stage_ranks / expert_ranks;
  if (layout.dp * layout.cp % layout.instances != 0 ||
      (model.experts() > 0 && expert_copies % layout.instances != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks with the same weights can't be ", layout.instances, " instances"));
  }
  if (layout.data_is_outermost && model.experts() > 0 &&
      layout.ep * layout.etp != layout.tp * layout.cp) {
    return absl::InvalidArgumentError(
        "with data-parallel ranks outermost, experts lie on the tensor- and context-parallel "
        "ranks");
  }
  if (layout.data_is_outermost && layout.cp > 1 &&
      (layout.instances > 1 || layout.hosts > 1 || layout.ranks_per_host > 0)) {
    return absl::InvalidArgumentError(
        "with data-parallel ranks outermost, those with the same weights lie in blocks, of which "
        "no instances, hosts or levels can be predicted");
  }
  if (layout.ep > 1 && model.experts() < layout.ep) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.experts(), " experts can't lie on ep ", layout.ep));
  }
  if (!(layout.host_fraction >= 0 && layout.host_fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(layout.host_fraction, " is no part of the optimizer's states"));
  }
  if (layout.weights_on_host && layout.host_fraction != 1) {
    return absl::InvalidArgumentError(
        "weights in host memory are updated there, with all of the optimizer's states");
  }
  if (layout.host_fraction > 0 &&
      (gpu.host_link_gb_per_s() == 0 || gpu.host_memory_gb_per_s() == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("states in host memory can't be predicted, since hardware '", gpu.name(),
                     "' has no host_link_gb_per_s or no host_memory_gb_per_s"));
  }
  if (layout.attention_chunks_on_host && gpu.host_link_gb_per_s() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention in host memory can't be predicted, since hardware '", gpu.name(),
                     "' has no host_link_gb_per_s"));
  }
  if (layout.activations_on_host && gpu.host_link_gb_per_s() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations in host memory can't be predicted, since hardware '", gpu.name(),
                     "' has no host_link_gb_per_s"));
  }
  if (layout.precision == PlanPrecision::k32Bits && gpu.fp32_tflops() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(gpu.name(), " has no known fp32 rate"));
  }
  if (layout.precision == PlanPrecision::kFp8 && gpu.fp8_tflops() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(gpu.name(), " has no FP8 products"));
  }
  if (layout.precision == PlanPrecision::kFp4 && gpu.fp4_tflops() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(gpu.name(), " has no FP4 products"));
  }
  return absl::OkStatus();
}

}  // namespace megatron
