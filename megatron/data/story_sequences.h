// Stories, tokenized, in memory: a corpus that needs no file.
#ifndef MEGATRON_DATA_STORY_SEQUENCES_H_
#define MEGATRON_DATA_STORY_SEQUENCES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "megatron/data/in_memory_sequences.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Stories 0, 1, 2, … of the stream `seed`, as many as it takes for `num_bytes` of text; each is a
// sequence that ends in EOD. Fails where the tokenizer can't express text.
absl::StatusOr<InMemorySequences> MakeStorySequences(int64_t num_bytes, uint64_t seed,
                                                     const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_DATA_STORY_SEQUENCES_H_
