#include "megatron/data/masked/masked_corpus.h"

#include "megatron/base/status_macros.h"

namespace megatron {

absl::StatusOr<MaskedCorpus> MaskedCorpus::Create(std::shared_ptr<const TokenSequences> sentences,
                                                  DocumentSentences document, WordPieces pieces,
                                                  const MaskedDatasetOptions& options,
                                                  const SampleForm& form) {
  MEGATRON_ASSIGN_OR_RETURN(WordMasker masker, WordMasker::Create(options.masking));
  SentenceSampleOptions samples;
  samples.documents = options.documents;
  samples.num_samples = options.num_samples;
  samples.max_length = form.max_length;
  samples.short_sequence_probability = options.short_sequence_probability;
  samples.min_sentences = form.min_sentences;
  samples.seed = options.seed;
  MEGATRON_ASSIGN_OR_RETURN(
      std::vector<SentenceSample> list,
      LoadOrBuildSentenceSamples(form.dataset, options.cache, samples, document,
                                 [&](int64_t i) { return sentences->SequenceLength(i); }));
  return MaskedCorpus{std::move(sentences), std::move(pieces), std::move(masker), std::move(list)};
}

}  // namespace megatron
