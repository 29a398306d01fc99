// Training samples and the interface of datasets that produce them. A sample of GPT is a piece of
// the token stream, of BERT pieces of a document, of T5 a text with gaps and the text that belongs
// there.
#ifndef MEGATRON_DATA_SAMPLE_H_
#define MEGATRON_DATA_SAMPLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace megatron {

// Vectors hold one element for each of the sample's positions unless said otherwise.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;   // the token that follows
  std::vector<float> loss_mask;  // 1 if the prediction counts, or its weight, else 0
  // Count from 0; again from 0 after each EOD if positions are reset.
  std::vector<int32_t> positions;
  // The starts of documents, ascending, beginning with 0: attention reaches back to the last start
  // and no further.
  std::vector<int32_t> document_starts;

  // BERT only.
  std::vector<int32_t> types;  // token types; empty if tokens have none
  int32_t sequence_class = 0;  // class of the whole sample
  float sequence_weight = 1;   // 1 if its prediction counts, else 0

  // T5 only. The encoder reads encoder_tokens; all other fields are the decoder's.
  std::vector<int32_t> encoder_tokens;
  std::vector<int32_t> spans;  // number of the span that each label belongs to, or -1
};

// A finite, fixed list of samples. Any number of threads may call Get, each with its own `sample`.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t size() const = 0;

  // Replaces the contents of `sample`; its vectors keep their memory, so reusing a sample allocates
  // nothing. Fails with kOutOfRange, naming sample and size, if `index` is not in [0, size()), and
  // with kDataLoss, naming the position, if the data holds a token outside the vocabulary. After an
  // error the contents of `sample` must not be used.
  virtual absl::Status Get(int64_t index, Sample* sample) const = 0;

  // Returns which of several sources, in their order, a sample in [0, size()) is of (blend.h); 0
  // where there is one.
  virtual int SourceOf(int64_t /*index*/) const { return 0; }
};

}  // namespace megatron

#endif  // MEGATRON_DATA_SAMPLE_H_
