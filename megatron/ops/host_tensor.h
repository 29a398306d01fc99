// Tensors that own their memory, for tests of ops.
//
//   HostTensor x = HostTensor::Normal({3, 5}, DType::kBFloat16, /*seed=*/1);
//   LinearForward(stream, x.tensor(), ...);
//   ExpectNear(y, reference, OpTolerance(DType::kBFloat16));
#ifndef MEGATRON_OPS_HOST_TENSOR_H_
#define MEGATRON_OPS_HOST_TENSOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron::ops {

class HostTensor {
 public:
  // A tensor of zeros.
  HostTensor(const Shape& shape, DType dtype);
  // A tensor of standard normal values, rounded to the dtype. The fp32 value before rounding
  // depends only on (seed, index) and on $MEGATRON_TEST_SEED, if it is set.
  static HostTensor Normal(const Shape& shape, DType dtype, uint32_t seed);
  static HostTensor Of(const Shape& shape, DType dtype, const std::vector<double>& values);

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }
  int64_t numel() const { return tensor_.numel(); }

  double Get(int64_t index) const;
  void Set(int64_t index, double value);
  std::vector<double> Values() const;
  // The raw bytes, to compare bits.
  std::vector<char> Bytes() const;

 private:
  std::unique_ptr<char[]> memory_;  // has the exact size, so AddressSanitizer sees any overrun
  Tensor tensor_;
};

// Fails the test if an element differs by more than tolerance * max(1e-30, largest |want|), or is
// not finite.
void ExpectNear(const HostTensor& got, const std::vector<double>& want, double tolerance);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_HOST_TENSOR_H_
