#include "megatron/data/blend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr double kSurplus = 0.005;
constexpr size_t kMaxDatasets = std::numeric_limits<int16_t>::max();

absl::optional<double> ParseWeight(const std::string& text) {
  double weight;
  if (!absl::SimpleAtod(text, &weight)) return absl::nullopt;
  return weight;
}

std::vector<int64_t> Shares(absl::Span<const double> weights, int64_t num_samples) {
  std::vector<int64_t> shares;
  for (const double weight : weights) {
    shares.push_back(static_cast<int64_t>(std::ceil(static_cast<double>(num_samples) * weight)));
  }
  return shares;
}

// The dataset that is furthest behind; `open` says which may still be drawn from.
size_t FurthestBehind(absl::Span<const double> weights, absl::Span<const int64_t> taken,
                      const std::vector<bool>& open, int64_t place) {
  const double drawn = static_cast<double>(std::max<int64_t>(place, 1));
  size_t best = weights.size();
  double best_error = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!open[i]) continue;
    const double error = weights[i] * drawn - static_cast<double>(taken[i]);
    if (best == weights.size() || error > best_error) {
      best = i;
      best_error = error;
    }
  }
  return best;
}

// `sizes`: how many samples each dataset can give; empty: as many as wanted.
BlendIndex Build(absl::Span<const double> weights, absl::Span<const int64_t> sizes,
                 int64_t num_samples) {
  CHECK(!weights.empty() && weights.size() <= kMaxDatasets) << weights.size() << " datasets";
  BlendIndex index;
  index.dataset.reserve(static_cast<size_t>(num_samples));
  index.sample.reserve(static_cast<size_t>(num_samples));
  std::vector<int64_t> taken(weights.size(), 0);
  std::vector<bool> open(weights.size(), true);
  for (size_t i = 0; i < sizes.size(); ++i) open[i] = sizes[i] > 0;
  for (int64_t place = 0; place < num_samples; ++place) {
    const size_t best = FurthestBehind(weights, taken, open, place);
    index.dataset.push_back(static_cast<int16_t>(best));
    index.sample.push_back(taken[best]++);
    if (!sizes.empty()) open[best] = taken[best] < sizes[best];
  }
  return index;
}

absl::Status CheckNumber(size_t datasets) {
  if (datasets > 0 && datasets <= kMaxDatasets) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a blend of ", datasets, " datasets; it takes 1 to ", kMaxDatasets));
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
  double sum = 0;
  for (size_t i = 0; i < entries.size(); i += 2) {
    const double weight = ParseWeight(entries[i]).value_or(-1);
    if (!(weight >= 0) || !std::isfinite(weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", entries[i], "', before '", entries[i + 1],
                       "', is no weight; give every dataset one, or none"));
    }
    spec.weights.push_back(weight);
    spec.prefixes.push_back(entries[i + 1]);
    sum += weight;
  }
  if (!(sum > 0) || !std::isfinite(sum))
    return absl::InvalidArgumentError(absl::StrCat("the weights sum to ", sum));
  for (double& weight : spec.weights) weight /= sum;
  return spec;
}

std::vector<int64_t> SamplesPerDataset(absl::Span<const double> weights, int64_t num_samples) {
  std::vector<int64_t> samples = Shares(weights, num_samples);
  for (int64_t& count : samples)
    count = static_cast<int64_t>(std::ceil(static_cast<double>(count) * (1 + kSurplus)));
  return samples;
}

BlendIndex BuildBlendIndex(absl::Span<const double> weights, int64_t num_samples) {
  return Build(weights, {}, num_samples);
}

BlendIndex BuildExhaustiveBlendIndex(absl::Span<const int64_t> sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (const int64_t size : sizes)
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  return Build(weights, sizes, total);
}

absl::StatusOr<std::unique_ptr<BlendedDataset>> BlendedDataset::Create(
    std::vector<std::unique_ptr<GptSampleSource>> datasets, absl::Span<const double> weights,
    int64_t num_samples) {
  CHECK_EQ(datasets.size(), weights.size());
  MEGATRON_RETURN_IF_ERROR(CheckNumber(datasets.size()));
  const std::vector<int64_t> shares = Shares(weights, num_samples);
  BlendIndex index =
      BuildBlendIndex(weights, std::accumulate(shares.begin(), shares.end(), int64_t{0}));
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

absl::StatusOr<std::unique_ptr<BlendedDataset>> BlendedDataset::CreateExhaustive(
    std::vector<std::unique_ptr<GptSampleSource>> datasets) {
  MEGATRON_RETURN_IF_ERROR(CheckNumber(datasets.size()));
  std::vector<int64_t> sizes;
  for (const auto& dataset : datasets) sizes.push_back(dataset->size());
  return std::unique_ptr<BlendedDataset>(
      new BlendedDataset(std::move(datasets), BuildExhaustiveBlendIndex(sizes)));
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<GptSampleSource>> datasets,
                               BlendIndex index)
    : datasets_(std::move(datasets)), index_(std::move(index)) {}

absl::Status BlendedDataset::Get(int64_t index, GptSample* sample) const {
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
