// The order in which Megatron reads a corpus.
//
// Vocabulary. The corpus is a list of sequences. An *epoch* visits each once, in random order; the
// visits of all epochs, their tokens joined, make one *stream*. Sample k (before shuffling) is the
// stream's tokens [k·S, k·S + S], where S is the sequence length: S inputs and the token after
// them, which is only a label and opens the next sample. Samples are drawn in random order too.
//
// All arrays are equal, element by element, to the document_index, sample_index and shuffle_index
// that Megatron-LM computes, numpy's generator included, so a run here sees the data of a run
// there.
#ifndef MEGATRON_DATA_GPT_GPT_INDEX_H_
#define MEGATRON_DATA_GPT_GPT_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megatron {

// A position in the stream: a visit, as an index into GptIndex::documents, and a token of that
// sequence.
struct StreamPosition {
  int32_t visit;
  int32_t offset;
};

// The sizes of an index.
struct GptIndexPlan {
  int64_t tokens_per_epoch = 0;
  int64_t num_epochs = 0;
  int64_t num_samples = 0;
  // True if the last epoch is shuffled on its own, which happens if fewer than 80 % of its samples
  // are needed. All other epochs are shuffled together.
  bool separate_final_epoch = false;
};

struct GptIndex : GptIndexPlan {
  // The sequence that each visit reads.
  absl::Span<const int32_t> documents;
  // The position at which each sample begins, in stream order; one element more than samples.
  absl::Span<const StreamPosition> samples;
  // The order in which samples are drawn.
  absl::Span<const uint32_t> shuffle;
  // Owns the memory of the three arrays.
  std::shared_ptr<const void> storage;
};

struct GptIndexOptions {
  // The sequences of the dataset that make up the corpus.
  int64_t first_sequence = 0;
  int64_t num_sequences = 0;
  int64_t seq_length = 0;
  uint32_t seed = 1234;
  // The index has as many epochs as this many samples take; one epoch if it is not set.
  std::optional<int64_t> num_samples;
};

// Computes the sizes. `length` returns the number of tokens of a sequence, given its number.
// kInvalidArgument if the corpus is too small for a sample, or if the request is so large that its
// index needs more than 2^31 visits or 2^32 samples.
absl::StatusOr<GptIndexPlan> PlanGptIndex(const GptIndexOptions& options,
                                          absl::FunctionRef<int32_t(int64_t i)> length);

// Builds the index in no more memory than the index itself. Fails as PlanGptIndex does.
absl::StatusOr<GptIndex> BuildGptIndex(const GptIndexOptions& options,
                                       absl::FunctionRef<int32_t(int64_t i)> length);

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_GPT_INDEX_H_
