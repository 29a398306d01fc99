// The tests of kernels_test.cc for the ops of layers with a state: causal convolutions, gated
// norms, the recurrence of Mamba-2 and the gated delta rule.
//
// Scratch memory holds NaN before an op, and becomes zero before operands are compared, since a
// device writes there what it likes.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cuda/cuda_op_test.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/state_space.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

INSTANTIATE_TEST_SUITE_P(DTypes, CudaOpTest,
                         ::testing::Values(kF32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

// Sequences of a token, of whole chunks, of parts of some, and without tokens.
const std::vector<int64_t> kLengths = {1, 130, 0, 64, 5, 3, 65};

HostTensor CuSeqlens(const std::vector<int64_t>& lengths) {
  std::vector<double> begins = {0};
  for (int64_t length : lengths) begins.push_back(begins.back() + static_cast<double>(length));
  return Ints(begins);
}

int64_t TokensOf(const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (int64_t length : lengths) sum += length;
  return sum;
}

HostTensor Scratch(const Shape& shape) {
  HostTensor x(shape, kF32);
  for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, std::numeric_limits<double>::quiet_NaN());
  return x;
}

// The CPU's results and those of kernels are each that far from the recurrence, at most
// (state_space_test.cc, gated_delta_test.cc).
double RecurrenceTolerance(DType dtype) { return std::max(SumTolerance(dtype), 4e-5); }

// Two sequences of the same tokens, which begin at different places of chunks' rows.
struct Twins {
  static constexpr int64_t kTokens = 100, kFirst = 37, kSecond = kFirst + kTokens + 20;
  static std::vector<int64_t> Lengths() { return {kFirst, kTokens, 20, kTokens}; }

  // Sets the rows of the second to those of the first.
  static void Repeat(HostTensor* x) {
    const int64_t row = x->numel() / x->tensor().dim(0);
    for (int64_t i = 0; i < kTokens * row; ++i) x->Set(kSecond * row + i, x->Get(kFirst * row + i));
  }
  // Expects that both have the same bits.
  static void ExpectSame(const HostTensor& x) {
    const std::vector<char> bytes = x.Bytes();
    const auto row = static_cast<int64_t>(bytes.size()) / x.tensor().dim(0);
    const auto first = bytes.begin() + kFirst * row, second = bytes.begin() + kSecond * row;
    EXPECT_TRUE(std::equal(first, first + kTokens * row, second)) << x.tensor();
  }
};

TEST_P(CudaOpTest, ConvolutionsAndTheirGradients) {
  struct Case {
    int64_t groups, channels, taps;
    bool bias;
  };
  for (const Case& c :
       {Case{1, 1, 1, true}, Case{2, 7, 4, true}, Case{1, 300, 4, false}, Case{3, 20, 9, true}}) {
    const int64_t tokens = TokensOf(kLengths);
    const Shape rows = {tokens, c.groups, c.channels}, wide = {tokens, c.groups, c.channels + 3};
    HostTensor cu_seqlens = CuSeqlens(kLengths), x = Normal(wide, 1),
               w = Normal({c.groups, c.channels, c.taps}, 2), b = Normal({c.groups, c.channels}, 3),
               y = Poisoned(rows), dy = Normal(rows, 4), dx = Normal(wide, 5),
               dw = HostTensor::Normal({c.groups, c.channels, c.taps}, kF32, 6),
               db = HostTensor::Normal({c.groups, c.channels}, kF32, 7);
    ExpectAgreement({&cu_seqlens, &x, &w, &b, &y, &dy, &dx, &dw, &db}, SumTolerance(dtype()),
                    [&](const Stream& stream, At at) {
                      const auto part = [&](const Tensor& all) {
                        return all.Slice(2, 1, 1 + c.channels);
                      };
                      const CausalConvInputs in = {part(at[1]), at[2], c.bias ? at[3] : Tensor()};
                      CausalConvForward(stream, at[0], in, at[4]);
                      CausalConvBackward(stream, at[0], in, at[5],
                                         {part(at[6]), at[7], c.bias ? at[8] : Tensor()});
                    });
  }
}

TEST_P(CudaOpTest, GatedNormsAndTheirGradients) {
  for (const bool before_gate : {false, true}) {
    for (const int64_t width : {1, 20, 96}) {
      for (const bool shared : {false, true}) {
        const Shape rows = {43, 2, 3, width};
        HostTensor x = Normal(rows, 1), z = Normal({43, 2, 3 * width + 5}, 2),
                   gamma = Normal({shared ? 1 : 6, width}, 3), y = Poisoned(rows),
                   dy = Normal(rows, 4), dx = Poisoned(rows),
                   dz = Normal({43, 2, 3 * width + 5}, 5),
                   dgamma = HostTensor::Normal({shared ? 1 : 6, width}, kF32, 6);
        ExpectAgreement({&x, &z, &gamma, &y, &dy, &dx, &dz, &dgamma}, SumTolerance(dtype()),
                        [&](const Stream& stream, At at) {
                          const auto gates = [&](const Tensor& all) {
                            return all.Slice(2, 2, 2 + 3 * width).SplitDim(2, width);
                          };
                          const GatedNorm norm = {1e-2f, before_gate};
                          const GatedNormInputs in = {at[0], gates(at[1]), at[2]};
                          GatedNormForward(stream, norm, in, at[3]);
                          GatedNormBackward(stream, norm, in, at[4], {at[5], gates(at[6]), at[7]});
                          // The gradient of x may be the memory of that of y.
                          GatedNormBackward(stream, norm, in, at[4], {at[4], gates(at[6]), at[7]});
                        });
      }
    }
  }
}

// Rows are normalized in whole, with the sums of two ranks that have as much of them.
TEST_P(CudaOpTest, GatedNormsOfWholeRowsAndTheirGradients) {
  for (const bool before_gate : {false, true}) {
    for (const int64_t width : {1, 20, 96}) {
      const Shape rows = {43, 3, width};
      HostTensor x = Normal(rows, 1), z = Normal({43, 3, width + 5}, 2),
                 gamma = Normal({3, width}, 3), y = Poisoned(rows), dy = Normal(rows, 4),
                 dz = Normal({43, 3, width + 5}, 5),
                 dgamma = HostTensor::Normal({3, width}, kF32, 6);
      HostTensor squares = HostTensor::Normal({43}, kF32, 7),
                 products = HostTensor::Normal({43}, kF32, 8);
      ExpectAgreement({&x, &z, &gamma, &y, &dy, &dz, &dgamma, &squares, &products},
                      SumTolerance(dtype()), [&](const Stream& stream, At at) {
                        const auto gates = [&](const Tensor& all) {
                          return all.Slice(2, 2, 2 + width);
                        };
                        GatedNorm norm = {1e-2f, before_gate};
                        const GatedNormInputs in = {at[0], gates(at[1]), at[2]};
                        GatedNormSums(stream, norm, in, at[7]);
                        GatedNormGradientSums(stream, norm, in, at[4], at[8]);
                        norm.squares_T = at[7];
                        norm.products_T = at[8];
                        norm.columns = 2 * 3 * width;
                        GatedNormForward(stream, norm, in, at[3]);
                        GatedNormBackward(stream, norm, in, at[4], {at[4], gates(at[5]), at[6]});
                      });
    }
  }
}

struct StateSpaceSizes {
  std::vector<int64_t> lengths;
  int64_t groups = 2, heads = 2, channels = 5, state = 7;  // heads of a group
};

// The tensors of both passes, whose parts are columns of one projection with a column between them
// that nobody reads.
struct StateSpaceOperands {
  const StateSpaceSizes sizes;
  HostTensor cu_seqlens, packed, parameters, y, dy, gradients, parameter_gradients, states,
      state_gradients, sums;

  StateSpaceOperands(const StateSpaceSizes& all_sizes, DType dtype)
      : sizes(all_sizes),
        cu_seqlens(CuSeqlens(sizes.lengths)),
        packed(HostTensor::Normal(Packed(), dtype, 1)),
        parameters(HostTensor::Normal({3, Heads()}, dtype, 2)),
        y(Outputs(), dtype),
        dy(HostTensor::Normal(Outputs(), dtype, 3)),
        gradients(HostTensor::Normal(Packed(), dtype, 4)),
        parameter_gradients(HostTensor::Normal({3, Heads()}, kF32, 5)),
        states(Scratch(StateSpaceStates(Parts(packed, parameters)))),
        state_gradients(Scratch(StateSpaceStates(Parts(packed, parameters)))),
        sums(Scratch(StateSpaceSums(Parts(packed, parameters)))) {}

  std::vector<HostTensor*> All() {
    return {&cu_seqlens,          &packed, &parameters,      &y,   &dy, &gradients,
            &parameter_gradients, &states, &state_gradients, &sums};
  }
  // Both passes on the tensors of All().
  void Run(const Stream& stream, At at) const {
    const StateSpaceInputs in = Parts(at[1], at[2]);
    StateSpaceForward(stream, at[0], in, at[7], at[3]);
    StateSpaceBackward(stream, at[0], in, at[4], {at[7], at[8], at[9]}, Parts(at[5], at[6]));
    for (int i : {7, 8, 9}) Zero(stream, at[i]);
  }

  int64_t Heads() const { return sizes.groups * sizes.heads; }
  int64_t BAt() const { return sizes.heads * sizes.channels; }
  int64_t Width() const { return BAt() + 2 * sizes.state + sizes.heads + 1; }
  Shape Packed() const { return {TokensOf(sizes.lengths), sizes.groups, Width()}; }
  Shape Outputs() const {
    return {TokensOf(sizes.lengths), sizes.groups, sizes.heads, sizes.channels};
  }
  StateSpaceInputs Parts(const Tensor& all, const Tensor& of_heads) const {
    const int64_t c = BAt() + sizes.state, step = c + sizes.state + 1;
    return {all.Slice(2, 0, BAt()).SplitDim(2, sizes.channels),
            all.Slice(2, BAt(), c),
            all.Slice(2, c, c + sizes.state),
            all.Slice(2, step, step + sizes.heads),
            of_heads.Select(0, 0),
            of_heads.Select(0, 1),
            of_heads.Select(0, 2)};
  }
};

// The last sizes take several tiles of channels and of the state.
TEST_P(CudaOpTest, StateSpacesAndTheirGradients) {
  for (const StateSpaceSizes& sizes :
       {StateSpaceSizes{kLengths}, StateSpaceSizes{{130}, 1, 1, 1, 1},
        StateSpaceSizes{{67, 2}, 1, 2, 16, 32}, StateSpaceSizes{{140}, 1, 1, 66, 70}}) {
    StateSpaceOperands operands(sizes, dtype());
    ExpectAgreement(operands.All(), RecurrenceTolerance(dtype()),
                    [&](const Stream& stream, At at) { operands.Run(stream, at); });
  }
}

// A decay that underflows, and steps that are too small to change 1.
TEST_F(AgreementTest, StateSpacesWithExtremeSteps) {
  for (const double raw : {-60.0, 40.0}) {
    StateSpaceOperands operands({{140}, 1, 1, 2, 2}, kF32);
    operands.parameters.Set(0, raw);
    operands.parameters.Set(1, 3);
    ExpectAgreement(operands.All(), 1e-4,
                    [&](const Stream& stream, At at) { operands.Run(stream, at); });
  }
}

TEST_P(CudaOpTest, AStateSpaceDoesNotDependOnItsCompany) {
  StateSpaceOperands operands({Twins::Lengths(), 1, 2, 8, 16}, dtype());
  for (HostTensor* x : {&operands.packed, &operands.dy, &operands.gradients}) Twins::Repeat(x);
  ExpectAgreement(operands.All(), RecurrenceTolerance(dtype()),
                  [&](const Stream& stream, At at) { operands.Run(stream, at); });
  // The operands now have what the device computed.
  Twins::ExpectSame(operands.y);
  Twins::ExpectSame(operands.gradients);
}

struct DeltaSizes {
  std::vector<int64_t> lengths;
  int64_t groups = 2, heads = 2, key = 5, value = 7;  // heads of a group
};

struct DeltaOperands {
  const DeltaSizes sizes;
  HostTensor cu_seqlens, packed, parameters, out, dout, gradients, parameter_gradients, states,
      keys, values, state_gradients, value_gradients, sums;

  DeltaOperands(const DeltaSizes& all_sizes, DType dtype)
      : sizes(all_sizes),
        cu_seqlens(CuSeqlens(sizes.lengths)),
        packed(HostTensor::Normal(Packed(), dtype, 1)),
        parameters(HostTensor::Normal({2, Heads()}, dtype, 2)),
        out(Outputs(), dtype),
        dout(HostTensor::Normal(Outputs(), dtype, 3)),
        gradients(HostTensor::Normal(Packed(), dtype, 4)),
        parameter_gradients(HostTensor::Normal({2, Heads()}, kF32, 5)),
        states(Scratch(GatedDeltaStates(Parts(packed, parameters)))),
        keys(Scratch(GatedDeltaKeys(Parts(packed, parameters)))),
        values(Scratch(GatedDeltaValues(Parts(packed, parameters)))),
        state_gradients(Scratch(GatedDeltaStates(Parts(packed, parameters)))),
        value_gradients(Scratch(GatedDeltaValues(Parts(packed, parameters)))),
        sums(Scratch(GatedDeltaTokenSums(Parts(packed, parameters)))) {}

  std::vector<HostTensor*> All() {
    return {&cu_seqlens, &packed,    &parameters,          &out,
            &dout,       &gradients, &parameter_gradients, &states,
            &keys,       &values,    &state_gradients,     &value_gradients,
            &sums};
  }
  void Run(const Stream& stream, At at) const {
    const GatedDeltaInputs in = Parts(at[1], at[2]);
    GatedDeltaForward(stream, at[0], in, {at[7], at[8], at[9]}, at[3]);
    GatedDeltaBackward(stream, at[0], in, at[4], {at[7], at[8], at[9], at[10], at[11], at[12]},
                       Parts(at[5], at[6]));
    for (int i = 7; i < 13; ++i) Zero(stream, at[i]);
  }

  int64_t Heads() const { return sizes.groups * sizes.heads; }
  int64_t VAt() const { return 2 * sizes.key; }
  int64_t BetaAt() const { return VAt() + sizes.heads * sizes.value + 1; }
  int64_t Width() const { return BetaAt() + 2 * sizes.heads; }
  Shape Packed() const { return {TokensOf(sizes.lengths), sizes.groups, Width()}; }
  Shape Outputs() const {
    return {TokensOf(sizes.lengths), sizes.groups, sizes.heads, sizes.value};
  }
  GatedDeltaInputs Parts(const Tensor& all, const Tensor& of_heads) const {
    return {all.Slice(2, 0, sizes.key),
            all.Slice(2, sizes.key, VAt()),
            all.Slice(2, VAt(), BetaAt() - 1).SplitDim(2, sizes.value),
            all.Slice(2, BetaAt(), BetaAt() + sizes.heads),
            all.Slice(2, BetaAt() + sizes.heads, Width()),
            of_heads.Select(0, 0),
            of_heads.Select(0, 1)};
  }
};

// The last sizes take several tiles of keys and of values.
TEST_P(CudaOpTest, DeltaRulesAndTheirGradients) {
  for (const DeltaSizes& sizes :
       {DeltaSizes{kLengths}, DeltaSizes{{130}, 1, 1, 1, 1}, DeltaSizes{{67, 2}, 1, 2, 16, 32},
        DeltaSizes{{140}, 1, 1, 70, 66}}) {
    DeltaOperands operands(sizes, dtype());
    ExpectAgreement(operands.All(), RecurrenceTolerance(dtype()),
                    [&](const Stream& stream, At at) { operands.Run(stream, at); });
  }
}

TEST_P(CudaOpTest, ADeltaRuleDoesNotDependOnItsCompany) {
  DeltaOperands operands({Twins::Lengths(), 1, 2, 8, 16}, dtype());
  for (HostTensor* x : {&operands.packed, &operands.dout, &operands.gradients}) Twins::Repeat(x);
  ExpectAgreement(operands.All(), RecurrenceTolerance(dtype()),
                  [&](const Stream& stream, At at) { operands.Run(stream, at); });
  // The operands now have what the device computed.
  Twins::ExpectSame(operands.out);
  Twins::ExpectSame(operands.gradients);
}

}  // namespace
}  // namespace megatron::ops
