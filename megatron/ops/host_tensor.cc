#include "megatron/ops/host_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "glog/logging.h"
#include "gtest/gtest.h"
#include "megatron/base/philox.h"

namespace megatron::ops {

HostTensor::HostTensor(const Shape& shape, DType dtype)
    : memory_(new char[shape.numel() * SizeOf(dtype)]()), tensor_(memory_.get(), dtype, shape) {}

namespace {

// The seed that all tests of a process draw from.
uint32_t TestSeed() {
  static const uint32_t seed = [] {
    const char* const given = std::getenv("MEGATRON_TEST_SEED");
    if (given == nullptr) return uint32_t{0};
    LOG(INFO) << "MEGATRON_TEST_SEED=" << given;
    return static_cast<uint32_t>(std::strtoul(given, nullptr, 10));
  }();
  return seed;
}

}  // namespace

HostTensor HostTensor::Normal(const Shape& shape, DType dtype, uint32_t seed) {
  std::vector<float> values(shape.numel());
  FillNormal({seed, 0x7e57 + TestSeed()}, 0, shape.numel(), values.data());
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
    case DType::kUInt8:
      return tensor_.data<uint8_t>()[index];
    case DType::kUInt16:
      return tensor_.data<uint16_t>()[index];
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
    case DType::kUInt8:
      tensor_.data<uint8_t>()[index] = static_cast<uint8_t>(value);
      break;
    case DType::kUInt16:
      tensor_.data<uint16_t>()[index] = static_cast<uint16_t>(value);
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
    if (error <= worst) continue;  // false if the error is NaN
    at = i;
    worst = error;
    if (!(error <= worst)) break;
  }
  EXPECT_LE(worst, tolerance * largest)
      << "element " << at << " of " << got.tensor() << " is " << got.Get(at) << ", expected "
      << want[at] << "; the largest is " << largest;
}

}  // namespace megatron::ops
