#include "megatron/ops/gated_delta.h"

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
  int64_t groups = 2, heads = 3, key = 5, value = 7;  // heads of a group

  int64_t tokens() const {
    int64_t sum = 0;
    for (int length : lengths) sum += length;
    return sum;
  }
};

using Vector = std::vector<double>;

double DotOf(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The tensors of a call, whose parts are columns of one projection.
class Problem {
 public:
  Problem(const Sizes& sizes, DType dtype, uint32_t seed = 1)
      : sizes_(sizes),
        packed_(HostTensor::Normal({sizes.tokens(), sizes.groups, Width()}, dtype, seed)),
        gradients_({sizes.tokens(), sizes.groups, Width()}, dtype),
        parameters_(HostTensor::Normal({2, Heads()}, dtype, seed + 1)),
        parameter_gradients_({2, Heads()}, DType::kFloat32),
        dout_(HostTensor::Normal(Outputs(), dtype, seed + 2)),
        out_(Outputs(), dtype),
        cu_seqlens_({static_cast<int64_t>(sizes.lengths.size()) + 1}, DType::kInt32) {
    int32_t* const begins = cu_seqlens_.tensor().data<int32_t>();
    for (size_t i = 0; i < sizes.lengths.size(); ++i) begins[i + 1] = begins[i] + sizes.lengths[i];
  }

  Shape Outputs() const { return {sizes_.tokens(), sizes_.groups, sizes_.heads, sizes_.value}; }
  GatedDeltaInputs Inputs() const { return Parts(packed_, parameters_); }
  GatedDeltaInputs Gradients() const { return Parts(gradients_, parameter_gradients_); }

  void Forward(const Stream& stream) {
    const HostTensor states(GatedDeltaStates(Inputs()), DType::kFloat32),
        keys(GatedDeltaKeys(Inputs()), DType::kFloat32),
        values(GatedDeltaValues(Inputs()), DType::kFloat32);
    GatedDeltaForward(stream, cu_seqlens_, Inputs(), {states, keys, values}, out_);
  }
  // Computes the output in portions of up to `most` tokens of each sequence. The states are not
  // zero before.
  void Continue(const Stream& stream, int most) {
    const int64_t sequences = static_cast<int64_t>(sizes_.lengths.size());
    const HostTensor state =
        HostTensor::Normal({sequences, Heads(), sizes_.key, sizes_.value}, DType::kFloat32, 9);
    ForEachPortions(
        sizes_.lengths, most,
        [&](const std::vector<int64_t>& rows, const Tensor& cu_seqlens, const Tensor& position) {
          const HostTensor packed = RowsOf(packed_, rows), out = RowsOf(out_, rows);
          GatedDeltaContinue(stream, cu_seqlens, position, Parts(packed, parameters_), state, out);
          PutRows(out, rows, out_);
        });
  }
  void Backward(const Stream& stream) {
    const HostTensor states(GatedDeltaStates(Inputs()), DType::kFloat32),
        keys(GatedDeltaKeys(Inputs()), DType::kFloat32),
        values(GatedDeltaValues(Inputs()), DType::kFloat32),
        state_gradients(GatedDeltaStates(Inputs()), DType::kFloat32),
        value_gradients(GatedDeltaValues(Inputs()), DType::kFloat32),
        sums(GatedDeltaTokenSums(Inputs()), DType::kFloat32);
    GatedDeltaBackward(stream, cu_seqlens_, Inputs(), dout_,
                       {states, keys, values, state_gradients, value_gradients, sums}, Gradients());
  }

  // The formula, a token at a time in double, and its gradients.
  void Reference() {
    want_out_.assign(out_.numel(), 0);
    want_gradients_.assign(packed_.numel(), 0);
    want_parameters_.assign(parameters_.numel(), 0);
    for (int64_t head = 0; head < Heads(); ++head) {
      int64_t begin = 0;
      for (int length : sizes_.lengths) {
        ReferenceOf(head, begin, begin + length);
        begin += length;
      }
    }
  }

  HostTensor& packed() { return packed_; }
  HostTensor& parameters() { return parameters_; }
  const HostTensor& out() const { return out_; }
  const HostTensor& dout() const { return dout_; }
  const HostTensor& gradients() const { return gradients_; }
  const HostTensor& parameter_gradients() const { return parameter_gradients_; }
  const Vector& want_out() const { return want_out_; }
  const Vector& want_gradients() const { return want_gradients_; }
  const Vector& want_parameters() const { return want_parameters_; }

 private:
  int64_t Heads() const { return sizes_.groups * sizes_.heads; }
  // Each group has [q, k, v of its heads, betas, decays] and a column that nobody reads.
  int64_t KeyAt() const { return sizes_.key; }
  int64_t ValueAt() const { return 2 * sizes_.key; }
  int64_t BetaAt() const { return ValueAt() + sizes_.heads * sizes_.value; }
  int64_t DecayAt() const { return BetaAt() + sizes_.heads; }
  int64_t Width() const { return DecayAt() + sizes_.heads + 1; }

  GatedDeltaInputs Parts(const HostTensor& packed, const HostTensor& parameters) const {
    const Tensor& all = packed.tensor();
    GatedDeltaInputs in;
    in.q_TGK = all.Slice(2, 0, KeyAt());
    in.k_TGK = all.Slice(2, KeyAt(), ValueAt());
    in.v_TGRE = all.Slice(2, ValueAt(), BetaAt()).SplitDim(2, sizes_.value);
    in.beta_TGR = all.Slice(2, BetaAt(), DecayAt());
    in.decay_TGR = all.Slice(2, DecayAt(), DecayAt() + sizes_.heads);
    in.bias_H = parameters.tensor().Select(0, 0);
    in.a_log_H = parameters.tensor().Select(0, 1);
    return in;
  }

  // A token's vector of a group.
  Vector Of(int64_t at, int64_t count) const {
    Vector x;
    for (int64_t i = 0; i < count; ++i) x.push_back(packed_.Get(at + i));
    return x;
  }
  static double NormOf(const Vector& x) { return std::sqrt(DotOf(x, x) + 1e-6); }
  static Vector Scaled(Vector x, double factor) {
    for (double& value : x) value *= factor;
    return x;
  }
  // Adds the gradient of x from that of scale x / norm.
  void AddUnnormalized(const Vector& x, double scale, const Vector& gradient, int64_t at) {
    const double norm = NormOf(x), along = DotOf(x, gradient) / (norm * norm);
    for (size_t i = 0; i < x.size(); ++i)
      want_gradients_[at + i] += scale / norm * (gradient[i] - along * x[i]);
  }

  void ReferenceOf(int64_t head, int64_t begin, int64_t end) {
    const int64_t group = head / sizes_.heads, of_group = head % sizes_.heads;
    const int64_t keys = sizes_.key, values = sizes_.value;
    const double bias = parameters_.Get(head), rate = std::exp(parameters_.Get(Heads() + head));
    const double scale = 1 / std::sqrt(static_cast<double>(keys));
    struct Token {
      int64_t at, out;
      Vector q, k, before, decayed, behind, error;
      double raw, step, decay, beta;
    };
    std::vector<Token> tokens;
    Vector state(keys * values);
    for (int64_t t = begin; t < end; ++t) {
      Token token;
      token.at = (t * sizes_.groups + group) * Width();
      token.out = (t * Heads() + head) * values;
      const Vector q = Of(token.at, keys), k = Of(token.at + KeyAt(), keys);
      token.q = Scaled(q, scale / NormOf(q));
      token.k = Scaled(k, 1 / NormOf(k));
      token.raw = packed_.Get(token.at + DecayAt() + of_group) + bias;
      token.step = std::log1p(std::exp(token.raw));
      token.decay = std::exp(-token.step * rate);
      token.beta = 1 / (1 + std::exp(-packed_.Get(token.at + BetaAt() + of_group)));
      token.before = state;
      state = Scaled(state, token.decay);
      token.decayed = state;
      token.error = Of(token.at + ValueAt() + of_group * values, values);
      for (int64_t e = 0; e < values; ++e)
        for (int64_t d = 0; d < keys; ++d)
          token.error[e] -= token.decayed[d * values + e] * token.k[d];
      for (int64_t d = 0; d < keys; ++d) {
        for (int64_t e = 0; e < values; ++e) {
          state[d * values + e] += token.beta * token.k[d] * token.error[e];
          want_out_[token.out + e] += state[d * values + e] * token.q[d];
        }
      }
      token.behind = state;
      tokens.push_back(token);
    }
    Vector gradient(keys * values);  // of the state behind a token
    for (int64_t t = end - begin - 1; t >= 0; --t) {
      const Token& token = tokens[t];
      Vector dq(keys), dk(keys), derror(values);
      double dbeta = 0, ddecay = 0;
      for (int64_t d = 0; d < keys; ++d) {
        for (int64_t e = 0; e < values; ++e) {
          const double dout = dout_.Get(token.out + e);
          double& g = gradient[d * values + e];
          g += token.q[d] * dout;
          dq[d] += token.behind[d * values + e] * dout;
          dbeta += token.k[d] * g * token.error[e];
          dk[d] += token.beta * g * token.error[e];
          derror[e] += token.beta * g * token.k[d];
        }
      }
      for (int64_t d = 0; d < keys; ++d) {
        for (int64_t e = 0; e < values; ++e) {
          double& g = gradient[d * values + e];
          dk[d] -= token.decayed[d * values + e] * derror[e];
          g -= token.k[d] * derror[e];
          ddecay += g * token.before[d * values + e];
          g *= token.decay;
        }
      }
      for (int64_t e = 0; e < values; ++e)
        want_gradients_[token.at + ValueAt() + of_group * values + e] += derror[e];
      AddUnnormalized(Of(token.at, keys), scale, dq, token.at);
      AddUnnormalized(Of(token.at + KeyAt(), keys), 1, dk, token.at + KeyAt());
      const double dlog = ddecay * token.decay;
      const double draw = -rate * dlog / (1 + std::exp(-token.raw));
      want_gradients_[token.at + DecayAt() + of_group] = draw;
      want_gradients_[token.at + BetaAt() + of_group] = dbeta * token.beta * (1 - token.beta);
      want_parameters_[head] += draw;
      want_parameters_[Heads() + head] -= token.step * rate * dlog;
    }
  }

  Sizes sizes_;
  HostTensor packed_, gradients_, parameters_, parameter_gradients_, dout_, out_, cu_seqlens_;
  Vector want_out_, want_gradients_, want_parameters_;
};

class GatedDeltaTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
  const Stream stream_ = Stream::Cpu(&pool_);
};

// Sequences of a token, of whole chunks, of parts of some, and without tokens.
std::vector<Sizes> AllSizes() {
  return {{{1, 200, 0, 64, 5, 3, 128, 65}},
          {{130}, 1, 1, 1, 1},
          {{67, 2}, 1, 2, 16, 32},
          {{100}, 3, 1, 33, 20}};
}

TEST_P(GatedDeltaTest, IsTheRecurrence) {
  for (const Sizes& sizes : AllSizes()) {
    Problem problem(sizes, GetParam());
    problem.Reference();
    problem.Forward(stream_);
    ExpectNear(problem.out(), problem.want_out(), 4 * OpTolerance(GetParam()));
  }
}

TEST_P(GatedDeltaTest, SequencesInPortionsAreTheRecurrence) {
  for (const Sizes& sizes : AllSizes()) {
    Problem problem(sizes, GetParam());
    problem.Reference();
    problem.Continue(stream_, /*most=*/40);
    ExpectNear(problem.out(), problem.want_out(), 4 * OpTolerance(GetParam()));
  }
}

TEST_P(GatedDeltaTest, GradientsAreThoseOfTheRecurrence) {
  for (const Sizes& sizes : AllSizes()) {
    Problem problem(sizes, GetParam());
    problem.Reference();
    problem.Backward(stream_);
    ExpectNear(problem.gradients(), problem.want_gradients(), 8 * OpTolerance(GetParam()));
    ExpectNear(problem.parameter_gradients(), problem.want_parameters(), 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, GatedDeltaTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST(GatedDeltaBitsTest, GradientsAreThoseOfFiniteDifferences) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  Problem problem({{3, 66, 1}, 1, 2, 3, 4}, DType::kFloat32);
  problem.Backward(stream);
  const auto loss = [&] {
    problem.Forward(stream);
    return Dot(problem.out(), problem.dout());
  };
  ExpectNear(problem.gradients(), FiniteDifference(&problem.packed(), loss),
             3 * kFiniteDifferenceTolerance);
  ExpectNear(problem.parameter_gradients(), FiniteDifference(&problem.parameters(), loss),
             3 * kFiniteDifferenceTolerance);
}

TEST(GatedDeltaBitsTest, ParameterGradientsAreAdded) {
  ThreadPool pool(1);
  Problem once({{70, 3}}, DType::kFloat32), twice({{70, 3}}, DType::kFloat32);
  once.Backward(Stream::Cpu(&pool));
  twice.Backward(Stream::Cpu(&pool));
  twice.Backward(Stream::Cpu(&pool));
  Vector want = once.parameter_gradients().Values();
  for (double& value : want) value *= 2;
  ExpectNear(twice.parameter_gradients(), want, 1e-6);
  EXPECT_EQ(twice.gradients().Bytes(), once.gradients().Bytes());
}

// The bits of a sequence of 150 tokens, computed by itself, among others, and by more threads.
TEST(GatedDeltaBitsTest, ASequenceDoesNotDependOnItsCompanyOrOnThreads) {
  ThreadPool one(1), three(3);
  Problem alone({{150}}, DType::kFloat32), threads({{150}}, DType::kFloat32);
  alone.Forward(Stream::Cpu(&one));
  alone.Backward(Stream::Cpu(&one));
  threads.Forward(Stream::Cpu(&three));
  threads.Backward(Stream::Cpu(&three));
  EXPECT_EQ(alone.out().Bytes(), threads.out().Bytes());
  EXPECT_EQ(alone.gradients().Bytes(), threads.gradients().Bytes());
  EXPECT_EQ(alone.parameter_gradients().Bytes(), threads.parameter_gradients().Bytes());

  Problem among({{37, 150, 64}}, DType::kFloat32);
  const auto put = [](const HostTensor& from, const HostTensor& to) {
    const int64_t row = from.numel() / 150;
    std::copy_n(from.tensor().data<float>(), from.numel(), to.tensor().data<float>() + 37 * row);
  };
  put(alone.packed(), among.packed());
  put(alone.dout(), among.dout());
  among.Forward(Stream::Cpu(&three));
  among.Backward(Stream::Cpu(&three));
  const auto expect_same = [](const HostTensor& whole, const HostTensor& part) {
    const std::vector<char> all = whole.Bytes(), want = part.Bytes();
    const auto from = all.begin() + static_cast<int64_t>(want.size()) / 150 * 37;
    EXPECT_TRUE(std::equal(want.begin(), want.end(), from));
  };
  expect_same(among.out(), alone.out());
  expect_same(among.gradients(), alone.gradients());
}

// Neither do they depend on how it is cut into portions.
TEST(GatedDeltaBitsTest, PortionsDoNotDependOnTheirSizeOrCompany) {
  ThreadPool one(1), three(3);
  const std::vector<int> lengths = {1, 200, 0, 64, 5};
  Problem singly({lengths}, DType::kFloat32), in_parts({lengths}, DType::kFloat32);
  singly.Continue(Stream::Cpu(&one), 1);
  in_parts.Continue(Stream::Cpu(&three), 200);
  EXPECT_EQ(singly.out().Bytes(), in_parts.out().Bytes());
  Problem alone({{150}}, DType::kFloat32), among({{150, 3}}, DType::kFloat32);
  alone.Continue(Stream::Cpu(&one), 64);
  among.Continue(Stream::Cpu(&three), 1000);
  const std::vector<char> all = among.out().Bytes(), want = alone.out().Bytes();
  // The first rows of both have the same inputs.
  EXPECT_TRUE(std::equal(want.begin(), want.end(), all.begin()));
}

// A decay of exp(-92) is not a normal number. The thread's own arithmetic keeps such numbers.
TEST(GatedDeltaBitsTest, DecaysBelowTheLeastNormalNumberAreZero) {
  ThreadPool pool(1);
  Problem problem({{3}, 1, 1, /*key=*/2, /*value=*/1}, DType::kFloat32);
  // Rows of the query, the key, the value, beta, the raw decay and a column that nobody reads.
  // Later keys are orthogonal to the first, so that nothing of it is overwritten.
  const Vector rows = {1, 0, 1, 0, 1e20, 0, 46, 0,  //
                       1, 0, 0, 1, 0,    0, 46, 0,  //
                       1, 0, 0, 1, 0,    0, 46, 0};
  for (size_t i = 0; i < rows.size(); ++i) problem.packed().Set(i, rows[i]);
  for (int i = 0; i < 2; ++i) problem.parameters().Set(i, 0);
  problem.Forward(Stream::Cpu(&pool));
  problem.Backward(Stream::Cpu(&pool));
  EXPECT_NEAR(problem.out().Get(1), 0.5e20 * std::exp(-46) / std::sqrt(2), 1e-3);
  EXPECT_EQ(problem.out().Get(2), 0);
  const volatile float tiny = 1e-40f;
  EXPECT_GT(tiny * 0.5f, 0);
}

TEST(GatedDeltaBitsTest, MemoryGrowsLinearly) {
  const auto floats = [](int length) {
    return GatedDeltaStates(Problem({{length}}, DType::kFloat32).Inputs()).numel();
  };
  EXPECT_EQ(floats(640), 10 * floats(64));
}

}  // namespace
}  // namespace megatron::ops
