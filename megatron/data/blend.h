// Several datasets as one, mixed by weight in the order in which Megatron mixes them.
//
// Sample s of a blend comes from the dataset that is furthest behind its share: the one with the
// greatest weight · max(s, 1) − (samples taken from it so far), the first of several. Each
// dataset's samples are taken in their order.
#ifndef MEGATRON_DATA_BLEND_H_
#define MEGATRON_DATA_BLEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/sample.h"
#include "megatron/data/split.h"

namespace megatron {

// What a list of paths means: every one with its weight before it ("0.3", "a", "0.7", "b"), or
// none.
struct BlendSpec {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // normalized to 1 in sum; empty where none was given
};

// As in Megatron an odd number of entries are prefixes alone; so is an even number of which none in
// a weight's place is a number. kInvalidArgument for a mixture, a weight below 0 or an empty list.
absl::StatusOr<BlendSpec> ParseBlend(const std::vector<std::string>& entries);

// The samples to ask of each dataset for a blend of `num_samples`: its share of them, rounded up,
// and half a percent more.
std::vector<int64_t> SamplesPerDataset(absl::Span<const double> weights, int64_t num_samples);

struct BlendIndex {
  absl::Span<const int16_t> dataset;    // of each sample
  absl::Span<const int64_t> sample;     // its number there
  std::shared_ptr<const void> storage;  // what the two point into
};

// Where a blend's index is kept between runs, as Megatron's dataset_index and dataset_sample_index;
// by default nowhere.
struct BlendCache {
  const IndexCache* cache = nullptr;
  Split split = Split::kTrain;
};

// `weights` are normalized. At most 32,767 datasets.
BlendIndex BuildBlendIndex(absl::Span<const double> weights, int64_t num_samples);

class BlendedDataset : public SampleSource {
 public:
  // With weights, the size is the sum of the shares of `num_samples`, each rounded up, so at least
  // num_samples. kInvalidArgument where a dataset has too few samples.
  static absl::StatusOr<std::unique_ptr<BlendedDataset>> Create(
      std::vector<std::unique_ptr<SampleSource>> datasets, absl::Span<const double> weights,
      int64_t num_samples, const BlendCache& cache = {});

  int64_t size() const override { return static_cast<int64_t>(index_.dataset.size()); }
  absl::Status Get(int64_t index, Sample* sample) const override;

 private:
  BlendedDataset(std::vector<std::unique_ptr<SampleSource>> datasets, BlendIndex index);

  const std::vector<std::unique_ptr<SampleSource>> datasets_;
  const BlendIndex index_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_BLEND_H_
