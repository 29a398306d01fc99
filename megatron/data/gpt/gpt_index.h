// The order in which Megatron walks through a corpus.
//
// Vocabulary. The corpus is a list of sequences. An *epoch* visits each once, in random order; the
// visits of all epochs, tokens joined, make one *stream*. Sample k (before shuffling) is the
// stream's tokens [k·S, k·S + S], where S is the sequence length: S inputs, and the one after them,
// which is only a label and opens the next sample. Samples too are drawn in random order.
//
// All is equal, element by element, to the document_index, sample_index and shuffle_index that
// Megatron-LM computes, numpy's generator included, so a run here sees the data of a run there.
#ifndef MEGATRON_DATA_GPT_GPT_INDEX_H_
#define MEGATRON_DATA_GPT_GPT_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megatron {

// A place in the stream: a visit, as an index into GptIndex::documents, and a token of that
// sequence.
struct StreamPosition {
  int32_t visit;
  int32_t offset;
};

// What an index will hold.
struct GptIndexPlan {
  int64_t tokens_per_epoch = 0;
  int64_t num_epochs = 0;
  int64_t num_samples = 0;
  // Whether the last epoch is shuffled on its own: so where fewer than 80 % of its samples are
  // needed. All other epochs are shuffled together.
  bool separate_final_epoch = false;
};

struct GptIndex : GptIndexPlan {
  // The sequence that each visit reads.
  absl::Span<const int32_t> documents;
  // Where each sample begins, in stream order; one more than there are samples.
  absl::Span<const StreamPosition> samples;
  // The order in which samples are drawn.
  absl::Span<const uint32_t> shuffle;
  // What the three point into.
  std::shared_ptr<const void> storage;
};

struct GptIndexOptions {
  // The corpus is these sequences of a dataset.
  int64_t first_sequence = 0;
  int64_t num_sequences = 0;
  int64_t seq_length = 0;
  uint32_t seed = 1234;
  // As many epochs as it takes to have at least this many samples; one epoch where it is not set.
  std::optional<int64_t> num_samples;
};

// `length` gives the tokens of each of these sequences, by its number. kInvalidArgument where the
// corpus is too small for a sample, or the request so large that its index needs more than 2^31
// visits or 2^32 samples.
absl::StatusOr<GptIndexPlan> PlanGptIndex(const GptIndexOptions& options,
                                          absl::FunctionRef<int32_t(int64_t i)> length);

// Takes no more memory than the index itself. Fails as PlanGptIndex does.
absl::StatusOr<GptIndex> BuildGptIndex(const GptIndexOptions& options,
                                       absl::FunctionRef<int32_t(int64_t i)> length);

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_GPT_INDEX_H_
