#include "megatron/optim/norm.h"

#include <cmath>

#include "megatron/ops/elementwise.h"
#include "megatron/ops/optimizer.h"

namespace megatron {
namespace {

constexpr int64_t kSums = 2;  // those of ops::SumOfSquares

}  // namespace

Norm::Norm(Device device, MemoryLedger* ledger)
    : sums_(device, kSums * SizeOf(DType::kFloat32), "optimizer statistics", ledger),
      mirror_(sums_.At(0, DType::kFloat32, {kSums}), "optimizer statistics") {}

double Norm::Of(const Tensor& x, const ProcessGroup& group, int replicas,
                const Stream& stream) const {
  if (stream.is_meta()) return 0;
  const Tensor sums = sums_.At(0, DType::kFloat32, {kSums});
  ops::Zero(stream, sums);
  ops::SumOfSquares(stream, 1, x, sums);
  group.AllReduce(sums, ReduceOp::kSum, stream);
  mirror_.Fetch(stream);
  return std::sqrt(static_cast<double>(mirror_.host().data<float>()[0]) / replicas);
}

}  // namespace megatron
