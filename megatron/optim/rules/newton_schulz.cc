#include "megatron/optim/rules/newton_schulz.h"

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

// They raise small singular values fast; L. Cesista et al. searched them
// (https://leloykun.github.io/ponder/muon-opt-coeffs/), and Megatron calls them "quintic".
constexpr NewtonSchulzCoefficients kQuintic[] = {{4.0848f, -6.8946f, 2.9270f},
                                                 {3.9505f, -6.3029f, 2.6377f},
                                                 {3.7418f, -5.5913f, 2.3037f},
                                                 {2.8769f, -3.1427f, 1.2046f},
                                                 {2.8366f, -3.0525f, 1.2012f}};
constexpr int kNumQuintic = 5;

}  // namespace

NewtonSchulzCoefficients CoefficientsOf(int step) { return kQuintic[step % kNumQuintic]; }

void NewtonSchulz(const Stream& stream, const NewtonSchulzOptions& options, const Tensor& x_RC,
                  Arena* scratch) {
  CHECK_EQ(x_RC.rank(), 2);
  const bool on_rows = options.side == GramSide::kRows;
  const int64_t size = x_RC.dim(on_rows ? 0 : 1);
  const Arena::Scope scope(scratch);
  const Tensor gram = scratch->Allocate(DType::kFloat32, {size, size}, "orthogonalization"),
               operand = scratch->Allocate(x_RC.dtype(), {size, size}, "orthogonalization"),
               product_RC = scratch->Allocate(x_RC.dtype(), x_RC.shape(), "orthogonalization");
  for (int step = 0; step < options.steps; ++step) {
    const auto [a, b, c] = CoefficientsOf(step);
    if (on_rows) {
      ops::LinearForward(stream, x_RC, x_RC, /*bias_O=*/{}, operand);
      ops::Copy(stream, operand, gram);
    } else {
      ops::Zero(stream, gram);
      ops::LinearBackwardWeight(stream, x_RC, x_RC, gram, /*dbias_O=*/{});
    }
    if (options.group.size() > 1) {
      options.group.AllReduce(gram, ReduceOp::kSum, stream);
      if (options.replicas > 1) ops::Scale(stream, 1 / static_cast<float>(options.replicas), gram);
    }
    ops::Copy(stream, gram, operand);
    // b G + c G² = c ((b / c) G + GᵀG), since G is symmetric.
    ops::Scale(stream, b / c, gram);
    ops::LinearBackwardWeight(stream, operand, operand, gram, /*dbias_O=*/{});
    ops::Scale(stream, c, gram);
    ops::Copy(stream, gram, operand);
    if (on_rows) {
      ops::LinearBackwardInput(stream, operand, x_RC, product_RC);
    } else {
      ops::LinearBackwardInput(stream, x_RC, operand, product_RC);
    }
    ops::Scale(stream, a, x_RC);
    ops::Add(stream, product_RC, x_RC);
  }
}

}  // namespace megatron
