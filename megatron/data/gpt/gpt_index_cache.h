// GPT indices in files: the document_index, sample_index and shuffle_index that Megatron's users
// know.
//
// The key consists of everything that determines the three and nothing else: the sequences of the
// dataset (identified by contents, not by name), sequence length, seed, number of epochs, and
// whether the last one is shuffled separately. So runs of different lengths over one epoch share an
// index, and a dataset that was moved keeps its own.
#ifndef MEGATRON_DATA_GPT_GPT_INDEX_CACHE_H_
#define MEGATRON_DATA_GPT_GPT_INDEX_CACHE_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "megatron/data/gpt/gpt_index.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/split.h"

namespace megatron {

// Identifies the corpus of an index.
struct GptIndexIdentity {
  std::string fingerprint;  // fingerprint of the dataset's contents; one line without quotes
  Split split = Split::kTrain;
};

IndexCacheKey GptIndexKey(const GptIndexIdentity& identity, const GptIndexOptions& options,
                          const GptIndexPlan& plan);

// Returns the result of BuildGptIndex, from the cache if it is there.
absl::StatusOr<GptIndex> LoadOrBuildGptIndex(const IndexCache& cache,
                                             const GptIndexIdentity& identity,
                                             const GptIndexOptions& options,
                                             absl::FunctionRef<int32_t(int64_t i)> length);

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_GPT_INDEX_CACHE_H_
