#include "megatron/data/gpt/story_sequences.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/text/stories.h"

namespace megatron {

absl::StatusOr<InMemorySequences> MakeStorySequences(int64_t num_bytes, uint64_t seed,
                                                     const Tokenizer& tokenizer) {
  InMemorySequences sequences;
  std::vector<int32_t> tokens;
  for (int64_t bytes = 0; bytes < num_bytes;) {
    const std::string story = MakeStory(seed, static_cast<uint64_t>(sequences.num_sequences()));
    bytes += static_cast<int64_t>(story.size());
    tokens.clear();
    MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(story, &tokens), _ << "while tokenizing stories");
    tokens.push_back(tokenizer.eod());
    sequences.Append(tokens);
  }
  return sequences;
}

absl::StatusOr<StorySentences> MakeStorySentences(int64_t num_bytes, uint64_t seed,
                                                  const Tokenizer& tokenizer) {
  StorySentences stories;
  std::vector<int32_t> tokens;
  for (int64_t bytes = 0; bytes < num_bytes;) {
    const std::string story = MakeStory(seed, static_cast<uint64_t>(stories.num_documents()));
    bytes += static_cast<int64_t>(story.size());
    // Each sentence ends with its full stop.
    for (absl::string_view sentence : absl::StrSplit(story, '.', absl::SkipWhitespace())) {
      tokens.clear();
      MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(std::string(sentence) + ".", &tokens),
                               _ << "while tokenizing stories");
      stories.sentences.Append(tokens);
    }
    stories.first_sentences.push_back(stories.sentences.num_sequences());
  }
  return stories;
}

}  // namespace megatron
