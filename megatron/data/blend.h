// Several datasets as one, mixed by weight in the order in which Megatron mixes them.
//
// Sample s of a blend comes from the dataset that is furthest behind its share: the one with the
// greatest weight · max(s, 1) − (samples taken from it so far), and of several such datasets the
// first. Each dataset's samples are taken in their order.
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

// A parsed list of dataset paths. Either each path follows its weight ("0.3", "a", "0.7", "b"), or
// there are no weights.
struct BlendSpec {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // normalized to the sum 1, with NumpyNormalize; empty if none given
};

// Parses a list as Megatron does. If the number of entries is odd, or if it is even and no entry in
// a weight's position is a number, all entries are paths. kInvalidArgument for a mixture, a weight
// below 0 or an empty list.
absl::StatusOr<BlendSpec> ParseBlend(const std::vector<std::string>& entries);

// Returns the weights that order the samples of a blend with given weights: the normalized
// `weights`, normalized once more as Megatron does. The last bits of some differ, and with them the
// datasets of many samples.
std::vector<double> OrderWeights(std::vector<double> weights);

// Returns the size of a blend with given weights of which a run needs `num_samples`: the sum of the
// datasets' shares, each rounded up, so at least num_samples. `weights` are a BlendSpec's.
int64_t BlendSize(absl::Span<const double> weights, int64_t num_samples);

// Returns how many samples to request from each dataset for such a blend: its share of them,
// rounded up, plus half a percent.
std::vector<int64_t> SamplesPerDataset(absl::Span<const double> weights, int64_t num_samples);

struct BlendIndex {
  absl::Span<const int16_t> dataset;    // dataset of each sample
  absl::Span<const int64_t> sample;     // number of each sample in its dataset
  std::shared_ptr<const void> storage;  // owns the memory of both
};

// The cache of a blend's index between runs, as Megatron's dataset_index and dataset_sample_index.
// By default there is none.
struct BlendCache {
  const IndexCache* cache = nullptr;
  Split split = Split::kTrain;
};

// Requires normalized `weights` and at most 32,767 datasets.
BlendIndex BuildBlendIndex(absl::Span<const double> weights, int64_t num_samples);

class BlendedDataset : public SampleSource {
 public:
  // Makes a blend of `num_samples` samples in the order of BuildBlendIndex. kInvalidArgument if a
  // dataset has too few samples.
  static absl::StatusOr<std::unique_ptr<BlendedDataset>> Create(
      std::vector<std::unique_ptr<SampleSource>> datasets, absl::Span<const double> weights,
      int64_t num_samples, const BlendCache& cache = {});

  int64_t size() const override { return static_cast<int64_t>(index_.dataset.size()); }
  absl::Status Get(int64_t index, Sample* sample) const override;
  // The sample's dataset.
  int SourceOf(int64_t index) const override { return index_.dataset[index]; }

 private:
  BlendedDataset(std::vector<std::unique_ptr<SampleSource>> datasets, BlendIndex index);

  const std::vector<std::unique_ptr<SampleSource>> datasets_;
  const BlendIndex index_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_BLEND_H_
