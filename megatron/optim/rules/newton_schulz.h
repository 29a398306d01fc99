// The Newton-Schulz iteration that makes the singular values of a matrix about 1, as Muon does it
// (K. Jordan et al., https://kellerjordan.github.io/posts/muon/).
//
// A step is X = a X + b G X + c G² X with G = X Xᵀ, or the same on the other side with G = XᵀX,
// where the coefficients a, b and c depend on the step. Each step is a polynomial of the singular
// values and leaves the singular vectors.
#ifndef MEGATRON_OPTIM_RULES_NEWTON_SCHULZ_H_
#define MEGATRON_OPTIM_RULES_NEWTON_SCHULZ_H_

#include "megatron/comm/process_group.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

struct NewtonSchulzCoefficients {
  float a, b, c;
};
// Returns those of a step, counted from 0. They repeat after five steps.
NewtonSchulzCoefficients CoefficientsOf(int step);

// G = X Xᵀ, or G = XᵀX.
enum class GramSide { kRows, kColumns };

struct NewtonSchulzOptions {
  int steps = 5;
  GramSide side = GramSide::kRows;
  // The ranks that hold the other columns of X for kRows, or its other rows for kColumns, over
  // which G is summed. Each block is on `replicas` of them.
  ProcessGroup group;
  int replicas = 1;
};

// Replaces x, fp32 or bf16, contiguous and with a Frobenius norm of at most 1. Products have
// operands of x's type. Results do not depend on the number of threads.
void NewtonSchulz(const Stream& stream, const NewtonSchulzOptions& options, const Tensor& x_RC,
                  Arena* scratch);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_NEWTON_SCHULZ_H_
