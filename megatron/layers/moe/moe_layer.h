// A mixture of experts in place of an MLP: each token's row goes to the experts that its router
// chooses, and the weighted sum of what they give comes back; a shared expert sees all tokens.
//
// Every tensor-parallel rank routes other rows (routed_rows.h): with sequence parallelism its own
// rows of the residual stream, without it its share of the rows that all hold, and the ranks'
// results are put together afterwards.
//
// With deduplicated dispatch the rows that go to experts are not those that this rank routes, but
// those that have come to it from its place on all hosts (host_dispatcher.h).
//
// Where RecomputeOptions::experts says so, Forward keeps its input alone, and Backward begins with
// another Forward. All that forward communicates is sent again then.
//
// Legend: T rows of the residual stream that this rank holds, N those of them that it routes, M
// rows that go to experts from here, S rows sent to them, R rows received, H hidden.
#ifndef MEGATRON_LAYERS_MOE_MOE_LAYER_H_
#define MEGATRON_LAYERS_MOE_MOE_LAYER_H_

#include <memory>
#include <string>
#include <vector>

#include "megatron/layers/mlp.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/experts.h"
#include "megatron/layers/moe/host_dispatcher.h"
#include "megatron/layers/moe/routed_rows.h"
#include "megatron/layers/moe/router_layer.h"
#include "megatron/layers/moe/shared_expert_gate.h"
#include "megatron/layers/moe/token_dispatcher.h"

namespace megatron {

class MoeLayer {
 public:
  struct Saved {
    Tensor x_TH;
    RouterLayer::Saved router;
    HostDispatcher::Plan hosts;
    Tensor probability_MK;  // router.probability_NK, unless they have come from other hosts
    TokenDispatcher::Plan plan;
    Experts::Saved experts;
    Tensor returned_SH;
    Mlp::Saved shared;
    SharedExpertGate::Saved gate;
  };

  // `name` is "decoder.layers.0.mlp", `layer` the layer's number as dropout counts.
  MoeLayer(const TransformerOptions& options, const std::string& name, int64_t layer,
           const ProcessGroup& tensor_group, const ExpertGroups& groups);

  // Returns "decoder.layers.0.mlp.router".
  const std::string& router_name() const { return router_.name(); }
  void set_state(const RouterState::Layer& state) { router_.set_state(state); }
  RouterLayer& router() { return router_; }

  // x must live as long as *saved, unless saved->x_TH is set to it again before Backward.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const;
  // Writes dx and adds to the router's gradient. Reads saved->x_TH; dy must lie in ctx.kept().
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved);
  void BackwardWeight(const LayerContext& ctx, Saved* saved);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  // Do what Forward and Backward say, with all that backward reads in ctx.saved.
  void ForwardOnce(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                   Saved* saved) const;
  void BackwardOnce(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                    Saved* saved);
  Tensor Routed(const LayerContext& ctx, const Tensor& x_TH) const;
  // Gives all tensor-parallel ranks the rows that each has written of x.
  void Share(const LayerContext& ctx, const Tensor& x_TH) const;
  // The shared expert's result before its gate, and its gradient of x, in ctx.scratch; empty if
  // there is none. With a gate the result is in ctx.saved. It is there behind EndShared, which is
  // given what BeginShared has returned.
  Tensor BeginShared(const LayerContext& ctx, const Tensor& x_TH, Saved* saved) const;
  void EndShared(const LayerContext& ctx, const Tensor& shared_TH, Saved* saved) const;
  Tensor SharedGradient(const LayerContext& ctx, const Tensor& dy_TH, Saved* saved);

  DType dtype_;
  int64_t hidden_size_;
  bool recompute_;
  RouterLayer router_;
  std::unique_ptr<HostDispatcher> hosts_;  // null without deduplicated dispatch
  TokenDispatcher dispatcher_;
  Experts experts_;
  std::unique_ptr<Mlp> shared_;             // null without a shared expert
  std::unique_ptr<SharedExpertGate> gate_;  // null if the shared expert has none
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_MOE_LAYER_H_
