#include "megatron/layers/rotary.h"

#include <cmath>

#include "megatron/ops/rope.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

// Llama 3.1: wavelengths longer than the original context / low are stretched by the factor, those
// shorter than the original context / high stay, and in between the two are blended.
double ScaleFrequency(double frequency, double factor) {
  constexpr double kLow = 1, kHigh = 4, kOriginalContext = 8192;
  const double wavelength = 2 * M_PI / frequency;
  if (wavelength < kOriginalContext / kHigh) return frequency;
  if (wavelength > kOriginalContext / kLow) return frequency / factor;
  const double smooth = (kOriginalContext / wavelength - kLow) / (kHigh - kLow);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<double> InverseFrequencies(const RotaryOptions& options, int64_t head_size) {
  const int64_t rotated = static_cast<int64_t>(head_size * options.percent) / 2 * 2;
  std::vector<double> frequencies(rotated / 2);
  for (size_t pair = 0; pair < frequencies.size(); ++pair) {
    double frequency =
        std::pow(options.base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotated));
    if (options.scaling_factor > 0) frequency = ScaleFrequency(frequency, options.scaling_factor);
    frequencies[pair] = frequency / options.interpolation_factor;
  }
  return frequencies;
}

RotaryTables::RotaryTables(const RotaryOptions& options, int64_t head_size, int64_t positions,
                           Device device, MemoryLedger* ledger)
    : interleaved_(options.interleaved) {
  const std::vector<double> frequencies = InverseFrequencies(options, head_size);
  const int64_t pairs = static_cast<int64_t>(frequencies.size());
  const int64_t bytes = positions * pairs * SizeOf(DType::kFloat32);
  buffer_ = Buffer(device, 2 * bytes, "rotary tables", ledger);
  cos_SP_ = buffer_.At(0, DType::kFloat32, {positions, pairs});
  sin_SP_ = buffer_.At(bytes, DType::kFloat32, {positions, pairs});
  if (device.type == DeviceType::kMeta) return;
  const HostMirror cos(cos_SP_, "rotary tables"), sin(sin_SP_, "rotary tables");
  ops::FillRopeTables(frequencies.data(), cos.host(), sin.host());
  if (device.type == DeviceType::kCpu) return;
  CudaStream cuda(device.index);
  cos.Send(Stream::Cuda(device.index, &cuda));
  sin.Send(Stream::Cuda(device.index, &cuda));
}

}  // namespace megatron
