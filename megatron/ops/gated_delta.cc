#include "megatron/ops/gated_delta.h"

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/gated_delta_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/packed_sequences.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

static_assert(kChunkTokens == kGatedDeltaChunk);

// Checks tensors that have tokens: the inputs, or their gradients.
void CheckTokens(const Stream& stream, const GatedDeltaInputs& like, const GatedDeltaInputs& x) {
  const DType dtype = like.v_TGRE.dtype();
  const int64_t tokens = like.v_TGRE.dim(0), groups = like.v_TGRE.dim(1);
  const Shape keys = {tokens, groups, like.k_TGK.dim(2)};
  const Shape steps = {tokens, groups, like.v_TGRE.dim(2)};
  CheckTensor(stream, x.q_TGK, dtype, keys);
  CheckTensor(stream, x.k_TGK, dtype, keys);
  CheckTensor(stream, x.v_TGRE, dtype, like.v_TGRE.shape());
  CheckTensor(stream, x.beta_TGR, dtype, steps);
  CheckTensor(stream, x.decay_TGR, dtype, steps);
  for (const Tensor* tensor : {&x.q_TGK, &x.k_TGK, &x.v_TGRE, &x.beta_TGR, &x.decay_TGR})
    CHECK(tensor->stride(-1) == 1 || tensor->dim(-1) == 1)
        << "the last dim of " << *tensor << " is not contiguous";
}

void Check(const Stream& stream, const Tensor& cu_seqlens, const GatedDeltaInputs& in,
           const Tensor& out_TGRE) {
  CheckFloating(in.v_TGRE);
  CHECK(in.v_TGRE.rank() == 4 && in.k_TGK.rank() == 3) << in.v_TGRE << " " << in.k_TGK;
  CheckTokens(stream, in, in);
  const Shape heads = {in.v_TGRE.dim(1) * in.v_TGRE.dim(2)};
  for (const Tensor* tensor : {&in.bias_H, &in.a_log_H})
    CheckContiguous(stream, *tensor, in.v_TGRE.dtype(), heads);
  CheckContiguous(stream, out_TGRE, in.v_TGRE.dtype(), in.v_TGRE.shape());
  CheckContiguous(stream, cu_seqlens, DType::kInt32, cu_seqlens.shape());
}

void CheckForwardScratch(const Stream& stream, const GatedDeltaInputs& in,
                         const GatedDeltaScratch& scratch) {
  CheckContiguous(stream, scratch.states, DType::kFloat32, GatedDeltaStates(in));
  CheckContiguous(stream, scratch.keys_THK, DType::kFloat32, GatedDeltaKeys(in));
  CheckContiguous(stream, scratch.values_THE, DType::kFloat32, GatedDeltaValues(in));
}

GatedDeltaProblem ProblemOf(const GatedDeltaInputs& in) {
  GatedDeltaProblem problem;
  problem.dtype = in.v_TGRE.dtype();
  problem.groups = in.v_TGRE.dim(1);
  problem.group_heads = in.v_TGRE.dim(2);
  problem.key = in.k_TGK.dim(2);
  problem.value = in.v_TGRE.dim(3);
  problem.q = OperandOf(in.q_TGK);
  problem.k = OperandOf(in.k_TGK);
  problem.v = OperandOf(in.v_TGRE);
  problem.beta = StepOperandOf(in.beta_TGR);
  problem.decay = {StepOperandOf(in.decay_TGR), in.bias_H.raw(), in.a_log_H.raw()};
  return problem;
}

// Adds the sums over all tokens, in their order.
void AddTokenSums(const Tensor& token_sums, const GatedDeltaInputs& gradients) {
  const int64_t tokens = token_sums.dim(0), heads = token_sums.dim(1);
  const float* const sums = token_sums.data<float>();
  for (int64_t head = 0; head < heads; ++head) {
    double bias = 0, a_log = 0;
    for (int64_t token = 0; token < tokens; ++token) {
      bias += sums[2 * (token * heads + head)];
      a_log += sums[2 * (token * heads + head) + 1];
    }
    gradients.bias_H.data<float>()[head] += static_cast<float>(bias);
    gradients.a_log_H.data<float>()[head] += static_cast<float>(a_log);
  }
}

}  // namespace

Shape GatedDeltaStates(const GatedDeltaInputs& in) {
  return {ChunkPlaces(in.v_TGRE.dim(0)), in.v_TGRE.dim(1) * in.v_TGRE.dim(2),
          PaddedChunk(in.k_TGK.dim(2)), PaddedChunk(in.v_TGRE.dim(3))};
}

Shape GatedDeltaKeys(const GatedDeltaInputs& in) {
  return {in.v_TGRE.dim(0), in.v_TGRE.dim(1) * in.v_TGRE.dim(2), in.k_TGK.dim(2)};
}

Shape GatedDeltaValues(const GatedDeltaInputs& in) {
  return {in.v_TGRE.dim(0), in.v_TGRE.dim(1) * in.v_TGRE.dim(2), in.v_TGRE.dim(3)};
}

Shape GatedDeltaTokenSums(const GatedDeltaInputs& in) {
  return {in.v_TGRE.dim(0), in.v_TGRE.dim(1) * in.v_TGRE.dim(2), 2};
}

void GatedDeltaForward(const Stream& stream, const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                       const GatedDeltaScratch& scratch, const Tensor& out_TGRE) {
  Check(stream, cu_seqlens, in, out_TGRE);
  CheckForwardScratch(stream, in, scratch);
  if (RunsOnCuda(stream))
    return OnCuda<GatedDeltaForward>(stream, cu_seqlens, in, scratch, out_TGRE);
  if (!RunsOnCpu(stream)) return;
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::GatedDeltaForward : avx2::GatedDeltaForward;
  GatedDeltaProblem problem = ProblemOf(in);
  problem.out = OperandOf(out_TGRE);
  const int64_t floats = GatedDeltaScratchFloats(problem);
  ForEachHeads(stream, PackedSequences(cu_seqlens, in.v_TGRE.dim(0)), problem.groups,
               problem.group_heads, [&](const HeadsOfSequence& part) {
                 kernel(problem, part, Workspace(WorkspaceKind::kPrivate, floats));
               });
}

void GatedDeltaBackward(const Stream& stream, const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                        const Tensor& dout_TGRE, const GatedDeltaScratch& scratch,
                        const GatedDeltaInputs& gradients) {
  Check(stream, cu_seqlens, in, dout_TGRE);
  CheckTokens(stream, in, gradients);
  for (const Tensor* tensor : {&gradients.bias_H, &gradients.a_log_H})
    CheckContiguous(stream, *tensor, DType::kFloat32, in.bias_H.shape());
  CheckForwardScratch(stream, in, scratch);
  CheckContiguous(stream, scratch.state_gradients, DType::kFloat32, GatedDeltaStates(in));
  CheckContiguous(stream, scratch.value_gradients_THE, DType::kFloat32, GatedDeltaValues(in));
  CheckContiguous(stream, scratch.token_sums, DType::kFloat32, GatedDeltaTokenSums(in));
  if (RunsOnCuda(stream)) {
    return OnCuda<GatedDeltaBackward>(stream, cu_seqlens, in, dout_TGRE, scratch, gradients);
  }
  if (!RunsOnCpu(stream)) return;
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::GatedDeltaBackward : avx2::GatedDeltaBackward;
  GatedDeltaProblem problem = ProblemOf(in);
  problem.dout = OperandOf(dout_TGRE);
  problem.dq = OperandOf(gradients.q_TGK);
  problem.dk = OperandOf(gradients.k_TGK);
  problem.dv = OperandOf(gradients.v_TGRE);
  problem.dbeta = StepOperandOf(gradients.beta_TGR);
  problem.draw = StepOperandOf(gradients.decay_TGR);
  problem.states = scratch.states.data<float>();
  problem.token_sums = scratch.token_sums.data<float>();
  const int64_t floats = GatedDeltaScratchFloats(problem);
  // The gradients of a query and key head are sums over the heads of its group.
  ForEachGroup(stream, PackedSequences(cu_seqlens, in.v_TGRE.dim(0)), problem.groups,
               problem.group_heads, [&](const HeadsOfSequence& part) {
                 kernel(problem, part, Workspace(WorkspaceKind::kPrivate, floats));
               });
  AddTokenSums(scratch.token_sums, gradients);
}

void GatedDeltaContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const GatedDeltaInputs& in, const Tensor& state_SHKE,
                        const Tensor& out_TGRE) {
  Check(stream, cu_seqlens, in, out_TGRE);
  const int64_t tokens = in.v_TGRE.dim(0), heads = in.v_TGRE.dim(1) * in.v_TGRE.dim(2);
  CheckContiguous(stream, position_T, DType::kInt32, {tokens});
  CheckContiguous(stream, state_SHKE, DType::kFloat32,
                  {cu_seqlens.numel() - 1, heads, in.k_TGK.dim(2), in.v_TGRE.dim(3)});
  if (RunsOnCuda(stream)) {
    return OnCuda<GatedDeltaContinue>(stream, cu_seqlens, position_T, in, state_SHKE, out_TGRE);
  }
  if (!RunsOnCpu(stream)) return;
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::GatedDeltaContinue : avx2::GatedDeltaContinue;
  GatedDeltaProblem problem = ProblemOf(in);
  problem.out = OperandOf(out_TGRE);
  const int64_t floats = GatedDeltaScratchFloats(problem);
  ForEachPortion(stream, PackedSequences(cu_seqlens, tokens), position_T, problem.groups,
                 [&](const SequencePortion& portion, int64_t group) {
                   kernel(problem,
                          {portion.begin, portion.end, portion.anew,
                           state_SHKE.Select(0, portion.slot).data<float>()},
                          group, Workspace(WorkspaceKind::kPrivate, floats));
                 });
}

}  // namespace megatron::ops
