#include <algorithm>
#include <cstdint>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/layer_costs.h"

namespace megatron {
namespace {

// All but the last of equal sums run beside the products of the pieces that follow.
double SumsBeside(double sum, double product, int pieces) {
  return std::max(sum, pieces * sum - (pieces - 1) * product);
}

// The rows of this rank are multiplied first, and those of each other one when they have come.
double PassesBeside(double pass, double product, int64_t ranks) {
  return double(ranks - 1) * std::max(0.0, pass - product);
}

}  // namespace

// Returns the seconds for which the forward pass of a branch waits whose first product gives `in`
// channels and whose last one reads `out`, and those that products of fewer rows take more. Pieces
// are those of layers/tensor_overlap.cc: four sums, or, where ranks share out rows, the rows of
// each rank, and two sums of which a piece has rows of all ranks.
double LayerPredictor::PiecesBeside(double in, double out) const {
  const bool gathers = l_.is_sequence_parallel, hides = gpu_.cores() == 0;
  const double h = model_.hidden(), bytes = rates_.element_bytes * tokens_ * h;
  const auto product = [&](double rows, double n, double k) {
    return ProductSeconds({"product", "forward", rows, n, k}, rates_.product_flops);
  };
  const auto gathered = [&](double width) {
    if (!gathers) return 0.0;
    const double pass =
        CollectiveSeconds(gpu_, program_, TrafficCall::kAllToAll, {2, 1}, 2 * bytes / tp_) +
        LaneSeconds(gpu_);
    const double piece = product(tokens_ / tp_, width, h);
    return (hides ? PassesBeside(pass, piece, l_.tp) : (tp_ - 1) * pass) +
           std::max(0.0, tp_ * piece - product(tokens_, width, h));
  };
  const auto summed = [&](double width) {
    const int pieces = gathers ? 2 : 4;
    const double parts = gathers ? tp_ : 1;
    const double sum =
        CollectiveSeconds(gpu_, program_,
                          gathers ? TrafficCall::kReduceScatter : TrafficCall::kAllReduce,
                          {l_.tp, 1}, bytes / pieces) +
        LaneSeconds(gpu_);
    const double piece = parts * product(tokens_ / pieces / parts, h, width);
    return (hides ? SumsBeside(sum, piece, pieces) : pieces * sum) +
           std::max(0.0, pieces * piece - product(tokens_, h, width));
  };
  return gathered(in) + summed(out);
}

// What the experts of a mixture give is added up in the open where rows aren't shared out.
double LayerPredictor::ForwardInPieces(bool is_mixture) const {
  const bool gathers = l_.is_sequence_parallel;
  const double bytes = rates_.element_bytes * tokens_ * model_.hidden();
  const double halves = model_.is_gated() ? 2 : 1;
  const double attention =
      PiecesBeside((query_width() + 2 * kv_width()) / tp_, query_width() / tp_);
  if (!is_mixture) return attention + PiecesBeside(halves * model_.ffn() / tp_, model_.ffn() / tp_);
  const double shared = model_.shared_ffn() / tp_;
  return attention + (shared > 0 ? PiecesBeside(halves * shared, shared) : 0) +
         (gathers ? 0
                  : CollectiveSeconds(gpu_, program_, TrafficCall::kAllReduce, {l_.tp, 1}, bytes));
}

}  // namespace megatron
