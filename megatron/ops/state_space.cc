#include "megatron/ops/state_space.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/packed_sequences.h"
#include "megatron/ops/cpu/state_space_kernels.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

static_assert(kChunkTokens == kStateSpaceChunk);

// Adds of the sums of a head: those of the step's bias, of a_log and of skip.
constexpr int kSums = 3;

void CheckLastDim(const Tensor& x) {
  CHECK(x.stride(-1) == 1 || x.dim(-1) == 1) << "the last dim of " << x << " is not contiguous";
}

// Checks tensors that have tokens: the inputs, or their gradients.
void CheckTokens(const Stream& stream, const StateSpaceInputs& like, const StateSpaceInputs& x) {
  const DType dtype = like.x_TGRP.dtype();
  CheckTensor(stream, x.x_TGRP, dtype, like.x_TGRP.shape());
  const int64_t tokens = like.x_TGRP.dim(0), groups = like.x_TGRP.dim(1);
  const Shape state = {tokens, groups, like.b_TGN.dim(2)};
  CheckTensor(stream, x.b_TGN, dtype, state);
  CheckTensor(stream, x.c_TGN, dtype, state);
  CheckTensor(stream, x.step_TGR, dtype, {tokens, groups, like.x_TGRP.dim(2)});
  for (const Tensor* tensor : {&x.x_TGRP, &x.b_TGN, &x.c_TGN, &x.step_TGR}) CheckLastDim(*tensor);
}

void Check(const Stream& stream, const Tensor& cu_seqlens, const StateSpaceInputs& in,
           const Tensor& y_TGRP) {
  CheckFloating(in.x_TGRP);
  CHECK(in.x_TGRP.rank() == 4 && in.b_TGN.rank() == 3) << in.x_TGRP << " " << in.b_TGN;
  CheckTokens(stream, in, in);
  const DType dtype = in.x_TGRP.dtype();
  const Shape heads = {in.x_TGRP.dim(1) * in.x_TGRP.dim(2)};
  for (const Tensor* tensor : {&in.step_bias_H, &in.a_log_H, &in.skip_H})
    CheckContiguous(stream, *tensor, dtype, heads);
  CheckContiguous(stream, y_TGRP, dtype, in.x_TGRP.shape());
  CheckContiguous(stream, cu_seqlens, DType::kInt32, cu_seqlens.shape());
}

StateSpaceProblem ProblemOf(const StateSpaceInputs& in) {
  StateSpaceProblem problem;
  problem.dtype = in.x_TGRP.dtype();
  problem.groups = in.x_TGRP.dim(1);
  problem.group_heads = in.x_TGRP.dim(2);
  problem.channels = in.x_TGRP.dim(3);
  problem.state = in.b_TGN.dim(2);
  problem.x = OperandOf(in.x_TGRP);
  problem.b = OperandOf(in.b_TGN);
  problem.c = OperandOf(in.c_TGN);
  problem.decay = {StepOperandOf(in.step_TGR), in.step_bias_H.raw(), in.a_log_H.raw()};
  problem.skip = in.skip_H.raw();
  return problem;
}

// Adds the sums of all sequences to the gradients of a head's parameters, in their order.
void AddSums(const float* sums, const PackedSequences& sequences,
             const StateSpaceInputs& gradients) {
  const Tensor* const outs[kSums] = {&gradients.step_bias_H, &gradients.a_log_H, &gradients.skip_H};
  const int64_t heads = gradients.skip_H.dim(0);
  for (int k = 0; k < kSums; ++k) {
    float* const out = outs[k]->data<float>();
    for (int64_t head = 0; head < heads; ++head) {
      float sum = 0;
      for (int64_t s = 0; s < sequences.count; ++s) {
        const int64_t begin = sequences.begins[s];
        if (begin < sequences.begins[s + 1]) sum += sums[(begin * heads + head) * kSums + k];
      }
      out[head] += sum;
    }
  }
}

}  // namespace

Shape StateSpaceStates(const StateSpaceInputs& in) {
  return {ChunkPlaces(in.x_TGRP.dim(0)), in.x_TGRP.dim(1) * in.x_TGRP.dim(2),
          PaddedChunk(in.b_TGN.dim(2)), PaddedChunk(in.x_TGRP.dim(3))};
}

Shape StateSpaceSums(const StateSpaceInputs& in) {
  return {ChunkPlaces(in.x_TGRP.dim(0)), in.x_TGRP.dim(1) * in.x_TGRP.dim(2), kSums};
}

void StateSpaceForward(const Stream& stream, const Tensor& cu_seqlens, const StateSpaceInputs& in,
                       const Tensor& states, const Tensor& y_TGRP) {
  Check(stream, cu_seqlens, in, y_TGRP);
  CheckContiguous(stream, states, DType::kFloat32, StateSpaceStates(in));
  if (RunsOnCuda(stream)) return OnCuda<StateSpaceForward>(stream, cu_seqlens, in, states, y_TGRP);
  if (!RunsOnCpu(stream)) return;
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::StateSpaceForward : avx2::StateSpaceForward;
  StateSpaceProblem problem = ProblemOf(in);
  problem.y = OperandOf(y_TGRP);
  const int64_t floats = StateSpaceScratchFloats(problem);
  ForEachHeads(stream, PackedSequences(cu_seqlens, in.x_TGRP.dim(0)), problem.groups,
               problem.group_heads, [&](const HeadsOfSequence& part) {
                 kernel(problem, part, Workspace(WorkspaceKind::kPrivate, floats));
               });
}

void StateSpaceBackward(const Stream& stream, const Tensor& cu_seqlens, const StateSpaceInputs& in,
                        const Tensor& dy_TGRP, const StateSpaceScratch& scratch,
                        const StateSpaceInputs& gradients) {
  Check(stream, cu_seqlens, in, dy_TGRP);
  CheckTokens(stream, in, gradients);
  for (const Tensor* tensor : {&gradients.step_bias_H, &gradients.a_log_H, &gradients.skip_H})
    CheckContiguous(stream, *tensor, DType::kFloat32, in.skip_H.shape());
  for (const Tensor* tensor : {&scratch.states, &scratch.state_gradients})
    CheckContiguous(stream, *tensor, DType::kFloat32, StateSpaceStates(in));
  CheckContiguous(stream, scratch.sums, DType::kFloat32, StateSpaceSums(in));
  if (RunsOnCuda(stream)) {
    return OnCuda<StateSpaceBackward>(stream, cu_seqlens, in, dy_TGRP, scratch, gradients);
  }
  if (!RunsOnCpu(stream)) return;
  const bool wide = ActiveIsa() == CpuIsa::kAvx512;
  const auto backward = wide ? avx512::StateSpaceBackward : avx2::StateSpaceBackward;
  const auto add_blocks = wide ? avx512::StateSpaceAddBlocks : avx2::StateSpaceAddBlocks;
  StateSpaceProblem problem = ProblemOf(in);
  problem.dy = OperandOf(dy_TGRP);
  problem.dx = OperandOf(gradients.x_TGRP);
  problem.db = OperandOf(gradients.b_TGN);
  problem.dc = OperandOf(gradients.c_TGN);
  problem.dstep = StepOperandOf(gradients.step_TGR);
  const int64_t tokens = in.x_TGRP.dim(0), heads = problem.groups * problem.group_heads;
  const HeadBlocks blocks = HeadBlocksOf(problem);
  problem.states = scratch.states.data<float>();
  problem.sums = scratch.state_gradients.data<float>();
  problem.block_gradients = problem.sums + tokens * heads * kSums;
  if (blocks.count > 1) {
    CHECK_LE(
        tokens * (heads * kSums + problem.groups * blocks.count * 2 * PaddedChunk(problem.state)),
        scratch.state_gradients.numel());
  }
  const int64_t floats = StateSpaceScratchFloats(problem);
  const PackedSequences sequences(cu_seqlens, tokens);
  ForEachHeads(stream, sequences, problem.groups * blocks.count, /*group_heads=*/1,
               [&](const HeadsOfSequence& block) {
                 HeadsOfSequence part = block;
                 const int64_t group = block.first_head / blocks.count * problem.group_heads;
                 part.first_head = group + block.first_head % blocks.count * blocks.heads;
                 part.end_head =
                     std::min(part.first_head + blocks.heads, group + problem.group_heads);
                 backward(problem, part, Workspace(WorkspaceKind::kPrivate, floats));
               });
  if (blocks.count > 1) {
    stream.pool()->ParallelFor(tokens * problem.groups, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        add_blocks(problem, i / problem.groups, i % problem.groups);
    });
  }
  AddSums(problem.sums, sequences, gradients);
}

void StateSpaceContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const StateSpaceInputs& in, const Tensor& state_SHNP,
                        const Tensor& y_TGRP) {
  Check(stream, cu_seqlens, in, y_TGRP);
  const int64_t tokens = in.x_TGRP.dim(0), heads = in.x_TGRP.dim(1) * in.x_TGRP.dim(2);
  CheckContiguous(stream, position_T, DType::kInt32, {tokens});
  CheckContiguous(stream, state_SHNP, DType::kFloat32,
                  {cu_seqlens.numel() - 1, heads, in.b_TGN.dim(2), in.x_TGRP.dim(3)});
  if (RunsOnCuda(stream)) {
    return OnCuda<StateSpaceContinue>(stream, cu_seqlens, position_T, in, state_SHNP, y_TGRP);
  }
  if (!RunsOnCpu(stream)) return;
  const auto kernel =
      ActiveIsa() == CpuIsa::kAvx512 ? avx512::StateSpaceContinue : avx2::StateSpaceContinue;
  StateSpaceProblem problem = ProblemOf(in);
  problem.y = OperandOf(y_TGRP);
  const int64_t floats = StateSpaceScratchFloats(problem);
  ForEachPortion(stream, PackedSequences(cu_seqlens, tokens), position_T, heads,
                 [&](const SequencePortion& portion, int64_t head) {
                   kernel(problem,
                          {portion.begin, portion.end, portion.anew,
                           state_SHNP.Select(0, portion.slot).data<float>()},
                          head, Workspace(WorkspaceKind::kPrivate, floats));
                 });
}

}  // namespace megatron::ops
