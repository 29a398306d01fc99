#include "megatron/plan/tensor_forms.h"

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// No micro-batch has more tokens.
constexpr int64_t kMostTokens = int64_t{1} << 30;

bool Divides(int64_t part, double whole) { return int64_t(whole) % part == 0; }

// Returns whether the trainer can cut the model's matrices over the grid.
bool Allows(const PlanModel& model, const PlanGrid& grid) {
  const int64_t columns = grid.is_cube ? grid.side * grid.side : grid.side;
  return Divides(grid.side, model.heads()) && Divides(grid.side, model.kv_heads()) &&
         Divides(columns, model.hidden()) && Divides(columns, model.ffn()) &&
         Divides(columns, model.heads() * model.head_dim());
}

// Returns 1D, and the grids of so many ranks: squares by depth, then a cube.
std::vector<PlanGrid> GridsOf(int64_t ranks) {
  std::vector<PlanGrid> grids = {PlanGrid()};
  for (int64_t depth = 1; depth * 4 <= ranks; ++depth) {
    for (int64_t side = 2; side * side * depth <= ranks; ++side) {
      if (side * side * depth == ranks) grids.push_back({side, depth, /*is_cube=*/false});
    }
  }
  for (int64_t side = 2; side * side * side <= ranks; ++side) {
    if (side * side * side == ranks) grids.push_back({side, side, /*is_cube=*/true});
  }
  return grids;
}

class Comparison {
 public:
  Comparison(const Hardware& gpu, const Implementation& program, const MeasuredKernels& kernels,
             const PlanModel& model, const PlanLayout& layout)
      : gpu_(gpu),
        program_(program),
        kernels_(kernels),
        model_(model),
        layout_(layout),
        layer_(MatricesOf(int64_t(model.hidden()), int64_t(model.ffn()), model.is_gated(),
                          int64_t(model.heads()), int64_t(model.kv_heads()),
                          int64_t(model.head_dim()))),
        element_bytes_(layout.precision == PlanPrecision::k32Bits ? 4 : 2) {}

  absl::StatusOr<TensorForm> Form(const PlanGrid& grid) const {
    TensorForm form;
    form.grid = grid;
    const int64_t tokens = layout_.micro_batch * layout_.sequence;
    MEGATRON_ASSIGN_OR_RETURN(const StepPrediction step, Predict(grid, layout_.micro_batch));
    form.seconds = step.seconds.total;
    form.memory_bytes = step.memory_bytes;
    if (!grid.is_grid()) {
      form.received = BytesReceivedIn1d(layer_, layout_.tp, tokens, element_bytes_);
      return form;
    }
    form.samples = grid.side * (grid.is_cube ? grid.side : grid.depth);
    form.received = BytesReceivedOnGrid(layer_, grid, tokens, element_bytes_);
    form.less_from = TokensFromWhichGridIsLess(layer_, grid, element_bytes_);
    MEGATRON_ASSIGN_OR_RETURN(form.faster_from, FasterFrom(grid, form.samples));
    return form;
  }

 private:
  absl::StatusOr<StepPrediction> Predict(const PlanGrid& grid, int64_t micro_batch) const {
    PlanLayout layout = layout_;
    layout.grid = grid;
    layout.micro_batch = micro_batch;
    // The ranks of a grid share out rows themselves.
    layout.is_sequence_parallel = layout_.is_sequence_parallel && !grid.is_grid();
    return PredictStep(gpu_, program_, kernels_, model_, layout);
  }

  absl::StatusOr<bool> IsFaster(const PlanGrid& grid, int64_t micro_batch) const {
    MEGATRON_ASSIGN_OR_RETURN(const StepPrediction on_grid, Predict(grid, micro_batch));
    MEGATRON_ASSIGN_OR_RETURN(const StepPrediction in_1d, Predict(PlanGrid(), micro_batch));
    return on_grid.seconds.total < in_1d.seconds.total;
  }

  // What a grid gains grows with the tokens: the place is between two powers of two.
  absl::StatusOr<std::optional<int64_t>> FasterFrom(const PlanGrid& grid, int64_t samples) const {
    const int64_t unit = samples * layout_.sequence;  // tokens
    int64_t slower = 0, faster = 1;
    for (;; faster *= 2) {
      if (faster > kMostTokens / unit) return std::nullopt;
      MEGATRON_ASSIGN_OR_RETURN(const bool is_faster, IsFaster(grid, faster * samples));
      if (is_faster) break;
      slower = faster;
    }
    while (faster - slower > 1) {
      const int64_t middle = (slower + faster) / 2;
      MEGATRON_ASSIGN_OR_RETURN(const bool is_faster, IsFaster(grid, middle * samples));
      (is_faster ? faster : slower) = middle;
    }
    return faster * unit;
  }

  const Hardware& gpu_;
  const Implementation& program_;
  const MeasuredKernels& kernels_;
  const PlanModel& model_;
  const PlanLayout& layout_;
  const LayerMatrices layer_;
  const int element_bytes_;
};

}  // namespace

std::string TensorForm::name() const {
  if (!grid.is_grid()) return "1d";
  if (grid.is_cube) return "3d";
  return grid.depth == 1 ? "2d" : absl::StrCat("2.5d of depth ", grid.depth);
}

absl::StatusOr<std::vector<TensorForm>> CompareTensorForms(const Hardware& gpu,
                                                           const Implementation& program,
                                                           const MeasuredKernels& kernels,
                                                           const PlanModel& model,
                                                           const PlanLayout& layout) {
  const Comparison comparison(gpu, program, kernels, model, layout);
  const bool has_grids = model.experts() == 0 && layout.cp == 1 &&
                         layout.precision != PlanPrecision::kFp8 &&
                         layout.precision != PlanPrecision::kFp4;
  std::vector<TensorForm> forms;
  for (const PlanGrid& grid : GridsOf(layout.tp)) {
    if (grid.is_grid() && !(has_grids && Allows(model, grid))) continue;
    MEGATRON_ASSIGN_OR_RETURN(TensorForm form, comparison.Form(grid));
    forms.push_back(form);
  }
  return forms;
}

}  // namespace megatron
