// T5's samples: a text of which some spans are cut out, for the decoder to write, exactly as
// Megatron draws them (see sentence_samples.h and word_masking.h).
//
// In a text "Thank you for inviting me to your party" whose spans "for inviting" and "last" are
// masked, with sentinels <X> and <Y>:
//   encoder tokens  Thank you <X> me to your party <Y> week
//   decoder tokens  [BOS] <X> for inviting <Y> last
//   labels                <X> for inviting <Y> last [EOS]
// (Raffel et al., arXiv:1910.10683, figure 2.) Spans are n-grams of word_masking.h; two that touch
// stay two.
//
// Used as BertDataset is.
#ifndef MEGATRON_DATA_MASKED_T5_DATASET_H_
#define MEGATRON_DATA_MASKED_T5_DATASET_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "megatron/data/masked/sentence_sample_cache.h"
#include "megatron/data/masked/sentence_samples.h"
#include "megatron/data/masked/word_masking.h"
#include "megatron/data/split.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

// The encoder's vector holds seq_length elements, the others decoder_seq_length.
struct T5Sample {
  std::vector<int32_t> encoder_tokens;
  std::vector<int32_t> decoder_tokens;
  std::vector<int32_t> labels;     // the decoder token that follows; -1 on padding
  std::vector<float> loss_mask;    // 1 where there is a label, else 0
  int32_t num_encoder_tokens = 0;  // before the padding: Megatron's masks are 1 on so many
  int32_t num_decoder_tokens = 0;
  bool truncated = false;  // tokens were dropped to reach the target length
};

struct T5DatasetOptions {
  T5DatasetOptions() {
    masking.max_ngram = 10;
    masking.use_geometric_distribution = true;
  }

  // The documents that this dataset may read.
  SequenceRange documents;
  int32_t seq_length = 0;  // of the encoder
  int32_t decoder_seq_length = 0;
  uint32_t seed = 1234;
  // At least so many samples, from as many epochs as it takes; one epoch where it is not set.
  absl::optional<int64_t> num_samples;
  double short_sequence_probability = 0.1;
  WordMaskingOptions masking;
  // Where the list of samples is kept.
  SentenceSampleCache cache;
};

// Any number of threads may call the const methods.
class T5Dataset {
 public:
  // kInvalidArgument where the documents give no sample, an option is out of its range, or the
  // vocabulary lacks BOS, EOS, padding or sentinels.
  static absl::StatusOr<std::unique_ptr<T5Dataset>> Create(
      std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
      WordPieces pieces, const T5DatasetOptions& options);

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }

  // Replaces what is in `sample`. Fails with kOutOfRange where `index` is not in [0, size()), and
  // with kDataLoss where the data holds a token outside the vocabulary. Spans that the decoder has
  // no room for, or no sentinel, stay in the text, the last ones first (Megatron ends the run
  // there).
  absl::Status Get(int64_t index, T5Sample* sample) const;

  const std::vector<SentenceSample>& samples() const { return samples_; }
  const std::vector<int32_t>& sentinels() const { return pieces_.special.sentinels; }

 private:
  T5Dataset(std::shared_ptr<const TokenSequences> sentences, WordPieces pieces,
            const T5DatasetOptions& options, WordMasker masker,
            std::vector<SentenceSample> samples);

  void CutSpans(absl::Span<const int32_t> text, const MaskedNgrams& spans, T5Sample* sample) const;
  void Pad(T5Sample* sample) const;

  const std::shared_ptr<const TokenSequences> sentences_;
  const WordPieces pieces_;
  const T5DatasetOptions options_;
  const WordMasker masker_;
  const std::vector<SentenceSample> samples_;
};

// Samples of mock_sentences.h; the three splits are equal thirds. `options.documents` and
// `options.cache` are ignored.
absl::StatusOr<std::unique_ptr<T5Dataset>> CreateMockT5Dataset(Split split, WordPieces pieces,
                                                               T5DatasetOptions options);

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_T5_DATASET_H_
