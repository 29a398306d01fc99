#include "megatron/data/blend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/numpy_sum.h"

namespace megatron {
namespace {

constexpr double kSurplus = 0.005;
constexpr size_t kMaxDatasets = std::numeric_limits<int16_t>::max();

std::optional<double> ParseWeight(const std::string& text) {
  double weight;
  if (!absl::SimpleAtod(text, &weight)) return std::nullopt;
  return weight;
}

std::vector<int64_t> Shares(absl::Span<const double> weights, int64_t num_samples) {
  std::vector<int64_t> shares;
  for (const double weight : weights) {
    shares.push_back(static_cast<int64_t>(std::ceil(static_cast<double>(num_samples) * weight)));
  }
  return shares;
}

constexpr char kDatasetType[] = "<i2", kSampleType[] = "<i8";

struct BlendVectors {
  std::vector<int16_t> dataset;
  std::vector<int64_t> sample;
};

// Returns the dataset that is furthest behind its share before the sample at `position`.
size_t FurthestBehind(absl::Span<const double> weights, absl::Span<const int64_t> taken,
                      int64_t position) {
  const double drawn = static_cast<double>(std::max<int64_t>(position, 1));
  size_t best = 0;
  double best_error = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double error = weights[i] * drawn - static_cast<double>(taken[i]);
    if (i == 0 || error > best_error) {
      best = i;
      best_error = error;
    }
  }
  return best;
}

// The weights and the size of a blend determine its index.
IndexCacheKey CacheKey(const BlendCache& cache, absl::Span<const double> weights,
                       int64_t num_samples) {
  const absl::string_view split = SplitName(cache.split);
  IndexCacheKey key;
  key.kind = absl::StrCat("BlendedDataset-", split);
  const std::string numbers = absl::StrJoin(weights, ", ", [](std::string* out, double weight) {
    absl::StrAppendFormat(out, "%.17g", weight);
  });
  key.description = absl::StrFormat(
      R"({
    "class": "BlendedDataset",
    "split": "%s",
    "weights": [%s],
    "size": %d
})",
      split, numbers, num_samples);
  key.names = {"dataset_index", "dataset_sample_index"};
  return key;
}

// Dataset numbers are checked because they index a list; each dataset checks its sample numbers.
absl::Status CheckArrays(const IndexArrays& arrays, size_t num_datasets, int64_t num_samples) {
  MEGATRON_RETURN_IF_ERROR(CheckArray(arrays.arrays[0], kDatasetType, {num_samples}));
  MEGATRON_RETURN_IF_ERROR(CheckArray(arrays.arrays[1], kSampleType, {num_samples}));
  uint16_t largest = 0;
  for (const int16_t dataset : ArrayValues<int16_t>(arrays.arrays[0]))
    largest = std::max(largest, static_cast<uint16_t>(dataset));
  if (largest < num_datasets) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("a blend of ", num_datasets, " datasets that names dataset ", largest));
}

absl::StatusOr<BlendIndex> LoadOrBuild(const BlendCache& cache, absl::Span<const double> weights,
                                       int64_t num_samples) {
  if (cache.cache == nullptr) return BuildBlendIndex(weights, num_samples);
  MEGATRON_ASSIGN_OR_RETURN(IndexArrays arrays,
                            cache.cache->LoadOrBuild(
                                CacheKey(cache, weights, num_samples),
                                [&](const IndexArrays& loaded) {
                                  return CheckArrays(loaded, weights.size(), num_samples);
                                },
                                [&]() -> absl::StatusOr<IndexArrays> {
                                  const BlendIndex built = BuildBlendIndex(weights, num_samples);
                                  return IndexArrays{
                                      {{kDatasetType, {num_samples}, ArrayBytes(built.dataset)},
                                       {kSampleType, {num_samples}, ArrayBytes(built.sample)}},
                                      built.storage};
                                }));
  BlendIndex index;
  index.dataset = ArrayValues<int16_t>(arrays.arrays[0]);
  index.sample = ArrayValues<int64_t>(arrays.arrays[1]);
  index.storage = std::move(arrays.storage);
  return index;
}

}  // namespace

absl::StatusOr<BlendSpec> ParseBlend(const std::vector<std::string>& entries) {
  if (entries.empty()) return absl::InvalidArgumentError("no dataset is named");
  BlendSpec spec;
  size_t numbers = 0;
  for (size_t i = 0; i + 1 < entries.size(); i += 2) numbers += ParseWeight(entries[i]).has_value();
  if (entries.size() % 2 == 1 || numbers == 0) {
    spec.prefixes = entries;
    return spec;
  }
  for (size_t i = 0; i < entries.size(); i += 2) {
    const double weight = ParseWeight(entries[i]).value_or(-1);
    if (!(weight >= 0) || !std::isfinite(weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", entries[i], "', before '", entries[i + 1],
                       "', is no weight; give every dataset one, or none"));
    }
    spec.weights.push_back(weight);
    spec.prefixes.push_back(entries[i + 1]);
  }
  const double sum = NumpySum(spec.weights);
  if (!(sum > 0) || !std::isfinite(sum))
    return absl::InvalidArgumentError(absl::StrCat("the weights sum to ", sum));
  NumpyNormalize(&spec.weights);
  return spec;
}

std::vector<double> OrderWeights(std::vector<double> weights) {
  NumpyNormalize(&weights);
  return weights;
}

std::vector<int64_t> SamplesPerDataset(absl::Span<const double> weights, int64_t num_samples) {
  std::vector<int64_t> samples = Shares(weights, num_samples);
  for (int64_t& count : samples)
    count = static_cast<int64_t>(std::ceil(static_cast<double>(count) * (1 + kSurplus)));
  return samples;
}

int64_t BlendSize(absl::Span<const double> weights, int64_t num_samples) {
  const std::vector<int64_t> shares = Shares(weights, num_samples);
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

BlendIndex BuildBlendIndex(absl::Span<const double> weights, int64_t num_samples) {
  CHECK(!weights.empty() && weights.size() <= kMaxDatasets) << weights.size() << " datasets";
  auto vectors = std::make_shared<BlendVectors>();
  vectors->dataset.reserve(static_cast<size_t>(num_samples));
  vectors->sample.reserve(static_cast<size_t>(num_samples));
  std::vector<int64_t> taken(weights.size(), 0);
  for (int64_t position = 0; position < num_samples; ++position) {
    const size_t best = FurthestBehind(weights, taken, position);
    vectors->dataset.push_back(static_cast<int16_t>(best));
    vectors->sample.push_back(taken[best]++);
  }
  BlendIndex index;
  index.dataset = vectors->dataset;
  index.sample = vectors->sample;
  index.storage = std::move(vectors);
  return index;
}

absl::StatusOr<std::unique_ptr<BlendedDataset>> BlendedDataset::Create(
    std::vector<std::unique_ptr<SampleSource>> datasets, absl::Span<const double> weights,
    int64_t num_samples, const BlendCache& cache) {
  CHECK_EQ(datasets.size(), weights.size());
  if (datasets.empty() || datasets.size() > kMaxDatasets) {
    return absl::InvalidArgumentError(
        absl::StrCat("a blend of ", datasets.size(), " datasets; it takes 1 to ", kMaxDatasets));
  }
  MEGATRON_ASSIGN_OR_RETURN(BlendIndex index, LoadOrBuild(cache, weights, num_samples));
  std::vector<int64_t> needed(datasets.size(), 0);
  for (const int16_t dataset : index.dataset) ++needed[dataset];
  for (size_t i = 0; i < datasets.size(); ++i) {
    if (needed[i] <= datasets[i]->size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("dataset ", i + 1, " of the blend has ",
                                                   datasets[i]->size(), " samples, ", needed[i],
                                                   " are needed"));
  }
  return std::unique_ptr<BlendedDataset>(new BlendedDataset(std::move(datasets), std::move(index)));
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<SampleSource>> datasets,
                               BlendIndex index)
    : datasets_(std::move(datasets)), index_(std::move(index)) {}

absl::Status BlendedDataset::Get(int64_t index, Sample* sample) const {
  if (index < 0 || index >= size()) {
    return absl::OutOfRangeError(
        absl::StrCat("sample ", index, " does not exist; the blend has ", size(), " samples"));
  }
  const int16_t dataset = index_.dataset[index];
  MEGATRON_RETURN_IF_ERROR(datasets_[dataset]->Get(index_.sample[index], sample),
                           _ << "in dataset " << dataset + 1 << " of the blend");
  return absl::OkStatus();
}

}  // namespace megatron
