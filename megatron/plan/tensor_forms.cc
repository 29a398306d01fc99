#include "megatron/plan/tensor_forms.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

// No micro-batch has more tokens.
constexpr int64_t kMostTokens = int64_t{1} << 30;

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

  TensorForm Form(const PlanGrid& grid) const {
    TensorForm form;
    form.grid = grid;
    form.is_sequence_parallel = SharesRows(grid);
    if (grid.is_grid()) {
      form.samples = grid.samples();
      // A grid that can cut the model can do so with other micro-batches than the layout's.
      const absl::StatusOr<StepPrediction> step = Predict(grid, form.samples);
      if (!step.ok()) return Refused(step.status(), form);
      form.less_from =
          TokensFromWhichGridIsLess(layer_, grid, element_bytes_, SharesRows(PlanGrid()));
      form.faster_from = FasterFrom(grid, form.samples);
    }
    const absl::StatusOr<StepPrediction> step = Predict(grid, layout_.micro_batch);
    if (!step.ok()) return Refused(step.status(), form);
    form.seconds = step->seconds.total;
    form.memory_bytes = step->memory_bytes;
    const int64_t tokens = layout_.micro_batch * layout_.sequence;
    form.received = grid.is_grid() ? BytesReceivedOnGrid(layer_, grid, tokens, element_bytes_)
                                   : BytesReceivedIn1d(layer_, layout_.tp, tokens, element_bytes_,
                                                       form.is_sequence_parallel);
    return form;
  }

 private:
  static TensorForm Refused(const absl::Status& status, TensorForm form) {
    form.refusal = std::string(status.message());
    return form;
  }

  bool SharesRows(const PlanGrid& grid) const {
    if (grid.is_grid()) return false;
    return layout_.grid.is_grid() ? AssumesSequenceParallel(program_, layout_.tp)
                                  : layout_.is_sequence_parallel;
  }

  absl::StatusOr<StepPrediction> Predict(const PlanGrid& grid, int64_t micro_batch) const {
    PlanLayout layout = layout_;
    layout.grid = grid;
    layout.micro_batch = micro_batch;
    layout.is_sequence_parallel = SharesRows(grid);
    return PredictStep(gpu_, program_, kernels_, model_, layout);
  }

  bool IsFaster(const PlanGrid& grid, int64_t micro_batch) const {
    const absl::StatusOr<StepPrediction> on_grid = Predict(grid, micro_batch),
                                         in_1d = Predict(PlanGrid(), micro_batch);
    return on_grid.ok() && in_1d.ok() && on_grid->seconds.total < in_1d->seconds.total;
  }

  // What a grid gains grows with the tokens: the place is between two powers of two.
  std::optional<int64_t> FasterFrom(const PlanGrid& grid, int64_t samples) const {
    const int64_t unit = samples * layout_.sequence;  // tokens
    int64_t slower = 0, faster = 1;
    for (; !IsFaster(grid, faster * samples); faster *= 2) {
      if (faster > kMostTokens / unit / 2) return std::nullopt;
      slower = faster;
    }
    while (faster - slower > 1) {
      const int64_t middle = (slower + faster) / 2;
      (IsFaster(grid, middle * samples) ? faster : slower) = middle;
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

const char* TensorForm::mode() const {
  if (!grid.is_grid()) return "1d";
  if (grid.is_cube) return "3d";
  return grid.depth == 1 ? "2d" : "2.5d";
}

std::string TensorForm::name() const {
  const bool has_levels = grid.depth > 1 && !grid.is_cube;
  return has_levels ? absl::StrCat(mode(), " of depth ", grid.depth) : mode();
}

std::vector<TensorForm> CompareTensorForms(const Hardware& gpu, const Implementation& program,
                                           const MeasuredKernels& kernels, const PlanModel& model,
                                           const PlanLayout& layout) {
  const Comparison comparison(gpu, program, kernels, model, layout);
  std::vector<TensorForm> forms;
  forms.push_back(comparison.Form(PlanGrid()));
  for (const PlanGrid& grid : TensorGridsOf(layout.tp)) forms.push_back(comparison.Form(grid));
  return forms;
}

}  // namespace megatron
