#include "megatron/layers/moe/grouped_products.h"

#include <algorithm>

#include "megatron/ops/elementwise.h"
#include "megatron/ops/float8/float8_tensor.h"

namespace megatron {
namespace {

// The rows of one expert, as its products take them: one behind the other, and as many as GPUs
// need, at least some, with rows of zeros behind them. Zeros change no largest magnitude and no
// sum, so an expert without rows is no special case.
//
// Where the rows lie like that, they are used in place. Memory for a copy is taken all the same, so
// that the plan, for which one expert has all rows, has room for any other.
class ExpertRows {
 public:
  ExpertRows(absl::Span<const ops::RowGroup> groups, int64_t expert) {
    for (const ops::RowGroup& group : groups) {
      if (group.expert == expert && group.end > group.begin) groups_.push_back(group);
    }
    for (const ops::RowGroup& group : groups_) rows_ += group.end - group.begin;
    padded_ = std::max(ops::Float8Padded(rows_), ops::kFloat8Alignment);
  }

  // Returns the rows of x that are the expert's.
  Tensor Input(const LayerContext& ctx, const Tensor& x_RC) const {
    const Tensor together = Output(ctx, x_RC);
    if (in_place()) return together;
    ForEachPart(x_RC, together, [&](const Tensor& part, const Tensor& place) {
      ops::Copy(ctx.stream, part, place);
    });
    ops::Zero(ctx.stream, together.Slice(0, rows_, padded_));
    return together;
  }
  // Returns where the expert's rows of y are to be written; then Finish brings them there.
  Tensor Output(const LayerContext& ctx, const Tensor& y_RC) const {
    const Tensor together =
        ctx.scratch->Allocate(y_RC.dtype(), {padded_, y_RC.dim(1)}, "rows of an expert");
    return in_place() ? y_RC.Slice(0, groups_[0].begin, groups_[0].end) : together;
  }
  void Finish(const LayerContext& ctx, const Tensor& together, const Tensor& y_RC) const {
    if (in_place()) return;
    ForEachPart(y_RC, together, [&](const Tensor& part, const Tensor& place) {
      ops::Copy(ctx.stream, place, part);
    });
  }

 private:
  bool in_place() const { return groups_.size() == 1 && rows_ == padded_; }
  template <typename Body>
  void ForEachPart(const Tensor& x_RC, const Tensor& together, const Body& body) const {
    int64_t at = 0;
    for (const ops::RowGroup& group : groups_) {
      const int64_t size = group.end - group.begin;
      body(x_RC.Slice(0, group.begin, group.end), together.Slice(0, at, at + size));
      at += size;
    }
  }

  std::vector<ops::RowGroup> groups_;
  int64_t rows_ = 0, padded_ = 0;
};

}  // namespace

GroupedProducts::GroupedProducts(const Float8Options& options, LinearProducts::Cut cut,
                                 const std::string& name, int64_t num_experts,
                                 const ExpertGroups& groups, bool keep_codes)
    : tensor_group_(groups.tensor) {
  if (!options.enabled) return;
  const int64_t local = num_experts / groups.expert.size();
  int64_t index = local * groups.expert.rank();
  if (options.history != nullptr) index += options.history->Add(name, num_experts);
  if (options.weights != nullptr) options.weights->push_back(name);
  for (int64_t expert = 0; expert < local; ++expert)
    of_expert_.emplace_back(options, cut, index + expert, keep_codes);
}

bool GroupedProducts::keeps_codes(const LayerContext& ctx) const {
  return !of_expert_.empty() && of_expert_.front().keeps_codes(ContextOfExperts(ctx));
}

// An expert's rows are whole on each rank that has them: no other rank has parts of a micro-batch
// of them, but those that share the expert have parts of its features.
LayerContext GroupedProducts::ContextOfExperts(const LayerContext& ctx) const {
  LayerContext of_experts = ctx;
  of_experts.tensor_group = tensor_group_;
  of_experts.context_group = ProcessGroup();
  of_experts.sequence_parallel = false;
  return of_experts;
}

template <typename Products>
void GroupedProducts::ForEachExpert(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                                    const ExpertRange& experts, const Products& products) const {
  const LayerContext of_experts = ContextOfExperts(ctx);
  const int64_t end = std::min(experts.end, static_cast<int64_t>(of_expert_.size()));
  for (int64_t expert = experts.begin; expert < end; ++expert) {
    Arena::Scope scope(ctx.scratch);
    products(of_experts, ExpertRows(groups, expert), static_cast<size_t>(expert));
  }
}

void GroupedProducts::Forward(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                              const Tensor& x_RI, const Tensor& w_EOI, const Tensor& y_RO,
                              Saved* saved, const ExpertRange& experts) const {
  if (of_expert_.empty()) return ops::GroupedLinearForward(ctx.stream, groups, x_RI, w_EOI, y_RO);
  saved->experts.resize(of_expert_.size());
  ForEachExpert(ctx, groups, experts,
                [&](const LayerContext& own, const ExpertRows& rows, size_t expert) {
                  const Tensor x = rows.Input(own, x_RI), y = rows.Output(own, y_RO);
                  of_expert_[expert].Forward(own, x, w_EOI.Select(0, expert), Tensor(), y,
                                             &saved->experts[expert]);
                  rows.Finish(own, y, y_RO);
                });
}

void GroupedProducts::Reserve(const LayerContext& ctx, const Tensor& dy_RO, Saved* saved) const {
  for (size_t expert = 0; expert < of_expert_.size(); ++expert)
    of_expert_[expert].Reserve(ctx, dy_RO, &saved->experts[expert]);
}

void GroupedProducts::BackwardInput(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                                    const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI,
                                    Saved* saved, const ExpertRange& experts) const {
  if (of_expert_.empty())
    return ops::GroupedLinearBackwardInput(ctx.stream, groups, dy_RO, w_EOI, dx_RI);
  ForEachExpert(ctx, groups, experts,
                [&](const LayerContext& own, const ExpertRows& rows, size_t expert) {
                  const Tensor dy = rows.Input(own, dy_RO), dx = rows.Output(own, dx_RI);
                  of_expert_[expert].BackwardInput(own, dy, w_EOI.Select(0, expert), dx,
                                                   &saved->experts[expert]);
                  rows.Finish(own, dx, dx_RI);
                });
}

void GroupedProducts::BackwardWeight(const LayerContext& ctx,
                                     absl::Span<const ops::RowGroup> groups, const Tensor& dy_RO,
                                     const Tensor& x_RI, const Tensor& dw_EOI,
                                     const Saved& saved) const {
  if (of_expert_.empty())
    return ops::GroupedLinearBackwardWeight(ctx.stream, groups, dy_RO, x_RI, dw_EOI);
  ForEachExpert(ctx, groups, ExpertRange(),
                [&](const LayerContext& own, const ExpertRows& rows, size_t expert) {
                  const LinearProducts::Saved& of_forward = saved.experts[expert];
                  const bool has_codes = !of_forward.x_IT.codes.empty();
                  const Tensor dy = rows.Input(own, dy_RO),
                               x = has_codes ? Tensor() : rows.Input(own, x_RI);
                  of_expert_[expert].BackwardWeight(own, dy, x, dw_EOI.Select(0, expert), Tensor(),
                                                    of_forward);
                });
}

}  // namespace megatron
