// Decides which sentences make up each training sample of BERT and T5.
//
// Vocabulary. The corpus is a list of documents, each a run of *sentences*, which are the sequences
// of an indexed dataset made with sentence splitting. A *sample* is a few consecutive sentences of
// one document, and a *target length* to which its tokens are then cut. Samples are gathered
// greedily, sentence after sentence, until the target length is reached; one sample in 1 /
// short_sequence_probability gets a shorter target, so that the model sees short inputs too. Then
// samples are shuffled.
//
// The list is equal, row by row, to the sample_index that Megatron-LM builds (build_mapping in its
// C++ helpers).
#ifndef MEGATRON_DATA_MASKED_SENTENCE_SAMPLES_H_
#define MEGATRON_DATA_MASKED_SENTENCE_SAMPLES_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/data/split.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

// Returns [first, second), the sentences of the corpus that make up document `i`, as
// IndexedDataset::DocumentSequences does.
using DocumentSentences = absl::FunctionRef<std::pair<int64_t, int64_t>(int64_t i)>;

struct SentenceSample {
  int64_t first_sentence;
  int32_t num_sentences;
  int32_t target_length;  // no more than SentenceSampleOptions::max_length
};

struct SentenceSampleOptions {
  // The documents to draw from.
  SequenceRange documents;
  // The list has as many epochs as this many samples take, the last of them complete; one epoch if
  // it is not set.
  std::optional<int64_t> num_samples;
  // The number of tokens of a sample; at least 2.
  int32_t max_length = 0;
  // A number in [0, 1]; 0 makes no short samples.
  double short_sequence_probability = 0.1;
  // Documents with fewer sentences are left out, and no sample has fewer.
  int32_t min_sentences = 1;
  uint32_t seed = 1234;
};

// A document of several sentences is left out if one of them has more tokens: it is no prose.
constexpr int32_t kLongSentence = 512;

// Returns kInvalidArgument if no document can be used, or an option is out of range.
absl::StatusOr<std::vector<SentenceSample>> BuildSentenceSamples(
    const SentenceSampleOptions& options, DocumentSentences document,
    absl::FunctionRef<int32_t(int64_t sentence)> length);

// Copies tokens [begin, begin + out.size()) of the joined sentences that begin with
// `first_sentence`. Fails if the corpus cannot be read.
absl::Status ReadSentences(const TokenSequences& corpus, int64_t first_sentence, int64_t begin,
                           absl::Span<int32_t> out);

// Checks `tokens` (ids, or -1, with their names), which `model` needs. If one is not in the
// vocabulary, returns kInvalidArgument: "BERT needs the token [SEP], which the tokenizer does not
// have".
absl::Status CheckSpecialTokens(
    absl::string_view model, int32_t vocab_size,
    std::initializer_list<std::pair<int32_t, absl::string_view>> tokens);

// Returns kOutOfRange if `index` is not in [0, size).
absl::Status CheckSampleIndex(int64_t index, int64_t size);

// Pads `values` to `length` with `padding`, and returns their number before. CHECK-fails if there
// are more than `length`.
template <typename T>
int32_t PadTo(int32_t length, T padding, std::vector<T>* values) {
  const int32_t size = static_cast<int32_t>(values->size());
  CHECK_LE(size, length);
  values->resize(static_cast<size_t>(length), padding);
  return size;
}

// Returns kDataLoss, naming the position, if a token of sample `index` is outside [0, vocab_size).
absl::Status CheckSentenceTokens(absl::Span<const int32_t> tokens, int32_t vocab_size,
                                 int64_t index);

}  // namespace megatron

#endif  // MEGATRON_DATA_MASKED_SENTENCE_SAMPLES_H_
