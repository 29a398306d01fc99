// Tokenized stories in memory: a corpus that needs no file.
#ifndef MEGATRON_DATA_GPT_STORY_SEQUENCES_H_
#define MEGATRON_DATA_GPT_STORY_SEQUENCES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/gpt/in_memory_sequences.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Tokenizes stories 0, 1, 2, … of the stream `seed`, as many as `num_bytes` of text take. Each
// story is a sequence that ends in EOD. Fails if the tokenizer cannot encode text.
absl::StatusOr<InMemorySequences> MakeStorySequences(int64_t num_bytes, uint64_t seed,
                                                     const Tokenizer& tokenizer);

// The same stories as documents of sentences, without EOD.
struct StorySentences {
  InMemorySequences sentences;
  std::vector<int64_t> first_sentences = {0};  // first sentence of each story, and the end

  int64_t num_documents() const { return static_cast<int64_t>(first_sentences.size()) - 1; }
  std::pair<int64_t, int64_t> DocumentSequences(int64_t i) const {
    return {first_sentences[i], first_sentences[i + 1]};
  }
};
absl::StatusOr<StorySentences> MakeStorySentences(int64_t num_bytes, uint64_t seed,
                                                  const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_STORY_SEQUENCES_H_
