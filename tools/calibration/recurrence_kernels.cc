#include "tools/calibration/recurrence_kernels.h"

#include <cstdint>

#include "megatron/ops/gated_delta.h"
#include "megatron/ops/state_space.h"
#include "megatron/plan/hybrid_layers.h"

namespace megatron::calibration {
namespace {

constexpr const char* kStateSpace = "state_space";
constexpr int64_t kTokens = 512;

// The convolution has just written the inputs of a recurrence, also in backward, which computes it
// again; the norm's backward pass has just written the gradient of its outputs.
MakeKernel StateSpaceOf(const KernelShape& shape) {
  return [shape](Rank* rank) -> Kernel {
    const int64_t heads = int64_t(shape.m), channels = int64_t(shape.n), state = int64_t(shape.k);
    const int64_t inner = heads * channels, steps = inner + 2 * state;
    const Stream& stream = rank->stream();
    const auto inputs = [&] {
      const Tensor all = rank->Make({kTokens, 1, steps + heads});
      ops::StateSpaceInputs in;
      in.x_TGRP = all.Slice(2, 0, inner).SplitDim(2, channels);
      in.b_TGN = all.Slice(2, inner, inner + state);
      in.c_TGN = all.Slice(2, inner + state, steps);
      in.step_TGR = all.Slice(2, steps, steps + heads);
      in.step_bias_H = rank->Make({heads});
      in.a_log_H = rank->Make({heads});
      in.skip_H = rank->Make({heads});
      return in;
    };
    const ops::StateSpaceInputs in = inputs();
    const Tensor ends = rank->MakeEnds(kTokens);
    const Tensor states = rank->Make(ops::StateSpaceStates(in));
    const bool is_forward = shape.pass == "forward";
    const int64_t count = is_forward ? ColdSets(4 * in.x_TGRP.numel()) : 1;
    const auto y = rank->MakeMany(count, in.x_TGRP.shape(), DType::kFloat32);
    int64_t i = 0;
    if (is_forward) {
      return [=, &stream]() mutable {
        i = (i + 1) % count;
        ops::StateSpaceForward(stream, ends, in, states, y[i]);
      };
    }
    const ops::StateSpaceInputs gradients = inputs();
    const ops::StateSpaceScratch scratch = {states, rank->Make(ops::StateSpaceStates(in)),
                                            rank->Make(ops::StateSpaceSums(in))};
    return [=, &stream] { ops::StateSpaceBackward(stream, ends, in, y[0], scratch, gradients); };
  };
}

MakeKernel GatedDeltaOf(const KernelShape& shape) {
  return [shape](Rank* rank) -> Kernel {
    const int64_t heads = int64_t(shape.m), value = int64_t(shape.n), key = int64_t(shape.k);
    const int64_t betas = 2 * key + heads * value;
    const Stream& stream = rank->stream();
    const auto inputs = [&] {
      const Tensor all = rank->Make({kTokens, 1, betas + 2 * heads});
      ops::GatedDeltaInputs in;
      in.q_TGK = all.Slice(2, 0, key);
      in.k_TGK = all.Slice(2, key, 2 * key);
      in.v_TGRE = all.Slice(2, 2 * key, betas).SplitDim(2, value);
      in.beta_TGR = all.Slice(2, betas, betas + heads);
      in.decay_TGR = all.Slice(2, betas + heads, betas + 2 * heads);
      in.bias_H = rank->Make({heads});
      in.a_log_H = rank->Make({heads});
      return in;
    };
    const ops::GatedDeltaInputs in = inputs();
    const Tensor ends = rank->MakeEnds(kTokens);
    ops::GatedDeltaScratch scratch;
    scratch.states = rank->Make(ops::GatedDeltaStates(in));
    scratch.keys_THK = rank->Make(ops::GatedDeltaKeys(in));
    scratch.values_THE = rank->Make(ops::GatedDeltaValues(in));
    const bool is_forward = shape.pass == "forward";
    const int64_t count = is_forward ? ColdSets(4 * in.v_TGRE.numel()) : 1;
    const auto out = rank->MakeMany(count, in.v_TGRE.shape(), DType::kFloat32);
    int64_t i = 0;
    if (is_forward) {
      return [=, &stream]() mutable {
        i = (i + 1) % count;
        ops::GatedDeltaForward(stream, ends, in, scratch, out[i]);
      };
    }
    scratch.state_gradients = rank->Make(ops::GatedDeltaStates(in));
    scratch.value_gradients_THE = rank->Make(ops::GatedDeltaValues(in));
    scratch.token_sums = rank->Make(ops::GatedDeltaTokenSums(in));
    const ops::GatedDeltaInputs gradients = inputs();
    return [=, &stream] { ops::GatedDeltaBackward(stream, ends, in, out[0], scratch, gradients); };
  };
}

}  // namespace

std::vector<KernelShape> RecurrenceShapes() {
  std::vector<KernelShape> shapes;
  for (const char* pass : {"forward", "input_gradient"}) {
    for (double heads : {2, 8, 32}) {
      for (double channels : {32, 64}) {
        for (double state : {32, 128})
          shapes.push_back({kStateSpace, pass, heads, channels, state});
      }
    }
    for (double heads : {1, 2, 4}) {
      for (double width : {32, 64, 128})
        shapes.push_back({"gated_delta", pass, heads, width, width});
    }
  }
  return shapes;
}

bool IsRecurrence(const KernelShape& shape) {
  return shape.kernel == kStateSpace || shape.kernel == "gated_delta";
}

double RecurrenceFlops(const KernelShape& shape) {
  const RecurrenceCosts costs = CostsOfRecurrenceKernel(shape);
  return 2.0 * kTokens * (shape.pass == "forward" ? costs.forward : costs.backward);
}

MakeKernel RecurrenceOfShape(const KernelShape& shape) {
  return shape.kernel == kStateSpace ? StateSpaceOf(shape) : GatedDeltaOf(shape);
}

}  // namespace megatron::calibration
