#include "megatron/layers/rotary.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
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

// YaRN: the number of the pair, not a whole one, that turns `turns` times in the original context.
double PairThatTurns(double turns, const RotaryOptions& options, int64_t rotated) {
  return static_cast<double>(rotated) *
         std::log(options.yarn.original_context / (turns * 2 * M_PI)) /
         (2 * std::log(options.base));
}

void ApplyYarn(const RotaryOptions& options, int64_t rotated, std::vector<double>* frequencies) {
  const YarnOptions& yarn = options.yarn;
  double low = PairThatTurns(yarn.beta_fast, options, rotated);
  double high = PairThatTurns(yarn.beta_slow, options, rotated);
  if (yarn.round_range) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotated - 1));
  if (low == high) high += 0.001;  // a step, where a ramp would have no width
  for (size_t pair = 0; pair < frequencies->size(); ++pair) {
    const double ramp =
        std::min(std::max((static_cast<double>(pair) - low) / (high - low), 0.0), 1.0);
    double& frequency = (*frequencies)[pair];
    frequency = frequency / yarn.factor * ramp + frequency * (1 - ramp);
  }
}

void ApplyLongRope(const LongRopeOptions& longrope, std::vector<double>* frequencies) {
  const std::vector<double>& factors =
      longrope.is_long ? longrope.long_factors : longrope.short_factors;
  CHECK_EQ(factors.size(), frequencies->size()) << "factors of LongRoPE";
  for (size_t pair = 0; pair < frequencies->size(); ++pair) (*frequencies)[pair] /= factors[pair];
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
  if (options.yarn.factor > 0) ApplyYarn(options, rotated, &frequencies);
  if (!options.longrope.long_factors.empty()) ApplyLongRope(options.longrope, &frequencies);
  return frequencies;
}

double RotaryMagnitude(const RotaryOptions& options) {
  const YarnOptions& yarn = options.yarn;
  if (!options.longrope.long_factors.empty()) return options.longrope.magnitude;
  if (yarn.factor <= 1) return 1;
  const auto m = [&](double scale) { return 1 + 0.1 * scale * std::log(yarn.factor); };
  return m(yarn.mscale) / m(yarn.mscale_all_dim);
}

RotaryTables::Tables RotaryTables::Make(const RotaryOptions& options, int64_t head_size,
                                        int64_t positions, Device device, int64_t offset) const {
  const std::vector<double> frequencies = InverseFrequencies(options, head_size);
  const Shape shape{positions, static_cast<int64_t>(frequencies.size())};
  const int64_t bytes = shape.numel() * SizeOf(DType::kFloat32);
  const Tables tables = {buffer_.At(offset, DType::kFloat32, shape),
                         buffer_.At(offset + bytes, DType::kFloat32, shape)};
  if (device.type == DeviceType::kMeta) return tables;
  const HostMirror cos(tables.cos_SP, "rotary tables"), sin(tables.sin_SP, "rotary tables");
  ops::FillRopeTables(frequencies.data(), cos.host(), sin.host(), RotaryMagnitude(options));
  if (device.type == DeviceType::kCpu) return tables;
  CudaStream cuda(device.index);
  cos.Send(Stream::Cuda(device.index, &cuda));
  sin.Send(Stream::Cuda(device.index, &cuda));
  return tables;
}

RotaryTables::RotaryTables(const RotaryOptions& options, int64_t head_size, int64_t positions,
                           Device device, MemoryLedger* ledger)
    : interleaved_(options.interleaved) {
  const int64_t pairs = static_cast<int64_t>(head_size * options.percent) / 2;
  const int64_t bytes = 2 * positions * pairs * SizeOf(DType::kFloat32);
  const bool has_local = options.local_base > 0;
  buffer_ = Buffer(device, has_local ? 2 * bytes : bytes, "rotary tables", ledger);
  all_ = Make(options, head_size, positions, device, 0);
  if (!has_local) return;
  RotaryOptions local;
  local.base = options.local_base;
  local.percent = options.percent;
  local_ = Make(local, head_size, positions, device, bytes);
}

}  // namespace megatron
