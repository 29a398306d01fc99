// A LayerNorm or RMSNorm with its parameters, replicated on every tensor-parallel rank. A LayerNorm
// has a bias unless ops::Norm says otherwise.
//
// Where a row is cut over ranks, of which each has some of its columns, statistics and two sums of
// gradients are exchanged, and each rank has its columns of the parameters. So it is on a grid of
// ranks (tensor_grid.h), whose ranks of a row share rows, and where NormOptions::cut_ranks says so.
//
// Rows may be heads that have gains of their own each, and no biases (NormOptions::heads).
#ifndef MEGATRON_LAYERS_NORM_LAYER_H_
#define MEGATRON_LAYERS_NORM_LAYER_H_

#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/ops/norm.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

struct NormOptions {
  ops::Norm norm;
  std::string weight_name, bias_name;
  int64_t size = 0;
  // Each tensor-parallel rank normalizes other rows (its heads, or its part of the residual
  // stream), so that gradients are summands.
  bool partial_over_tensor = false;
  TensorGrid grid;  // the grid whose ranks share a row that is normalized
  // Where above 0, rows are so many heads of each token, which have gains of their own and no
  // biases. x is [tokens, this rank's heads, channels], or has heads in two dims. Not on a grid.
  int64_t heads = 0;
  // The number of tensor-parallel ranks that a row is cut over, or that share out the heads, all of
  // them or 1, and this rank's.
  int cut_ranks = 1, cut_rank = 0;
};

class NormLayer {
 public:
  struct Saved {
    Tensor x_TH, mean_T, rstd_T;
  };

  explicit NormLayer(const NormOptions& options);

  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const;
  // Computes sum = residual + dropout(x + bias) and y = norm(sum). Rows are no heads.
  void ForwardResidual(const LayerContext& ctx, const ops::Dropout& dropout, const Tensor& x_TH,
                       const Tensor& bias_H, const Tensor& residual_TH, const Tensor& sum_TH,
                       const Tensor& y_TH, Saved* saved) const;
  // Writes y once more from what the first Forward saved.
  void Recompute(const LayerContext& ctx, const Saved& saved, const Tensor& y_TH) const;
  // Computes dx = gradient through the norm + dresidual (may be empty), and adds to the parameters'
  // gradients, which come out of the same pass; so do the column sums of dx, which are added to
  // dbias unless that is empty. Where rows are heads, dresidual and dbias are.
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dresidual_TH,
                const Tensor& dx_TH, const Saved& saved, const Tensor& dbias_H = Tensor());

  void AppendParameters(std::vector<Parameter*>* out);
  // Returns whether any of the parameters is not frozen.
  bool IsTrained() const { return !weight_.frozen || (has_bias() && !bias_.frozen); }

 private:
  bool is_layer_norm() const { return norm_.kind == ops::Norm::kLayerNorm; }
  bool has_bias() const { return is_layer_norm() && norm_.bias && heads_ == 0; }
  // The ranks that a row is cut over.
  const ProcessGroup& RanksOf(const LayerContext& ctx) const {
    return is_cut_over_tensor_ ? ctx.tensor_group : ctx.grid.row;
  }
  ops::NormTensors Tensors(const Saved& saved) const;
  // NormForward, NormBackward of this rank's columns, which are the arguments' rows.
  void Normalize(const LayerContext& ctx, const Tensor& x_TH, const ops::NormTensors& tensors,
                 const Tensor& y_TH) const;
  void AllocateStatistics(const LayerContext& ctx, const Tensor& x_TH, Saved* saved) const;

  ops::Norm norm_;
  int64_t size_;
  int64_t heads_;  // this rank's heads that have gains of their own
  bool is_cut_, is_cut_over_tensor_;
  Parameter weight_, bias_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_NORM_LAYER_H_
