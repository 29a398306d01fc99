// What a model trains on: for GPT a piece of the token stream, for BERT pieces of a document, for
// T5 a text with gaps and what belongs there; and where they come from.
#ifndef MEGATRON_DATA_SAMPLE_H_
#define MEGATRON_DATA_SAMPLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace megatron {

// Vectors hold one element for each of the sample's positions, unless said otherwise.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;     // the token that follows
  std::vector<float> loss_mask;    // 1 where the prediction counts, else 0
  std::vector<int32_t> positions;  // from 0; again from 0 behind each EOD where positions are reset
  std::vector<int32_t> document_starts;  // ascending, the first is 0: attention reaches back to the
                                         // last start and no further

  // BERT's alone.
  std::vector<int32_t> types;  // of tokens; empty: they have none
  int32_t sequence_class = 0;  // of the sample

  // T5's alone: what the encoder reads; all else is the decoder's.
  std::vector<int32_t> encoder_tokens;
  std::vector<int32_t> spans;  // of each label: the number of the span that it is of, or -1
};

// A finite, fixed list of samples. Any number of threads may call Get, each with a sample of its
// own.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t size() const = 0;

  // Replaces what is in `sample`; its vectors keep their memory, so a sample used again is filled
  // without allocation. Fails with kOutOfRange, naming sample and size, where `index` is not in
  // [0, size()), and with kDataLoss, naming the place, where the data holds a token outside the
  // vocabulary; what is in `sample` then is not to be used.
  virtual absl::Status Get(int64_t index, Sample* sample) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_SAMPLE_H_
