#include "megatron/train/batches/sentence_data.h"

#include <algorithm>
#include <utility>

#include "megatron/base/status_macros.h"
#include "megatron/data/masked/bert_dataset.h"
#include "megatron/data/masked/bert_source.h"
#include "megatron/data/masked/mock_sentences.h"
#include "megatron/data/masked/t5_dataset.h"
#include "megatron/data/masked/t5_source.h"

namespace megatron {
namespace {

constexpr int32_t kMostMockSentinels = 100;  // as many as T5's own vocabulary has

template <typename Options>
Options OptionsOf(const SentenceDataOptions& options, const SentencePart& part) {
  Options dataset;
  dataset.documents = part.documents;
  dataset.seq_length = static_cast<int32_t>(part.seq_length);
  dataset.seed = part.seed;
  dataset.num_samples = part.num_samples;
  dataset.short_sequence_probability = options.short_seq_prob;
  dataset.masking.probability = options.mask_prob;
  dataset.cache = part.cache;
  return dataset;
}

BertDatasetOptions BertOptions(const SentenceDataOptions& options, const SentencePart& part) {
  auto dataset = OptionsOf<BertDatasetOptions>(options, part);
  dataset.classification_head = options.binary_head;
  return dataset;
}

T5DatasetOptions T5Options(const SentenceDataOptions& options, const SentencePart& part) {
  auto dataset = OptionsOf<T5DatasetOptions>(options, part);
  dataset.decoder_seq_length = static_cast<int32_t>(options.decoder_seq_length);
  return dataset;
}

template <typename Source, typename Dataset>
absl::StatusOr<std::unique_ptr<SampleSource>> SourceOf(
    absl::StatusOr<std::unique_ptr<Dataset>> dataset) {
  MEGATRON_RETURN_IF_ERROR(dataset.status());
  return std::make_unique<Source>(*std::move(dataset));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> OpenSentences(
    const SentenceDataOptions& options, const SentencePart& part,
    std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
    const Tokenizer& tokenizer) {
  if (options.model == ModelKind::kT5) {
    return SourceOf<T5Source>(T5Dataset::Create(std::move(sentences), document,
                                                WordPiecesOf(tokenizer), T5Options(options, part)));
  }
  return SourceOf<BertSource>(BertDataset::Create(
      std::move(sentences), document, WordPiecesOf(tokenizer), BertOptions(options, part)));
}

absl::StatusOr<std::unique_ptr<SampleSource>> OpenMockSentences(const SentenceDataOptions& options,
                                                                const SentencePart& part,
                                                                const Tokenizer& tokenizer) {
  const int32_t vocab_size = tokenizer.vocab_size();
  if (options.model == ModelKind::kT5) {
    const int32_t sentinels = std::min(kMostMockSentinels, vocab_size / 2);
    return SourceOf<T5Source>(CreateMockDataset<T5Dataset>(
        part.split,
        tokenizer.special().sentinels.empty() ? MockWordPieces(vocab_size, sentinels)
                                              : WordPiecesOf(tokenizer),
        T5Options(options, part)));
  }
  return SourceOf<BertSource>(CreateMockDataset<BertDataset>(
      part.split,
      tokenizer.special().cls >= 0 ? WordPiecesOf(tokenizer) : MockWordPieces(vocab_size, 0),
      BertOptions(options, part)));
}

}  // namespace megatron
