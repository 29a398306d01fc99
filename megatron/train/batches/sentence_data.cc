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

constexpr int32_t kMostMockSentinels = 100;  // the number in T5's own vocabulary

template <typename Options>
Options OptionsOf(const SentenceDataOptions& options, const SentenceDatasetOptions& dataset) {
  Options result;
  result.documents = dataset.documents;
  result.seq_length = static_cast<int32_t>(dataset.seq_length);
  result.seed = dataset.seed;
  result.num_samples = dataset.num_samples;
  result.short_sequence_probability = options.short_seq_prob;
  result.masking.probability = options.mask_prob;
  result.cache = dataset.cache;
  return result;
}

BertDatasetOptions BertOptions(const SentenceDataOptions& options,
                               const SentenceDatasetOptions& dataset) {
  auto result = OptionsOf<BertDatasetOptions>(options, dataset);
  result.classification_head = options.binary_head;
  return result;
}

T5DatasetOptions T5Options(const SentenceDataOptions& options,
                           const SentenceDatasetOptions& dataset) {
  auto result = OptionsOf<T5DatasetOptions>(options, dataset);
  result.decoder_seq_length = static_cast<int32_t>(options.decoder_seq_length);
  return result;
}

template <typename Source, typename Dataset>
absl::StatusOr<std::unique_ptr<SampleSource>> SourceOf(
    absl::StatusOr<std::unique_ptr<Dataset>> dataset) {
  MEGATRON_RETURN_IF_ERROR(dataset.status());
  return std::make_unique<Source>(*std::move(dataset));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> OpenSentences(
    const SentenceDataOptions& options, const SentenceDatasetOptions& dataset,
    std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
    const Tokenizer& tokenizer) {
  if (options.model == ModelKind::kT5) {
    return SourceOf<T5Source>(T5Dataset::Create(
        std::move(sentences), document, WordPiecesOf(tokenizer), T5Options(options, dataset)));
  }
  return SourceOf<BertSource>(BertDataset::Create(
      std::move(sentences), document, WordPiecesOf(tokenizer), BertOptions(options, dataset)));
}

absl::StatusOr<std::unique_ptr<SampleSource>> OpenMockSentences(
    const SentenceDataOptions& options, const SentenceDatasetOptions& dataset,
    const Tokenizer& tokenizer) {
  const int32_t vocab_size = tokenizer.vocab_size();
  if (options.model == ModelKind::kT5) {
    const int32_t sentinels = std::min(kMostMockSentinels, vocab_size / 2);
    return SourceOf<T5Source>(CreateMockDataset<T5Dataset>(
        dataset.split,
        tokenizer.special().sentinels.empty() ? MockWordPieces(vocab_size, sentinels)
                                              : WordPiecesOf(tokenizer),
        T5Options(options, dataset)));
  }
  return SourceOf<BertSource>(CreateMockDataset<BertDataset>(
      dataset.split,
      tokenizer.special().cls >= 0 ? WordPiecesOf(tokenizer) : MockWordPieces(vocab_size, 0),
      BertOptions(options, dataset)));
}

}  // namespace megatron
