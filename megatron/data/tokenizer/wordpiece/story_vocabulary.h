// A WordPiece vocabulary for the stories of megatron/data/text/stories.h, for runs without a file:
// BERT's special tokens, each of the stories' words, and letters and digits, alone and inside of
// words, so that other text can be encoded too.
#ifndef MEGATRON_DATA_TOKENIZER_WORDPIECE_STORY_VOCABULARY_H_
#define MEGATRON_DATA_TOKENIZER_WORDPIECE_STORY_VOCABULARY_H_

#include <string>

namespace megatron {

// Returns the vocabulary as a vocab.txt: one piece per line.
std::string StoryVocabulary();

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_WORDPIECE_STORY_VOCABULARY_H_
