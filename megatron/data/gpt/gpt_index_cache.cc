#include "megatron/data/gpt/gpt_index_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr char kDocumentType[] = "<i4", kSampleType[] = "<i4", kShuffleType[] = "<u4";

// The shapes of the three arrays, in the order of the key's names.
struct Shapes {
  std::vector<int64_t> documents, samples, shuffle;
};

Shapes ShapesOf(const GptIndexOptions& options, const GptIndexPlan& plan) {
  return {{plan.num_epochs * options.num_sequences}, {plan.num_samples + 1, 2}, {plan.num_samples}};
}

IndexArrays ToArrays(const GptIndex& index, const Shapes& shapes) {
  IndexArrays arrays;
  arrays.arrays = {{kDocumentType, shapes.documents, ArrayBytes(index.documents)},
                   {kSampleType, shapes.samples, ArrayBytes(index.samples)},
                   {kShuffleType, shapes.shuffle, ArrayBytes(index.shuffle)}};
  arrays.storage = index.storage;
  return arrays;
}

absl::Status CheckShapes(const IndexArrays& arrays, const Shapes& shapes) {
  MEGATRON_RETURN_IF_ERROR(CheckArray(arrays.arrays[0], kDocumentType, shapes.documents));
  MEGATRON_RETURN_IF_ERROR(CheckArray(arrays.arrays[1], kSampleType, shapes.samples));
  return CheckArray(arrays.arrays[2], kShuffleType, shapes.shuffle);
}

}  // namespace

IndexCacheKey GptIndexKey(const GptIndexIdentity& identity, const GptIndexOptions& options,
                          const GptIndexPlan& plan) {
  const absl::string_view split = SplitName(identity.split);
  IndexCacheKey key;
  key.kind = absl::StrCat("GPTDataset-", split);
  // Megatron writes the description like this: JSON with an indentation of four.
  key.description = absl::StrFormat(
      R"({
    "class": "GPTDataset",
    "dataset": "%s",
    "index_split": "%s",
    "first_sequence": %d,
    "num_sequences": %d,
    "num_epochs": %d,
    "separate_final_epoch": %s,
    "random_seed": %d,
    "sequence_length": %d
})",
      identity.fingerprint, split, options.first_sequence, options.num_sequences, plan.num_epochs,
      plan.separate_final_epoch ? "true" : "false", options.seed, options.seq_length);
  key.names = {"document_index", "sample_index", "shuffle_index"};
  return key;
}

absl::StatusOr<GptIndex> LoadOrBuildGptIndex(const IndexCache& cache,
                                             const GptIndexIdentity& identity,
                                             const GptIndexOptions& options,
                                             absl::FunctionRef<int32_t(int64_t i)> length) {
  GptIndex index;
  MEGATRON_ASSIGN_OR_RETURN(static_cast<GptIndexPlan&>(index), PlanGptIndex(options, length));
  const Shapes shapes = ShapesOf(options, index);
  MEGATRON_ASSIGN_OR_RETURN(
      IndexArrays arrays,
      cache.LoadOrBuild(
          GptIndexKey(identity, options, index),
          [&](const IndexArrays& loaded) { return CheckShapes(loaded, shapes); },
          [&]() -> absl::StatusOr<IndexArrays> {
            MEGATRON_ASSIGN_OR_RETURN(const GptIndex built, BuildGptIndex(options, length));
            return ToArrays(built, shapes);
          }));
  index.documents = ArrayValues<int32_t>(arrays.arrays[0]);
  index.samples = ArrayValues<StreamPosition>(arrays.arrays[1]);
  index.shuffle = ArrayValues<uint32_t>(arrays.arrays[2]);
  index.storage = std::move(arrays.storage);
  return index;
}

}  // namespace megatron
