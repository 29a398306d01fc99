// The sample lists of BERT and T5 in files: the sample_index that Megatron's users know, with rows
// of (first sentence, one past the last sentence, target length).
//
// The key consists of everything that determines the list and nothing else: the documents of the
// corpus (identified by contents, not by name) and the options. As with GPT's indices
// (gpt_index_cache.h), a corpus that was moved keeps its list, and torn or foreign files are built
// again. A loaded list takes the same memory as a built one, 16 bytes a sample.
#ifndef MEGATRON_DATA_MASKED_SENTENCE_SAMPLE_CACHE_H_
#define MEGATRON_DATA_MASKED_SENTENCE_SAMPLE_CACHE_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/masked/sentence_samples.h"
#include "megatron/data/split.h"

namespace megatron {

// The cache of a list, and the identity of its corpus.
struct SentenceSampleCache {
  const IndexCache* cache = nullptr;  // null: memory only
  std::string fingerprint;  // fingerprint of the corpus' contents; one line without quotes
  Split split = Split::kTrain;
};

// Returns the key of a list. `dataset` is Megatron's name of the kind of dataset, for example
// "BERTMaskedWordPieceDataset".
IndexCacheKey SentenceSampleKey(absl::string_view dataset, const SentenceSampleCache& where,
                                const SentenceSampleOptions& options);

// Returns the result of BuildSentenceSamples, from the cache if it is there.
absl::StatusOr<std::vector<SentenceSample>> LoadOrBuildSentenceSamples(
    absl::string_view dataset, const SentenceSampleCache& where,
    const SentenceSampleOptions& options, DocumentSentences document,
    absl::FunctionRef<int32_t(int64_t sentence)> length);

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_SENTENCE_SAMPLE_CACHE_H_
