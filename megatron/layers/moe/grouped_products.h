// The products of one linear layer of all experts that this rank holds: in the dtype of the weights
// (ops/moe/grouped_linear.h), or in 8-bit floats (layers/linear_products.h), where each expert has
// scales of its own.
//
// The scales of `tensorwise` are made of the rows that this rank has of an expert at that moment,
// so they depend on how many ranks and micro-batches the rows are spread over; those of `delayed`
// are the same on all layouts.
//
// Legend: R rows in groups by expert, E experts of this rank, I input features, O output features.
#ifndef MEGATRON_LAYERS_MOE_GROUPED_PRODUCTS_H_
#define MEGATRON_LAYERS_MOE_GROUPED_PRODUCTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/float8_options.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/linear_products.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/expert_part.h"
#include "megatron/ops/moe/grouped_linear.h"

namespace megatron {

class GroupedProducts {
 public:
  struct Saved {
    std::vector<LinearProducts::Saved> experts;  // none where products are in the weights' dtype
  };

  // `num_experts` are those of all ranks; `name` is that of the weight. With `keep_codes`, forward
  // keeps the codes of x for BackwardWeight, where it needs no more of x than those. Memory that is
  // planned with all rows in one group has room for the codes of as many rows in any groups.
  GroupedProducts(const Float8Options& options, LinearProducts::Cut cut, const std::string& name,
                  int64_t num_experts, const ExpertGroups& groups, bool keep_codes = false);

  // Returns whether x need not outlive Forward; BackwardWeight then does not read it.
  bool keeps_codes(const LayerContext& ctx) const;

  // The products of ops/moe/grouped_linear.h. What `saved` gets lies in ctx.saved. Forward and
  // BackwardInput may be called for one range of experts after the other, each with their rows
  // alone; BackwardWeight takes the rows of all experts.
  void Forward(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups, const Tensor& x_RI,
               const Tensor& w_EOI, const Tensor& y_RO, Saved* saved,
               const ExpertRange& experts = {}) const;
  // Takes room in ctx.kept() for what BackwardInput leaves to BackwardWeight. It is called before
  // BackwardInput, outside of any scope that ends before BackwardWeight.
  void Reserve(const LayerContext& ctx, const Tensor& dy_RO, Saved* saved) const;
  void BackwardInput(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                     const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI, Saved* saved,
                     const ExpertRange& experts = {}) const;
  void BackwardWeight(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                      const Tensor& dy_RO, const Tensor& x_RI, const Tensor& dw_EOI,
                      const Saved& saved) const;

 private:
  LayerContext ContextOfExperts(const LayerContext& ctx) const;
  // Calls products(context, rows, expert) for each of the experts, in a scope of ctx.scratch.
  template <typename Products>
  void ForEachExpert(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                     const ExpertRange& experts, const Products& products) const;

  ProcessGroup tensor_group_;              // the ranks that share an expert
  std::vector<LinearProducts> of_expert_;  // empty where products are in the weights' dtype
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_GROUPED_PRODUCTS_H_
