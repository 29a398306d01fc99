#include "megatron/federated/noisy_mean.h"

#include <algorithm>
#include <thread>

#include "glog/logging.h"
#include "megatron/federated/clipped_update.h"
#include "megatron/federated/discrete_gaussian.h"

namespace megatron {
namespace {

// Fewer elements are not worth a thread.
constexpr int64_t kLeastPerThread = 1024;

}  // namespace

void UnmaskedMean(const std::vector<Mask>& masks, int islands, double clip_norm,
                  double noise_multiplier, int threads, absl::Span<uint32_t> sum,
                  absl::Span<float> mean) {
  CHECK_EQ(sum.size(), mean.size());
  const int64_t elements = static_cast<int64_t>(sum.size());
  const auto make = [&](int64_t begin, int64_t end) {
    const absl::Span<uint32_t> part = sum.subspan(begin, end - begin);
    AddMasks(masks, begin, part);
    RandomWords random;
    const uint64_t variance =
        noise_multiplier > 0 ? NoiseVariance(noise_multiplier, kUnitsOfClipNorm) : 0;
    for (int64_t i = begin; i < end; ++i) {
      int64_t units = SignedSum(sum[i]);
      if (variance > 0) units += DiscreteGaussian(variance, &random);
      mean[i] = static_cast<float>(MeanOfUnits(units, islands, clip_norm));
    }
  };
  const int64_t most = std::max<int64_t>(elements / kLeastPerThread, 1);
  const int64_t count = std::min<int64_t>(std::max(threads, 1), most);
  std::vector<std::thread> others;
  for (int64_t i = 1; i < count; ++i)
    others.emplace_back(make, elements * i / count, elements * (i + 1) / count);
  make(0, elements / count);
  for (std::thread& other : others) other.join();
}

}  // namespace megatron
