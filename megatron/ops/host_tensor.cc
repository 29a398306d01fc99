#include "megatron/ops/host_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gtest/gtest.h"
#include "megatron/base/philox.h"

namespace megatron::ops {

HostTensor::HostTensor(const Shape& shape, DType dtype)
    : memory_(new char[shape.numel() * SizeOf(dtype)]()), tensor_(memory_.get(), dtype, shape) {}

HostTensor HostTensor::Normal(const Shape& shape, DType dtype, uint32_t seed) {
  std::vector<float> values(shape.numel());
  FillNormal({seed, 0x7e57}, 0, shape.numel(), values.data());
  return Of(shape, dtype, std::vector<double>(values.begin(), values.end()));
}

HostTensor HostTensor::Of(const Shape& shape, DType dtype, const std::vector<double>& values) {
  CHECK_EQ(shape.numel(), static_cast<int64_t>(values.size()));
  HostTensor out(shape, dtype);
  for (int64_t i = 0; i < shape.numel(); ++i) out.Set(i, values[i]);
  return out;
}

double HostTensor::Get(int64_t index) const {
  switch (tensor_.dtype()) {
    case DType::kFloat32:
      return tensor_.data<float>()[index];
    case DType::kBFloat16:
      return ToFloat(tensor_.data<BFloat16>()[index]);
    case DType::kFloat16:
      return ToFloat(tensor_.data<Float16>()[index]);
    case DType::kInt32:
      return tensor_.data<int32_t>()[index];
    case DType::kInt64:
      return static_cast<double>(tensor_.data<int64_t>()[index]);
    default:
      LOG(FATAL) << tensor_;
  }
  return 0;
}

void HostTensor::Set(int64_t index, double value) {
  switch (tensor_.dtype()) {
    case DType::kFloat32:
      tensor_.data<float>()[index] = static_cast<float>(value);
      break;
    case DType::kBFloat16:
      tensor_.data<BFloat16>()[index] = ToBFloat16(static_cast<float>(value));
      break;
    case DType::kFloat16:
      tensor_.data<Float16>()[index] = ToFloat16(static_cast<float>(value));
      break;
    case DType::kInt32:
      tensor_.data<int32_t>()[index] = static_cast<int32_t>(value);
      break;
    case DType::kInt64:
      tensor_.data<int64_t>()[index] = static_cast<int64_t>(value);
      break;
    default:
      LOG(FATAL) << tensor_;
  }
}

std::vector<double> HostTensor::Values() const {
  std::vector<double> out(numel());
  for (int64_t i = 0; i < numel(); ++i) out[i] = Get(i);
  return out;
}

std::vector<char> HostTensor::Bytes() const {
  const char* begin = static_cast<const char*>(tensor_.raw());
  return std::vector<char>(begin, begin + tensor_.bytes());
}

void ExpectNear(const HostTensor& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.numel(), static_cast<int64_t>(want.size()));
  double largest = 1e-30, worst = 0;
  int64_t at = 0;
  for (double value : want) largest = std::max(largest, std::fabs(value));
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double error = std::fabs(got.Get(i) - want[i]);
    if (error <= worst) continue;  // and not where it is NaN
    at = i;
    worst = error;
    if (!(error <= worst)) break;
  }
  EXPECT_LE(worst, tolerance * largest)
      << "element " << at << " of " << got.tensor() << " is " << got.Get(at) << ", expected "
      << want[at] << "; the largest is " << largest;
}

}  // namespace megatron::ops
