// The tests of kernels_test.cc for what goes on with the states of sequences.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cuda/cuda_op_test.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/state_space.h"

namespace megatron::ops {
namespace {

// The new tokens of four sequences in two calls. Of those that have some in the second, the first
// one goes on, and the others begin, one of them in the place of another sequence.
constexpr int64_t kSequences = 4, kFirst = 9, kTokens = 18;
HostTensor CuSeqlens(bool second) { return second ? Ints({0, 2, 2, 6, 9}) : Ints({0, 1, 6, 6, 9}); }
HostTensor Positions() {
  return Ints({0, 0, 1, 2, 3, 4, 0, 1, 2, /*second*/ 1, 2, 0, 1, 2, 3, 0, 1, 2});
}

// Calls body(begin, end) for the rows of either call.
template <typename Body>
void InTwoCalls(const Body& body) {
  body(0, kFirst);
  body(kFirst, kTokens);
}

TEST_P(CudaOpTest, ConvolutionsThatGoOn) {
  struct Case {
    int64_t groups, channels, taps;
    bool bias;
  };
  for (const Case& c :
       {Case{1, 1, 2, true}, Case{2, 7, 4, true}, Case{1, 300, 3, false}, Case{3, 20, 9, true}}) {
    HostTensor first = CuSeqlens(false), second = CuSeqlens(true), position = Positions(),
               x = Normal({kTokens, c.groups, c.channels + 3}, 1),
               w = Normal({c.groups, c.channels, c.taps}, 2), b = Normal({c.groups, c.channels}, 3),
               recent = Normal({kSequences, c.taps - 1, c.groups, c.channels}, 4),
               y = Poisoned({kTokens, c.groups, c.channels});
    ExpectAgreement({&first, &second, &position, &x, &w, &b, &recent, &y}, SumTolerance(dtype()),
                    [&](const Stream& stream, At at) {
                      InTwoCalls([&](int64_t begin, int64_t end) {
                        const Tensor rows = at[3].Slice(0, begin, end).Slice(2, 1, 1 + c.channels);
                        CausalConvContinue(stream, at[begin == 0 ? 0 : 1],
                                           at[2].Slice(0, begin, end),
                                           {rows, at[4], c.bias ? at[5] : Tensor()}, at[6],
                                           at[7].Slice(0, begin, end));
                      });
                    });
  }
}

TEST_P(CudaOpTest, StatesOfMambaThatGoOn) {
  struct Case {
    int64_t groups, heads, channels, state;  // heads of a group
  };
  for (const Case& c : {Case{1, 1, 1, 1}, Case{2, 3, 5, 7}, Case{1, 2, 96, 16}}) {
    const int64_t heads = c.groups * c.heads, b = c.heads * c.channels, width = b + 2 * c.state;
    HostTensor first = CuSeqlens(false), second = CuSeqlens(true), position = Positions(),
               packed = Normal({kTokens, c.groups, width + c.heads + 1}, 1),
               parameters = Normal({3, heads}, 2),
               states = HostTensor::Normal({kSequences, heads, c.state, c.channels}, kF32, 3),
               y = Poisoned({kTokens, c.groups, c.heads, c.channels});
    ExpectAgreement({&first, &second, &position, &packed, &parameters, &states, &y},
                    SumTolerance(dtype()), [&](const Stream& stream, At at) {
                      InTwoCalls([&](int64_t begin, int64_t end) {
                        const Tensor rows = at[3].Slice(0, begin, end);
                        StateSpaceInputs in;
                        in.x_TGRP = rows.Slice(2, 0, b).SplitDim(2, c.channels);
                        in.b_TGN = rows.Slice(2, b, b + c.state);
                        in.c_TGN = rows.Slice(2, b + c.state, width);
                        in.step_TGR = rows.Slice(2, width, width + c.heads);
                        in.step_bias_H = at[4].Select(0, 0);
                        in.a_log_H = at[4].Select(0, 1);
                        in.skip_H = at[4].Select(0, 2);
                        StateSpaceContinue(stream, at[begin == 0 ? 0 : 1],
                                           at[2].Slice(0, begin, end), in, at[5],
                                           at[6].Slice(0, begin, end));
                      });
                    });
  }
}

TEST_P(CudaOpTest, StatesOfTheGatedDeltaRuleThatGoOn) {
  struct Case {
    int64_t groups, heads, key, value;  // value heads of a group
  };
  for (const Case& c : {Case{1, 1, 1, 1}, Case{2, 3, 5, 7}, Case{1, 2, 16, 96}}) {
    const int64_t heads = c.groups * c.heads, v = 2 * c.key, beta = v + c.heads * c.value;
    HostTensor first = CuSeqlens(false), second = CuSeqlens(true), position = Positions(),
               packed = Normal({kTokens, c.groups, beta + 2 * c.heads + 1}, 1),
               parameters = Normal({2, heads}, 2),
               states = HostTensor::Normal({kSequences, heads, c.key, c.value}, kF32, 3),
               out = Poisoned({kTokens, c.groups, c.heads, c.value});
    ExpectAgreement({&first, &second, &position, &packed, &parameters, &states, &out},
                    SumTolerance(dtype()), [&](const Stream& stream, At at) {
                      InTwoCalls([&](int64_t begin, int64_t end) {
                        const Tensor rows = at[3].Slice(0, begin, end);
                        GatedDeltaInputs in;
                        in.q_TGK = rows.Slice(2, 0, c.key);
                        in.k_TGK = rows.Slice(2, c.key, v);
                        in.v_TGRE = rows.Slice(2, v, beta).SplitDim(2, c.value);
                        in.beta_TGR = rows.Slice(2, beta, beta + c.heads);
                        in.decay_TGR = rows.Slice(2, beta + c.heads, beta + 2 * c.heads);
                        in.bias_H = at[4].Select(0, 0);
                        in.a_log_H = at[4].Select(0, 1);
                        GatedDeltaContinue(stream, at[begin == 0 ? 0 : 1],
                                           at[2].Slice(0, begin, end), in, at[5],
                                           at[6].Slice(0, begin, end));
                      });
                    });
  }
}

}  // namespace
}  // namespace megatron::ops
