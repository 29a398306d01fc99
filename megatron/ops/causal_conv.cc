#include "megatron/ops/causal_conv.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/causal_conv_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/packed_sequences.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

static_assert(kConvTaps == kMostConvTaps);

void Check(const Stream& stream, const Tensor& cu_seqlens, const CausalConvInputs& in,
           const Tensor& y_TGK) {
  CheckFloating(in.x_TGK);
  CHECK(in.x_TGK.rank() == 3 && in.weight_GKW.rank() == 3) << in.x_TGK << " " << in.weight_GKW;
  const DType dtype = in.x_TGK.dtype();
  const int64_t groups = in.x_TGK.dim(1), channels = in.x_TGK.dim(2), taps = in.weight_GKW.dim(2);
  CHECK(taps >= 1 && taps <= kMostConvTaps) << taps << " taps";
  CheckTensor(stream, in.x_TGK, dtype, in.x_TGK.shape());
  CHECK(in.x_TGK.stride(-1) == 1 || channels == 1) << in.x_TGK;
  CheckContiguous(stream, in.weight_GKW, dtype, {groups, channels, taps});
  if (!in.bias_GK.empty()) CheckContiguous(stream, in.bias_GK, dtype, {groups, channels});
  CheckContiguous(stream, y_TGK, dtype, in.x_TGK.shape());
  CheckContiguous(stream, cu_seqlens, DType::kInt32, cu_seqlens.shape());
}

ConvProblem ProblemOf(const Tensor& cu_seqlens, const CausalConvInputs& in, const Tensor& y_TGK) {
  ConvProblem problem;
  problem.dtype = in.x_TGK.dtype();
  problem.cu_seqlens = cu_seqlens.data<int32_t>();
  problem.sequences = cu_seqlens.numel() - 1;
  problem.channels = in.x_TGK.dim(2);
  problem.taps = in.weight_GKW.dim(2);
  problem.x = in.x_TGK.raw();
  problem.token_stride = in.x_TGK.stride(0);
  problem.group_stride = in.x_TGK.stride(1);
  problem.weight = in.weight_GKW.raw();
  problem.bias = in.bias_GK.raw();
  problem.y = y_TGK.raw();
  problem.y_stride = in.x_TGK.dim(1) * in.x_TGK.dim(2);
  CHECK_EQ(problem.cu_seqlens[problem.sequences], in.x_TGK.dim(0));
  return problem;
}

// The channels of a group in blocks. Wide ones read long pieces of a row, and there are some for
// each thread.
struct Blocks {
  int64_t channels, width, count;

  Blocks(const Stream& stream, const Tensor& x_TGK) : channels(x_TGK.dim(2)) {
    constexpr int64_t kLeast = 64, kOfEachThread = 4;
    const int64_t blocks = kOfEachThread * stream.pool()->num_threads();
    const int64_t share = (x_TGK.dim(1) * channels + blocks - 1) / blocks;
    width = std::min(kConvChannels, (share + kLeast - 1) / kLeast * kLeast);
    count = (channels + width - 1) / width;
  }
  int64_t First(int64_t block) const { return block % count * width; }
  int64_t Width(int64_t block) const { return std::min(width, channels - First(block)); }
};

// Calls body(group, first channel, number of channels) for blocks of channels, in parallel. A block
// goes through all tokens, so that its sums have the order of the tokens.
void ForEachBlock(const Stream& stream, const Tensor& x_TGK,
                  absl::FunctionRef<void(int64_t, int64_t, int64_t)> body) {
  const Blocks blocks(stream, x_TGK);
  stream.pool()->ParallelFor(x_TGK.dim(1) * blocks.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i / blocks.count, blocks.First(i), blocks.Width(i));
  });
}

}  // namespace

void CausalConvForward(const Stream& stream, const Tensor& cu_seqlens, const CausalConvInputs& in,
                       const Tensor& y_TGK) {
  Check(stream, cu_seqlens, in, y_TGK);
  if (RunsOnCuda(stream)) return OnCuda<CausalConvForward>(stream, cu_seqlens, in, y_TGK);
  if (!RunsOnCpu(stream)) return;
  const ConvProblem problem = ProblemOf(cu_seqlens, in, y_TGK);
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::CausalConvForward : avx2::CausalConvForward;
  ForEachBlock(stream, in.x_TGK, [&](int64_t group, int64_t first, int64_t count) {
    kernel(problem, group, first, count, Workspace(WorkspaceKind::kPrivate, kConvScratch));
  });
}

void CausalConvBackward(const Stream& stream, const Tensor& cu_seqlens, const CausalConvInputs& in,
                        const Tensor& dy_TGK, const CausalConvInputs& gradients) {
  Check(stream, cu_seqlens, in, dy_TGK);
  CheckTensor(stream, gradients.x_TGK, in.x_TGK.dtype(), in.x_TGK.shape());
  CheckContiguous(stream, gradients.weight_GKW, DType::kFloat32, in.weight_GKW.shape());
  CHECK_EQ(gradients.bias_GK.empty(), in.bias_GK.empty());
  if (!in.bias_GK.empty())
    CheckContiguous(stream, gradients.bias_GK, DType::kFloat32, in.bias_GK.shape());
  if (RunsOnCuda(stream)) {
    return OnCuda<CausalConvBackward>(stream, cu_seqlens, in, dy_TGK, gradients);
  }
  if (!RunsOnCpu(stream)) return;
  for (int d = 0; d < 2; ++d) CHECK_EQ(gradients.x_TGK.stride(d), in.x_TGK.stride(d));
  ConvProblem problem = ProblemOf(cu_seqlens, in, dy_TGK);
  problem.dx = gradients.x_TGK.raw();
  problem.dweight = gradients.weight_GKW.data<float>();
  if (!in.bias_GK.empty()) problem.dbias = gradients.bias_GK.data<float>();
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::CausalConvBackward : avx2::CausalConvBackward;
  ForEachBlock(stream, in.x_TGK, [&](int64_t group, int64_t first, int64_t count) {
    kernel(problem, group, first, count, Workspace(WorkspaceKind::kPrivate, kConvScratch));
  });
}

void CausalConvContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const CausalConvInputs& in, const Tensor& recent_SWGK,
                        const Tensor& y_TGK) {
  Check(stream, cu_seqlens, in, y_TGK);
  const int64_t groups = in.x_TGK.dim(1), channels = in.x_TGK.dim(2);
  CheckContiguous(stream, position_T, DType::kInt32, {in.x_TGK.dim(0)});
  CheckContiguous(stream, recent_SWGK, in.x_TGK.dtype(),
                  {cu_seqlens.numel() - 1, in.weight_GKW.dim(2) - 1, groups, channels});
  if (RunsOnCuda(stream)) {
    return OnCuda<CausalConvContinue>(stream, cu_seqlens, position_T, in, recent_SWGK, y_TGK);
  }
  if (!RunsOnCpu(stream)) return;
  const ConvProblem problem = ProblemOf(cu_seqlens, in, y_TGK);
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::CausalConvContinue : avx2::CausalConvContinue;
  const Blocks blocks(stream, in.x_TGK);
  ForEachPortion(stream, PackedSequences(cu_seqlens, in.x_TGK.dim(0)), position_T,
                 groups * blocks.count, [&](const SequencePortion& portion, int64_t block) {
                   kernel(problem,
                          {portion.begin, portion.end, portion.anew,
                           recent_SWGK.Select(0, portion.slot).raw()},
                          block / blocks.count, blocks.First(block), blocks.Width(block),
                          Workspace(WorkspaceKind::kPrivate, kConvScratch));
                 });
}

}  // namespace megatron::ops
