// T5's samples: a text from which some spans are cut out, for the decoder to write, drawn exactly
// as Megatron draws them (see sentence_samples.h and word_masking.h).
//
// For example, in the text "Thank you for inviting me to your party last week" the spans "for
// inviting" and "last" are masked, with sentinels <X> and <Y> (Raffel et al., arXiv:1910.10683,
// figure 2):
//
//   encoder tokens  Thank you <X> me to your party <Y> week
//   decoder tokens  [BOS] <X> for inviting <Y> last
//   labels                <X> for inviting <Y> last [EOS]
//
// If a vocabulary has no BOS, as with the published T5s, padding takes its place. Spans are the
// n-grams of word_masking.h; two that touch stay two. The class is used as BertDataset is.
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
  std::vector<float> loss_mask;    // 1 if there is a label, else 0
  int32_t num_encoder_tokens = 0;  // tokens before the padding; Megatron's masks are 1 on these
  int32_t num_decoder_tokens = 0;
  bool truncated = false;  // tokens were dropped to reach the target length
};

// `seq_length` is the encoder's.
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
  // Returns kInvalidArgument if the documents give no sample, an option is out of range, or the
  // vocabulary lacks EOS, padding or sentinels.
  static absl::StatusOr<std::unique_ptr<T5Dataset>> Create(
      std::shared_ptr<const TokenSequences> sentences, DocumentSentences document,
      WordPieces pieces, const T5DatasetOptions& options);

  int64_t size() const { return static_cast<int64_t>(corpus_.samples.size()); }

  // Replaces the contents of `sample`. Fails with kOutOfRange if `index` is not in [0, size()), and
  // with kDataLoss if the data holds a token outside the vocabulary. Spans stay in the text, the
  // last ones first, if the decoder has no room or no sentinel for them (Megatron ends the run
  // then).
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
