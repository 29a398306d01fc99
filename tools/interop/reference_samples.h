// The samples of the reference runs, with something to learn. Those of BERT and T5 have any length,
// as their datasets give them.
#ifndef MEGATRON_TOOLS_INTEROP_REFERENCE_SAMPLES_H_
#define MEGATRON_TOOLS_INTEROP_REFERENCE_SAMPLES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "megatron/data/sample.h"

namespace megatron {

// The size of the vocabulary.
inline constexpr int64_t kReferenceVocab = 100;
// The number of tokens of a sample of conversations.
inline constexpr int64_t kReferenceChatLength = 80;
// The most tokens of a sample, of what an encoder reads and of what a decoder writes.
inline constexpr int64_t kReferenceLength = 32, kReferenceDecoderLength = 24;

// Samples for GPT: kReferenceLength tokens of a noisy arithmetic sequence, each to be predicted.
std::vector<Sample> NextTokenSamples(int64_t count);
// Samples of conversations about sums, in the bytes of the form "plain": kReferenceChatLength
// tokens, two or three conversations each. The vocabulary is that of bytes.
std::vector<Sample> ChatSamples(int64_t count);
// Samples for BERT: two pieces of such a sequence, in every third sample in the wrong order; every
// fourth token masked.
std::vector<Sample> MaskedSamples(int64_t count);
// The classes of labelled samples, and the sequences of a sample with choices.
inline constexpr int32_t kReferenceClasses = 3, kReferenceChoices = 2;
// Labelled samples for BERT: two pieces of such a sequence, the first of which shows the class;
// and two such sequences each, of which one is the right one.
std::vector<Sample> ClassifiedSamples(int64_t count);
std::vector<Sample> ChoiceSamples(int64_t count);
// Samples for T5: such a sequence with spans cut out for the decoder to write.
std::vector<Sample> SpanSamples(int64_t count);

class SampleList : public SampleSource {
 public:
  explicit SampleList(std::vector<Sample> samples) : samples_(std::move(samples)) {}

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  absl::Status Get(int64_t index, Sample* sample) const override {
    *sample = samples_[static_cast<size_t>(index)];
    return absl::OkStatus();
  }

 private:
  const std::vector<Sample> samples_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_INTEROP_REFERENCE_SAMPLES_H_
