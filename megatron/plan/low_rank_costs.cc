#include "megatron/plan/low_rank_costs.h"

#include <algorithm>

namespace megatron {
namespace {

// The elements of a matrix less those of its two factors, where these are few enough.
double Savings(const PlanCompression& form, double rows, double columns) {
  if (form.form != PlanCompression::kLowRank) return 0;
  const double factors = (rows + columns) * std::min({form.rank, rows, columns});
  const double all = rows * columns;
  return factors * form.least_gain >= all ? 0 : all - factors;
}

}  // namespace

LowRankSavings LowRankSavingsOfLayer(const PlanModel& model, const PlanLayout& layout,
                                     bool is_mixture) {
  const double t = double(layout.tp), hidden = model.hidden();
  const double query = model.heads() * model.head_dim() / t;
  const double key = model.kv_heads() * model.head_dim() / t;
  const double first = model.is_gated() ? 2 : 1;  // number of an MLP's first matrices
  const auto savings = [&](double width) { return Savings(layout.compression, width, hidden); };
  LowRankSavings layer;
  layer.dense = savings(query + 2 * key) + savings(query) +
                (first + 1) * savings((is_mixture ? model.shared_ffn() : model.ffn()) / t);
  if (!is_mixture) return layer;
  layer.dense += savings(model.experts());
  layer.experts = model.experts() / double(layout.ep) * (first + 1) *
                  savings(model.expert_ffn() / double(layout.etp));
  return layer;
}

double LowRankSavingsOfWordTable(const PlanModel& model, const PlanLayout& layout) {
  return Savings(layout.compression, model.vocab() / double(layout.tp), model.hidden());
}

}  // namespace megatron
