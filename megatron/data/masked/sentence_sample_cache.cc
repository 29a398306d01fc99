#include "megatron/data/masked/sentence_sample_cache.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// Megatron's types: the narrow one is used if it holds the numbers of all sentences.
constexpr char kNarrow[] = "<u4", kWide[] = "<u8";
constexpr int64_t kColumns = 3;

template <typename T>
IndexArrays ToArrays(const char* type, const std::vector<SentenceSample>& samples) {
  auto rows = std::make_shared<std::vector<T>>();
  rows->reserve(samples.size() * kColumns);
  for (const SentenceSample& sample : samples) {
    rows->push_back(static_cast<T>(sample.first_sentence));
    rows->push_back(static_cast<T>(sample.first_sentence + sample.num_sentences));
    rows->push_back(static_cast<T>(sample.target_length));
  }
  IndexArrays arrays;
  arrays.arrays = {{type,
                    {static_cast<int64_t>(samples.size()), kColumns},
                    ArrayBytes(absl::Span<const T>(*rows))}};
  arrays.storage = std::move(rows);
  return arrays;
}

IndexArrays ToArrays(const std::vector<SentenceSample>& samples) {
  const bool narrow = std::all_of(samples.begin(), samples.end(), [](const SentenceSample& sample) {
    return sample.first_sentence + sample.num_sentences <= std::numeric_limits<uint32_t>::max();
  });
  return narrow ? ToArrays<uint32_t>(kNarrow, samples) : ToArrays<uint64_t>(kWide, samples);
}

template <typename T>
std::vector<SentenceSample> FromRows(absl::Span<const T> rows) {
  std::vector<SentenceSample> samples;
  samples.reserve(rows.size() / kColumns);
  for (; !rows.empty(); rows.remove_prefix(kColumns)) {
    samples.push_back({static_cast<int64_t>(rows[0]), static_cast<int32_t>(rows[1] - rows[0]),
                       static_cast<int32_t>(rows[2])});
  }
  return samples;
}

std::vector<SentenceSample> FromArrays(const IndexArrays& arrays) {
  const NpyArray& rows = arrays.arrays[0];
  return rows.type == kNarrow ? FromRows(ArrayValues<uint32_t>(rows))
                              : FromRows(ArrayValues<uint64_t>(rows));
}

absl::Status CheckRows(const IndexArrays& arrays) {
  const NpyArray& rows = arrays.arrays[0];
  const int64_t count = rows.shape.empty() ? 0 : rows.shape[0];
  return CheckArray(rows, rows.type == kWide ? kWide : kNarrow, {count, kColumns});
}

}  // namespace

IndexCacheKey SentenceSampleKey(absl::string_view dataset, const SentenceSampleCache& where,
                                const SentenceSampleOptions& options) {
  IndexCacheKey key;
  key.kind = std::string(dataset);
  const std::string samples =
      options.num_samples.has_value() ? absl::StrCat(*options.num_samples) : "null";
  // Megatron writes the description like this: JSON with an indentation of four.
  key.description = absl::StrFormat(
      R"({
    "class": "%s",
    "dataset": "%s",
    "index_split": "%s",
    "first_document": %d,
    "num_documents": %d,
    "num_samples": %s,
    "random_seed": %d,
    "max_length": %d,
    "min_sentences": %d,
    "short_sequence_probability": %.17g
})",
      dataset, where.fingerprint, SplitName(where.split), options.documents.begin,
      options.documents.size(), samples, options.seed, options.max_length, options.min_sentences,
      options.short_sequence_probability);
  key.names = {"sample_index"};
  return key;
}

absl::StatusOr<std::vector<SentenceSample>> LoadOrBuildSentenceSamples(
    absl::string_view dataset, const SentenceSampleCache& where,
    const SentenceSampleOptions& options, DocumentSentences document,
    absl::FunctionRef<int32_t(int64_t sentence)> length) {
  if (where.cache == nullptr) return BuildSentenceSamples(options, document, length);
  const auto build = [&]() -> absl::StatusOr<IndexArrays> {
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<SentenceSample> samples,
                              BuildSentenceSamples(options, document, length));
    return ToArrays(samples);
  };
  MEGATRON_ASSIGN_OR_RETURN(
      const IndexArrays arrays,
      where.cache->LoadOrBuild(SentenceSampleKey(dataset, where, options), CheckRows, build));
  return FromArrays(arrays);
}

}  // namespace megatron
