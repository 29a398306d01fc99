#include "megatron/ops/gated_norm.h"

#include <cmath>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/finite_difference.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kTokens = 5, kParts = 3, kWidth = 21;
constexpr float kEpsilon = 0.1f;

class Problem {
 public:
  Problem(DType dtype, bool norm_before_gate, bool shared)
      : norm_{kEpsilon, norm_before_gate},
        x_(HostTensor::Normal({kTokens, kParts, kWidth + 2}, dtype, 1)),
        z_(HostTensor::Normal({kTokens, kParts, kWidth + 1}, dtype, 2)),
        gamma_(HostTensor::Normal({shared ? 1 : kParts, kWidth}, dtype, 3)),
        dy_(HostTensor::Normal({kTokens, kParts, kWidth}, dtype, 4)),
        y_({kTokens, kParts, kWidth}, dtype),
        dx_({kTokens, kParts, kWidth + 2}, dtype),
        dz_({kTokens, kParts, kWidth + 1}, dtype),
        dgamma_({shared ? 1 : kParts, kWidth}, DType::kFloat32) {}

  void Forward(const Stream& stream) { GatedNormForward(stream, norm_, Inputs(), y_); }
  void Backward(const Stream& stream) {
    GatedNormBackward(stream, norm_, Inputs(), dy_, {Columns(dx_), Columns(dz_), dgamma_.tensor()});
  }
  std::vector<double> Want() const {
    std::vector<double> want;
    for (int64_t row = 0; row < kTokens * kParts; ++row) {
      std::vector<double> v, gate;
      double squares = 0;
      for (int64_t c = 0; c < kWidth; ++c) {
        const double z = z_.Get(row * (kWidth + 1) + c);
        gate.push_back(z / (1 + std::exp(-z)));
        v.push_back(x_.Get(row * (kWidth + 2) + c) * (norm_.norm_before_gate ? 1 : gate.back()));
        squares += v.back() * v.back();
      }
      const int64_t part = gamma_.numel() == kWidth ? 0 : row % kParts;
      for (int64_t c = 0; c < kWidth; ++c) {
        want.push_back(v[c] / std::sqrt(squares / kWidth + static_cast<double>(kEpsilon)) *
                       gamma_.Get(part * kWidth + c) * (norm_.norm_before_gate ? gate[c] : 1));
      }
    }
    return want;
  }

  HostTensor& x() { return x_; }
  HostTensor& z() { return z_; }
  HostTensor& gamma() { return gamma_; }
  const HostTensor& y() const { return y_; }
  const HostTensor& dy() const { return dy_; }
  const HostTensor& dx() const { return dx_; }
  const HostTensor& dz() const { return dz_; }
  const HostTensor& dgamma() const { return dgamma_; }

 private:
  static Tensor Columns(const HostTensor& x) { return x.tensor().Slice(2, 0, kWidth); }
  GatedNormInputs Inputs() const { return {Columns(x_), Columns(z_), gamma_.tensor()}; }

  GatedNorm norm_;
  HostTensor x_, z_, gamma_, dy_, y_, dx_, dz_, dgamma_;
};

class GatedNormTest : public testing::TestWithParam<std::tuple<DType, bool, bool>> {
 protected:
  Problem MakeProblem() const {
    return Problem(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()));
  }
  ThreadPool pool_{2};
};

TEST_P(GatedNormTest, IsTheFormula) {
  Problem problem = MakeProblem();
  problem.Forward(Stream::Cpu(&pool_));
  ExpectNear(problem.y(), problem.Want(), OpTolerance(std::get<0>(GetParam())));
}

TEST_P(GatedNormTest, GradientsAreThoseOfFiniteDifferences) {
  if (std::get<0>(GetParam()) != DType::kFloat32) return;
  Problem problem = MakeProblem();
  const Stream stream = Stream::Cpu(&pool_);
  problem.Backward(stream);
  const auto loss = [&] {
    problem.Forward(stream);
    return Dot(problem.y(), problem.dy());
  };
  ExpectNear(problem.dx(), FiniteDifference(&problem.x(), loss), kFiniteDifferenceTolerance);
  ExpectNear(problem.dz(), FiniteDifference(&problem.z(), loss), kFiniteDifferenceTolerance);
  ExpectNear(problem.dgamma(), FiniteDifference(&problem.gamma(), loss),
             kFiniteDifferenceTolerance);
}

// Parts in groups have the bits of as many parts.
TEST(GatedNormGroupsTest, PartsMayBeInGroups) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const HostTensor x = HostTensor::Normal({kTokens, 6, kWidth}, DType::kFloat32, 1),
                   z = HostTensor::Normal({kTokens, 2, 3 * kWidth + 5}, DType::kFloat32, 2),
                   gamma = HostTensor::Normal({1, kWidth}, DType::kFloat32, 3),
                   dy = HostTensor::Normal({kTokens, 6, kWidth}, DType::kFloat32, 4);
  HostTensor copy({kTokens, 6, kWidth}, DType::kFloat32);
  const auto gate_at = [](int64_t token, int64_t part) {
    return (token * 2 + part / 3) * (3 * kWidth + 5) + part % 3 * kWidth;
  };
  for (int64_t row = 0; row < kTokens * 6; ++row)
    for (int64_t c = 0; c < kWidth; ++c)
      copy.Set(row * kWidth + c, z.Get(gate_at(row / 6, row % 6) + c));
  const HostTensor y({kTokens, 6, kWidth}, DType::kFloat32),
      want({kTokens, 6, kWidth}, DType::kFloat32), dx({kTokens, 6, kWidth}, DType::kFloat32),
      want_dx({kTokens, 6, kWidth}, DType::kFloat32),
      dz({kTokens, 2, 3 * kWidth + 5}, DType::kFloat32),
      want_dz({kTokens, 6, kWidth}, DType::kFloat32), dgamma({1, kWidth}, DType::kFloat32),
      want_dgamma({1, kWidth}, DType::kFloat32);
  const Shape grouped = {kTokens, 2, 3, kWidth};
  const auto gates = [](const HostTensor& gate) {
    return gate.tensor().Slice(2, 0, 3 * kWidth).SplitDim(2, kWidth);
  };
  const GatedNorm norm = {kEpsilon, /*norm_before_gate=*/true};
  GatedNormForward(stream, norm, {x, copy, gamma}, want);
  GatedNormBackward(stream, norm, {x, copy, gamma}, dy, {want_dx, want_dz, want_dgamma});
  const GatedNormInputs in = {x.tensor().View(grouped), gates(z), gamma};
  GatedNormForward(stream, norm, in, y.tensor().View(grouped));
  GatedNormBackward(stream, norm, in, dy.tensor().View(grouped),
                    {dx.tensor().View(grouped), gates(dz), dgamma});
  EXPECT_EQ(y.Bytes(), want.Bytes());
  EXPECT_EQ(dx.Bytes(), want_dx.Bytes());
  EXPECT_EQ(dgamma.Bytes(), want_dgamma.Bytes());
  for (int64_t row = 0; row < kTokens * 6; ++row)
    for (int64_t c = 0; c < kWidth; ++c)
      EXPECT_EQ(dz.Get(gate_at(row / 6, row % 6) + c), want_dz.Get(row * kWidth + c));
}

// Two ranks have one and two of a row's parts. Theirs are the results of rows of one part.
TEST_P(GatedNormTest, PartsOfSeveralRanksAreNormalizedTogether) {
  const auto& [dtype, before_gate, shared] = GetParam();
  if (shared) return;
  const Stream stream = Stream::Cpu(&pool_);
  const HostTensor x = HostTensor::Normal({kTokens, kParts, kWidth}, dtype, 1),
                   z = HostTensor::Normal({kTokens, kParts, kWidth}, dtype, 2),
                   gamma = HostTensor::Normal({kParts, kWidth}, dtype, 3),
                   dy = HostTensor::Normal({kTokens, kParts, kWidth}, dtype, 4),
                   y({kTokens, kParts, kWidth}, dtype), dx({kTokens, kParts, kWidth}, dtype),
                   dz({kTokens, kParts, kWidth}, dtype), dgamma({kParts, kWidth}, DType::kFloat32),
                   got_dx({kTokens, kParts, kWidth}, dtype),
                   got_dz({kTokens, kParts, kWidth}, dtype);
  const auto one = [](const HostTensor& a) {
    return a.tensor().View({kTokens, 1, kParts * kWidth});
  };
  const auto flat = [](const HostTensor& a) { return a.tensor().View({1, kParts * kWidth}); };
  GatedNorm norm = {kEpsilon, before_gate};
  GatedNormForward(stream, norm, {one(x), one(z), flat(gamma)}, one(y));
  GatedNormBackward(stream, norm, {one(x), one(z), flat(gamma)}, one(dy),
                    {one(dx), one(dz), flat(dgamma)});

  const HostTensor squares({kTokens}, DType::kFloat32), products({kTokens}, DType::kFloat32);
  norm.columns = kParts * kWidth;
  constexpr int64_t kCuts[] = {0, 1, kParts};
  const auto of_rank = [&](const HostTensor& all, int rank) {
    return all.tensor().Slice(1, kCuts[rank], kCuts[rank + 1]);
  };
  const auto copy = [&](const HostTensor& all, int rank) {
    const int64_t parts = kCuts[rank + 1] - kCuts[rank];
    std::vector<double> values;
    for (int64_t i = 0; i < kTokens * parts * kWidth; ++i) {
      const int64_t token = i / (parts * kWidth), rest = i % (parts * kWidth);
      values.push_back(all.Get((token * kParts + kCuts[rank]) * kWidth + rest));
    }
    return HostTensor::Of({kTokens, parts, kWidth}, dtype, values);
  };
  const auto inputs = [&](int rank) -> GatedNormInputs {
    return {of_rank(x, rank), of_rank(z, rank),
            gamma.tensor().Slice(0, kCuts[rank], kCuts[rank + 1])};
  };
  for (int rank = 0; rank < 2; ++rank) {
    const HostTensor of_values({kTokens}, DType::kFloat32),
        of_gradients({kTokens}, DType::kFloat32);
    GatedNormSums(stream, norm, inputs(rank), of_values);
    GatedNormGradientSums(stream, norm, inputs(rank), copy(dy, rank), of_gradients);
    for (int64_t token = 0; token < kTokens; ++token) {
      squares.tensor().data<float>()[token] += of_values.tensor().data<float>()[token];
      products.tensor().data<float>()[token] += of_gradients.tensor().data<float>()[token];
    }
  }
  norm.squares_T = squares;
  norm.products_T = products;
  const HostTensor got_dgamma({kParts, kWidth}, DType::kFloat32);
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank);
    const HostTensor want = copy(y, rank), got(want.tensor().shape(), dtype);
    GatedNormForward(stream, norm, inputs(rank), got);
    ExpectNear(got, want.Values(), OpTolerance(dtype));
    GatedNormBackward(stream, norm, inputs(rank), copy(dy, rank),
                      {of_rank(got_dx, rank), of_rank(got_dz, rank),
                       got_dgamma.tensor().Slice(0, kCuts[rank], kCuts[rank + 1])});
  }
  ExpectNear(got_dx, dx.Values(), OpTolerance(dtype));
  ExpectNear(got_dz, dz.Values(), OpTolerance(dtype));
  ExpectNear(got_dgamma, dgamma.Values(), OpTolerance(DType::kFloat32));
}

INSTANTIATE_TEST_SUITE_P(Kinds, GatedNormTest,
                         testing::Combine(testing::Values(DType::kFloat32, DType::kBFloat16,
                                                          DType::kFloat16),
                                          testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace megatron::ops
