#include "megatron/ops/state_space.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/portions.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

struct Sizes {
  std::vector<int> lengths;
  int64_t groups = 2, heads = 3, channels = 5, state = 7;  // heads of a group

  int64_t tokens() const {
    int64_t sum = 0;
    for (int length : lengths) sum += length;
    return sum;
  }
};

// The tensors of a call, with columns between those of x, B, C and steps, as in one projection.
class Problem {
 public:
  Problem(const Sizes& sizes, DType dtype, uint32_t seed = 1)
      : sizes_(sizes),
        dtype_(dtype),
        packed_(HostTensor::Normal({sizes.tokens(), sizes.groups, Width()}, dtype, seed)),
        gradients_({sizes.tokens(), sizes.groups, Width()}, dtype),
        parameters_(HostTensor::Normal({3, sizes.groups * sizes.heads}, dtype, seed + 1)),
        parameter_gradients_({3, sizes.groups * sizes.heads}, DType::kFloat32),
        dy_(HostTensor::Normal(Outputs(), dtype, seed + 2)),
        y_(Outputs(), dtype),
        cu_seqlens_({static_cast<int64_t>(sizes.lengths.size()) + 1}, DType::kInt32) {
    int32_t* const begins = cu_seqlens_.tensor().data<int32_t>();
    for (size_t i = 0; i < sizes.lengths.size(); ++i) begins[i + 1] = begins[i] + sizes.lengths[i];
  }

  Shape Outputs() const { return {sizes_.tokens(), sizes_.groups, sizes_.heads, sizes_.channels}; }
  StateSpaceInputs Inputs() const { return Parts(packed_, parameters_); }
  StateSpaceInputs Gradients() const { return Parts(gradients_, parameter_gradients_); }

  void Forward(const Stream& stream) {
    const HostTensor states(StateSpaceStates(Inputs()), DType::kFloat32);
    StateSpaceForward(stream, cu_seqlens_, Inputs(), states, y_);
  }
  // Computes y in portions of up to `most` tokens of each sequence. The states are not zero before.
  void Continue(const Stream& stream, int most) {
    const int64_t sequences = static_cast<int64_t>(sizes_.lengths.size());
    const HostTensor state =
        HostTensor::Normal({sequences, sizes_.groups * sizes_.heads, sizes_.state, sizes_.channels},
                           DType::kFloat32, 9);
    ForEachPortions(
        sizes_.lengths, most,
        [&](const std::vector<int64_t>& rows, const Tensor& cu_seqlens, const Tensor& position) {
          const HostTensor packed = RowsOf(packed_, rows), y = RowsOf(y_, rows);
          StateSpaceContinue(stream, cu_seqlens, position, Parts(packed, parameters_), state, y);
          PutRows(y, rows, y_);
        });
  }
  void Backward(const Stream& stream) {
    const HostTensor states(StateSpaceStates(Inputs()), DType::kFloat32),
        state_gradients(StateSpaceStates(Inputs()), DType::kFloat32),
        sums(StateSpaceSums(Inputs()), DType::kFloat32);
    StateSpaceBackward(stream, cu_seqlens_, Inputs(), dy_, {states, state_gradients, sums},
                       Gradients());
  }

  // The formula, a token at a time in double, and its gradients.
  void Reference() {
    want_y_.assign(y_.numel(), 0);
    want_gradients_.assign(packed_.numel(), 0);
    want_parameters_.assign(parameters_.numel(), 0);
    for (int64_t head = 0; head < sizes_.groups * sizes_.heads; ++head) {
      int64_t begin = 0;
      for (int length : sizes_.lengths) {
        ReferenceOf(head, begin, begin + length);
        begin += length;
      }
    }
  }

  HostTensor& packed() { return packed_; }
  HostTensor& parameters() { return parameters_; }
  const HostTensor& y() const { return y_; }
  const HostTensor& dy() const { return dy_; }
  const HostTensor& gradients() const { return gradients_; }
  const HostTensor& parameter_gradients() const { return parameter_gradients_; }
  const std::vector<double>& want_y() const { return want_y_; }
  const std::vector<double>& want_gradients() const { return want_gradients_; }
  const std::vector<double>& want_parameters() const { return want_parameters_; }

 private:
  // Each group has [x of its heads, B, C, steps] and a column that nobody reads.
  int64_t ChannelsAt(int64_t head) const { return head * sizes_.channels; }
  int64_t BAt() const { return sizes_.heads * sizes_.channels; }
  int64_t CAt() const { return BAt() + sizes_.state; }
  int64_t StepAt() const { return CAt() + sizes_.state; }
  int64_t Width() const { return StepAt() + sizes_.heads + 1; }

  StateSpaceInputs Parts(const HostTensor& packed, const HostTensor& parameters) const {
    const Tensor& all = packed.tensor();
    StateSpaceInputs in;
    in.x_TGRP = all.Slice(2, 0, BAt()).SplitDim(2, sizes_.channels);
    in.b_TGN = all.Slice(2, BAt(), CAt());
    in.c_TGN = all.Slice(2, CAt(), StepAt());
    in.step_TGR = all.Slice(2, StepAt(), StepAt() + sizes_.heads);
    in.step_bias_H = parameters.tensor().Select(0, 0);
    in.a_log_H = parameters.tensor().Select(0, 1);
    in.skip_H = parameters.tensor().Select(0, 2);
    return in;
  }

  void ReferenceOf(int64_t head, int64_t begin, int64_t end) {
    const int64_t heads = sizes_.groups * sizes_.heads, p = sizes_.channels, n = sizes_.state;
    const int64_t group = head / sizes_.heads, of_group = head % sizes_.heads;
    const double bias = parameters_.Get(head), rate = std::exp(parameters_.Get(heads + head)),
                 skip = parameters_.Get(2 * heads + head);
    const auto at = [&](int64_t t) { return (t * sizes_.groups + group) * Width(); };
    const auto x = [&](int64_t t, int64_t d) {
      return packed_.Get(at(t) + ChannelsAt(of_group) + d);
    };
    const auto y_at = [&](int64_t t, int64_t d) { return (t * heads + head) * p + d; };
    std::vector<std::vector<double>> states = {std::vector<double>(n * p)};  // in front of each
    std::vector<double> step, decay, raw;
    for (int64_t t = begin; t < end; ++t) {
      raw.push_back(packed_.Get(at(t) + StepAt() + of_group) + bias);
      step.push_back(std::log1p(std::exp(raw.back())));
      decay.push_back(std::exp(-step.back() * rate));
      std::vector<double> state = states.back();
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t d = 0; d < p; ++d) {
          double& s = state[i * p + d];
          s = decay.back() * s + step.back() * packed_.Get(at(t) + BAt() + i) * x(t, d);
          want_y_[y_at(t, d)] += s * packed_.Get(at(t) + CAt() + i);
        }
      }
      for (int64_t d = 0; d < p; ++d) want_y_[y_at(t, d)] += skip * x(t, d);
      states.push_back(state);
    }
    std::vector<double> gradient(n * p);  // of the state behind a token
    for (int64_t t = end - 1; t >= begin; --t) {
      double dstep = 0, ddecay = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t d = 0; d < p; ++d) {
          double& g = gradient[i * p + d];
          const double dy = dy_.Get(y_at(t, d)), b = packed_.Get(at(t) + BAt() + i);
          g += packed_.Get(at(t) + CAt() + i) * dy;
          want_gradients_[at(t) + CAt() + i] += states[t - begin + 1][i * p + d] * dy;
          want_gradients_[at(t) + BAt() + i] += step[t - begin] * g * x(t, d);
          want_gradients_[at(t) + ChannelsAt(of_group) + d] += step[t - begin] * g * b;
          dstep += g * b * x(t, d);
          ddecay += g * states[t - begin][i * p + d];
          g *= decay[t - begin];
        }
      }
      ddecay *= decay[t - begin];
      dstep -= ddecay * rate;
      const double draw = dstep / (1 + std::exp(-raw[t - begin]));
      want_gradients_[at(t) + StepAt() + of_group] = draw;
      want_parameters_[head] += draw;
      want_parameters_[heads + head] -= ddecay * step[t - begin] * rate;
      for (int64_t d = 0; d < p; ++d) {
        want_gradients_[at(t) + ChannelsAt(of_group) + d] += skip * dy_.Get(y_at(t, d));
        want_parameters_[2 * heads + head] += dy_.Get(y_at(t, d)) * x(t, d);
      }
    }
  }

  Sizes sizes_;
  DType dtype_;
  HostTensor packed_, gradients_, parameters_, parameter_gradients_, dy_, y_, cu_seqlens_;
  std::vector<double> want_y_, want_gradients_, want_parameters_;
};

class StateSpaceTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
  const Stream stream_ = Stream::Cpu(&pool_);
};

// Sequences of a token, of whole chunks, of parts of some, and without tokens.
const std::vector<int> kLengths = {1, 200, 0, 64, 5, 3, 128, 65};

std::vector<Sizes> AllSizes() {
  return {{kLengths},
          {{130}, 1, 1, 1, 1},
          {{67, 2}, 1, 2, 16, 32},
          {{100}, 3, 1, 33, 20},
          {{66, 129}, 1, 19, 2, 3},       // more heads than go through a sequence together
          {{70, 3, 129}, 2, 9, 33, 20}};  // and several blocks of them in backward
}

TEST_P(StateSpaceTest, IsTheRecurrence) {
  for (const Sizes& sizes : AllSizes()) {
    Problem problem(sizes, GetParam());
    problem.Reference();
    problem.Forward(stream_);
    ExpectNear(problem.y(), problem.want_y(), 2 * OpTolerance(GetParam()));
  }
}

TEST_P(StateSpaceTest, SequencesInPortionsAreTheRecurrence) {
  for (const Sizes& sizes : AllSizes()) {
    Problem problem(sizes, GetParam());
    problem.Reference();
    problem.Continue(stream_, /*most=*/40);
    ExpectNear(problem.y(), problem.want_y(), 2 * OpTolerance(GetParam()));
  }
}

TEST_P(StateSpaceTest, GradientsAreThoseOfTheRecurrence) {
  for (const Sizes& sizes : AllSizes()) {
    Problem problem(sizes, GetParam());
    problem.Reference();
    problem.Backward(stream_);
    ExpectNear(problem.gradients(), problem.want_gradients(), 4 * OpTolerance(GetParam()));
    // These are sums of hundreds of terms of both signs.
    ExpectNear(problem.parameter_gradients(), problem.want_parameters(), 2e-5);
  }
}

TEST_P(StateSpaceTest, ParameterGradientsAreAdded) {
  Problem once({{70, 3}}, GetParam()), twice({{70, 3}}, GetParam());
  once.Backward(stream_);
  twice.Backward(stream_);
  twice.Backward(stream_);
  std::vector<double> want = once.parameter_gradients().Values();
  for (double& value : want) value *= 2;
  ExpectNear(twice.parameter_gradients(), want, 1e-6);
  EXPECT_EQ(twice.gradients().Bytes(), once.gradients().Bytes());
}

INSTANTIATE_TEST_SUITE_P(DTypes, StateSpaceTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST(StateSpaceBitsTest, GradientsAreThoseOfFiniteDifferences) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  Problem problem({{3, 66, 1}, 1, 2, 3, 4}, DType::kFloat32);
  problem.Backward(stream);
  const auto loss = [&] {
    problem.Forward(stream);
    return Dot(problem.y(), problem.dy());
  };
  ExpectNear(problem.gradients(), FiniteDifference(&problem.packed(), loss),
             2 * kFiniteDifferenceTolerance);
  ExpectNear(problem.parameter_gradients(), FiniteDifference(&problem.parameters(), loss),
             2 * kFiniteDifferenceTolerance);
}

// The bits of a sequence of 150 tokens, computed by itself, among others, and by more threads.
TEST(StateSpaceBitsTest, ASequenceDoesNotDependOnItsCompanyOrOnThreads) {
  ThreadPool one(1), three(3);
  for (Sizes sizes : {Sizes{{150}}, Sizes{{150}, 2, 9, 33, 20}}) {
    Problem alone(sizes, DType::kFloat32), threads(sizes, DType::kFloat32);
    alone.Forward(Stream::Cpu(&one));
    alone.Backward(Stream::Cpu(&one));
    threads.Forward(Stream::Cpu(&three));
    threads.Backward(Stream::Cpu(&three));
    EXPECT_EQ(alone.y().Bytes(), threads.y().Bytes());
    EXPECT_EQ(alone.gradients().Bytes(), threads.gradients().Bytes());
    EXPECT_EQ(alone.parameter_gradients().Bytes(), threads.parameter_gradients().Bytes());

    sizes.lengths = {37, 150, 64};
    Problem among(sizes, DType::kFloat32);
    const auto put = [](const HostTensor& from, const HostTensor& to) {
      const int64_t row = from.numel() / 150;
      for (int64_t i = 0; i < from.numel(); ++i)
        to.tensor().data<float>()[37 * row + i] = from.tensor().data<float>()[i];
    };
    put(alone.packed(), among.packed());
    put(alone.dy(), among.dy());
    among.Forward(Stream::Cpu(&three));
    among.Backward(Stream::Cpu(&three));
    const auto expect_same = [](const HostTensor& whole, const HostTensor& part) {
      const std::vector<char> all = whole.Bytes(), want = part.Bytes();
      const auto from = all.begin() + static_cast<int64_t>(want.size()) / 150 * 37;
      EXPECT_TRUE(std::equal(want.begin(), want.end(), from));
    };
    expect_same(among.y(), alone.y());
    expect_same(among.gradients(), alone.gradients());
  }
}

// Neither do they depend on how it is cut into portions.
TEST(StateSpaceBitsTest, PortionsDoNotDependOnTheirSizeOrCompany) {
  ThreadPool one(1), three(3);
  Problem singly({kLengths}, DType::kFloat32), in_parts({kLengths}, DType::kFloat32);
  singly.Continue(Stream::Cpu(&one), 1);
  in_parts.Continue(Stream::Cpu(&three), 200);
  EXPECT_EQ(singly.y().Bytes(), in_parts.y().Bytes());
  Problem alone({{150}}, DType::kFloat32), among({{150, 3}}, DType::kFloat32);
  alone.Continue(Stream::Cpu(&one), 64);
  among.Continue(Stream::Cpu(&three), 1000);
  const std::vector<char> all = among.y().Bytes(), want = alone.y().Bytes();
  // The first rows of both have the same inputs.
  EXPECT_TRUE(std::equal(want.begin(), want.end(), all.begin()));
}

// A decay that underflows, and steps that are too small to change 1.
TEST(StateSpaceBitsTest, ExtremeStepsStayFinite) {
  ThreadPool pool(1);
  for (double raw : {-60.0, 40.0}) {
    Problem problem({{140}, 1, 1, 2, 2}, DType::kFloat32);
    problem.parameters().Set(0, raw);
    problem.parameters().Set(1, 3);
    problem.Reference();
    problem.Forward(Stream::Cpu(&pool));
    problem.Backward(Stream::Cpu(&pool));
    ExpectNear(problem.y(), problem.want_y(), 1e-5);
    ExpectNear(problem.gradients(), problem.want_gradients(), 1e-4);
  }
}

// A decay of exp(-92) is not a normal number. The thread's own arithmetic keeps such numbers.
TEST(StateSpaceBitsTest, DecaysBelowTheLeastNormalNumberAreZero) {
  ThreadPool pool(1);
  Problem problem({{3}, 1, 1, 1, 1}, DType::kFloat32);
  // Rows of x, B, C, the raw step and a column that nobody reads.
  const std::vector<double> rows = {1e20, 1, 1, 46, 0, 0, 1, 1, 46, 0, 0, 1, 1, 46, 0};
  for (size_t i = 0; i < rows.size(); ++i) problem.packed().Set(i, rows[i]);
  for (int i = 0; i < 3; ++i) problem.parameters().Set(i, 0);
  problem.Forward(Stream::Cpu(&pool));
  problem.Backward(Stream::Cpu(&pool));
  EXPECT_NEAR(problem.y().Get(1), 1e20 * 46 * std::exp(-46), 1e-3);
  EXPECT_EQ(problem.y().Get(2), 0);
  const volatile float tiny = 1e-40f;
  EXPECT_GT(tiny * 0.5f, 0);
}

TEST(StateSpaceBitsTest, MemoryGrowsLinearly) {
  ThreadPool pool(1);
  const auto floats = [](int length) {
    return StateSpaceStates(Problem({{length}}, DType::kFloat32).Inputs()).numel();
  };
  EXPECT_EQ(floats(640), 10 * floats(64));
  EXPECT_EQ(floats(64), 6 * 16 * 16);
}

}  // namespace
}  // namespace megatron::ops
