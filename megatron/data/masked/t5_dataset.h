// T5's samples: a text of which some spans are cut out, for the decoder to write, exactly as
// Megatron draws them (see sentence_samples.h and word_masking.h).
//
// In a text "Thank you for inviting me to your party" whose spans "for inviting" and "last" are
// masked, with sentinels <X> and <Y>:
//   encoder tokens  Thank you <X> me to your party <Y> week
//   decoder tokens  [BOS] <X> for inviting <Y> last
//   labels                <X> for inviting <Y> last [EOS]
// (Raffel et al., arXiv:1910.10683, figure 2.) Where a vocabulary has no BOS, as the published T5s'
// have none, padding takes its place. Spans are n-grams of word_masking.h; two that touch
// stay two.
//
// Used as BertDataset is.
#ifndef MEGATRON_DATA_MASKED_T5_DATASET_H_
#define MEGATRON_DATA_MASKED_T5_DATASET_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/data/masked/masked_corpus.h"

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

// seq_length is the encoder's.
struct T5DatasetOptions : MaskedDatasetOptions {
  T5DatasetOptions() {
    masking.max_ngram = 10;
    masking.use_geometric_distribution = true;
  }

  int32_t decoder_seq_length = 0;
};

// Any number of threads may call the const methods.
class T5Dataset {
 public:
  // kInvalidArgument where the documents give no sample, an option is out of its range, or the
  // vocabulary lacks EOS, padding or sentinels.
  static absl::StatusOr<std::unique_ptr<T5Dataset>> Create(
      std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
      WordPieces pieces, const T5DatasetOptions& options);

  int64_t size() const { return static_cast<int64_t>(corpus_.samples.size()); }

  // Replaces what is in `sample`. Fails with kOutOfRange where `index` is not in [0, size()), and
  // with kDataLoss where the data holds a token outside the vocabulary. Spans that the decoder has
  // no room for, or no sentinel, stay in the text, the last ones first (Megatron ends the run
  // there).
  absl::Status Get(int64_t index, T5Sample* sample) const;

  const std::vector<SentenceSample>& samples() const { return corpus_.samples; }
  const std::vector<int32_t>& sentinels() const { return corpus_.pieces.special.sentinels; }

 private:
  T5Dataset(MaskedCorpus corpus, const T5DatasetOptions& options)
      : corpus_(std::move(corpus)), options_(options) {}

  void CutSpans(absl::Span<const int32_t> text, const MaskedNgrams& spans, T5Sample* sample) const;
  void Pad(T5Sample* sample) const;

  const MaskedCorpus corpus_;
  const T5DatasetOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_T5_DATASET_H_
