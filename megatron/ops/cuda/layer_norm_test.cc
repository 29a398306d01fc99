// Compares the kernels with plain loops in double on the host.

#include "megatron/ops/cuda/layer_norm.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops::cuda {
namespace {

// A copy of host values on the device, and back.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::vector<T> Values() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

float ToFloat(float value) { return value; }
using ::megatron::ToFloat;

void Convert(float value, float* out) { *out = value; }
void Convert(float value, BFloat16* out) { *out = ToBFloat16(value); }
void Convert(float value, Float16* out) { *out = ToFloat16(value); }

template <typename T>
std::vector<T> RandomValues(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.3f, 1.0f);
  std::vector<T> values(n);
  for (T& value : values) Convert(normal(generator), &value);
  return values;
}

template <typename T>
float Tolerance() {
  if (std::is_same_v<T, float>) return 2e-5f;
  return std::is_same_v<T, Float16> ? 4e-3f : 3e-2f;
}

struct Case {
  int64_t rows;
  int64_t hidden;
  bool rms;
  bool zero_centered;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int64_t rows : {1, 3, 130, 513}) {
    for (int64_t hidden : {1, 7, 128, 1000, 1024, 5120}) {
      cases.push_back({rows, hidden, false, false});
      cases.push_back({rows, hidden, true, false});
      cases.push_back({rows, hidden, false, true});
    }
  }
  return cases;
}

template <typename T>
struct Problem {
  explicit Problem(const Case& c)
      : x(RandomValues<T>(c.rows * c.hidden, 1)),
        dy(RandomValues<T>(c.rows * c.hidden, 2)),
        around(RandomValues<T>(c.rows * c.hidden, 3)),
        gamma(RandomValues<T>(c.hidden, 4)),
        beta(RandomValues<T>(c.hidden, 5)) {}

  std::vector<T> x, dy, around, gamma, beta;
};

struct Expected {
  std::vector<double> y, mean, rstd, dx, dgamma, dbeta;
};

template <typename T>
void ExpectRow(const Case& c, const Problem<T>& p, int64_t row, Expected* out) {
  const int64_t begin = row * c.hidden;
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < c.hidden && !c.rms; ++i)
    mean += ToFloat(p.x[begin + i]) / double(c.hidden);
  for (int64_t i = 0; i < c.hidden; ++i) squares += std::pow(ToFloat(p.x[begin + i]) - mean, 2);
  const double rstd = 1 / std::sqrt(squares / c.hidden + 1e-5);
  out->mean.push_back(mean);
  out->rstd.push_back(rstd);
  double mean_g = 0, mean_gx = 0;
  std::vector<double> g(c.hidden), normalized(c.hidden);
  for (int64_t i = 0; i < c.hidden; ++i) {
    const double scale = ToFloat(p.gamma[i]) + (c.zero_centered ? 1.0 : 0.0);
    const double dy = ToFloat(p.dy[begin + i]);
    normalized[i] = (ToFloat(p.x[begin + i]) - mean) * rstd;
    g[i] = dy * scale;
    mean_g += c.rms ? 0 : g[i] / c.hidden;
    mean_gx += g[i] * normalized[i] / c.hidden;
    out->y.push_back(normalized[i] * scale + (c.rms ? 0 : ToFloat(p.beta[i])));
    out->dgamma[i] += dy * normalized[i];
    out->dbeta[i] += dy;
  }
  for (int64_t i = 0; i < c.hidden; ++i) {
    out->dx.push_back(rstd * (g[i] - mean_g - normalized[i] * mean_gx) +
                      ToFloat(p.around[begin + i]));
  }
}

template <typename T>
Expected Reference(const Case& c, const Problem<T>& p) {
  Expected expected;
  expected.dgamma.assign(c.hidden, 1.0);  // gradients are added to what is there
  expected.dbeta.assign(c.hidden, 1.0);
  for (int64_t row = 0; row < c.rows; ++row) ExpectRow(c, p, row, &expected);
  return expected;
}

template <typename T>
void ExpectClose(const std::vector<T>& actual, const std::vector<double>& expected,
                 double tolerance, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(ToFloat(actual[i]), expected[i], tolerance * (1 + std::abs(expected[i])))
        << what << " at " << i;
  }
}

template <typename T>
class LayerNormTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess && devices > 0) return;
    if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) {
      FAIL() << "MEGATRON_REQUIRE_GPU is set: " << cudaGetErrorString(error);
    }
    GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
  }

  static LayerNormShape Shape(const Case& c) {
    return {DTypeOf<T>::value, c.hidden, c.rms, c.zero_centered, 1e-5f};
  }
};

using Types = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(LayerNormTest, Types);

TYPED_TEST(LayerNormTest, ForwardAndBackwardAgreeWithHostLoops) {
  using T = TypeParam;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.hidden << (c.rms ? " rms" : "")
                                      << (c.zero_centered ? " 1p" : ""));
    const Problem<T> problem(c);
    const Expected expected = Reference(c, problem);
    const RowLayout rows = RowLayout::Contiguous(c.rows, c.hidden);
    DeviceArray<T> x(problem.x), dy(problem.dy), around(problem.around), gamma(problem.gamma),
        beta(problem.beta), y(problem.x), dx(problem.x);
    DeviceArray<float> mean(std::vector<float>(c.rows)), rstd(std::vector<float>(c.rows)),
        dgamma(std::vector<float>(c.hidden, 1)), dbeta(std::vector<float>(c.hidden, 1)),
        workspace(std::vector<float>(LayerNormBackwardWorkspace(c.hidden)));

    LayerNormForwardArgs forward;
    forward.shape = this->Shape(c);
    forward.x_rows = forward.y_rows = rows;
    forward.x_TH = x.data();
    forward.gamma_H = gamma.data();
    forward.beta_H = c.rms ? nullptr : beta.data();
    forward.y_TH = y.data();
    forward.mean_T = mean.data();
    forward.rstd_T = rstd.data();
    LaunchLayerNormForward(forward, nullptr);

    LayerNormBackwardArgs backward;
    backward.shape = this->Shape(c);
    backward.dy_rows = backward.x_rows = backward.dresidual_rows = backward.dx_rows = rows;
    backward.dy_TH = dy.data();
    backward.x_TH = x.data();
    backward.gamma_H = gamma.data();
    backward.mean_T = mean.data();
    backward.rstd_T = rstd.data();
    backward.dresidual_TH = around.data();
    backward.dx_TH = dx.data();
    backward.dgamma_H = dgamma.data();
    backward.dbeta_H = dbeta.data();
    backward.workspace = workspace.data();
    LaunchLayerNormBackward(backward, nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    const float tolerance = Tolerance<T>();
    ExpectClose(y.Values(), expected.y, tolerance, "y");
    if (!c.rms) ExpectClose(mean.Values(), expected.mean, 2e-5, "mean");
    ExpectClose(rstd.Values(), expected.rstd, 2e-5, "rstd");
    // A row of one element has no variance: rstd is 1/sqrt(epsilon) and magnifies every rounding.
    if (c.hidden > 1) ExpectClose(dx.Values(), expected.dx, 4 * tolerance, "dx");
    ExpectClose(dgamma.Values(), expected.dgamma, 1e-4, "dgamma");
    ExpectClose(dbeta.Values(), expected.dbeta, 1e-4, "dbeta");
  }
}

TYPED_TEST(LayerNormTest, NormalizesHeadsInPlaceInsideAWiderTensor) {
  using T = TypeParam;
  // 5 tokens, 3 heads of 16 values each, in rows of 100 values, from the 8th value on.
  const Case c = {15, 16, true, false};
  const std::vector<T> packed = RandomValues<T>(5 * 100, 6);
  Problem<T> problem(c);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t i = 0; i < c.hidden; ++i) {
      problem.x[row * c.hidden + i] = packed[row / 3 * 100 + 8 + row % 3 * 16 + i];
    }
  }
  const Expected expected = Reference(c, problem);
  DeviceArray<T> x(packed), gamma(problem.gamma);
  DeviceArray<float> rstd(std::vector<float>(c.rows));
  LayerNormForwardArgs args;
  args.shape = this->Shape(c);
  args.x_rows = args.y_rows = {{1, 5, 3}, {0, 100, 16}};
  args.x_TH = x.data() + 8;
  args.y_TH = x.data() + 8;
  args.gamma_H = gamma.data();
  args.rstd_T = rstd.data();
  LaunchLayerNormForward(args, nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  const std::vector<T> after = x.Values();
  for (int64_t i = 0; i < 500; ++i) {
    const int64_t inside = i % 100 - 8;
    if (inside >= 0 && inside < 48) {
      const double y = expected.y[(i / 100 * 3 + inside / 16) * 16 + inside % 16];
      ASSERT_NEAR(ToFloat(after[i]), y, Tolerance<T>() * (1 + std::abs(y))) << i;
    } else {
      ASSERT_EQ(ToFloat(after[i]), ToFloat(packed[i])) << i;
    }
  }
}

}  // namespace
}  // namespace megatron::ops::cuda
