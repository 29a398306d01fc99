// The sample lists of BERT and T5 in files: the sample_index that Megatron's users know, rows of
// (first sentence, sentence behind the last, target length).
//
// The key is what determines the list and nothing else: which documents of which corpus, by
// contents and not by name, and the options. As with GPT's indices (gpt_index_cache.h) a corpus
// that was moved keeps its list, and what is torn or foreign is built anew. A list that was loaded
// takes the memory of one that was built, 16 bytes a sample.
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

// Where a list is kept, and what it is of.
struct SentenceSampleCache {
  const IndexCache* cache = nullptr;  // null: in memory only
  std::string fingerprint;            // of the corpus' contents; a line without quotes
  Split split = Split::kTrain;
};

// `dataset` is Megatron's name of the kind of dataset, "BERTMaskedWordPieceDataset".
IndexCacheKey SentenceSampleKey(absl::string_view dataset, const SentenceSampleCache& where,
                                const SentenceSampleOptions& options);

// BuildSentenceSamples' result, from the cache where it is there.
absl::StatusOr<std::vector<SentenceSample>> LoadOrBuildSentenceSamples(
    absl::string_view dataset, const SentenceSampleCache& where,
    const SentenceSampleOptions& options, DocumentSentences document,
    absl::FunctionRef<int32_t(int64_t sentence)> length);

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_SENTENCE_SAMPLE_CACHE_H_
