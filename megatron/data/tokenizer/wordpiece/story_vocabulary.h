// A WordPiece vocabulary for the stories of megatron/data/text/stories.h: BERT's special tokens,
// each of the stories' words, and letters and digits, alone and inside of words, so that other text
// can be written too. For runs without a file.
#ifndef MEGATRON_DATA_TOKENIZER_WORDPIECE_STORY_VOCABULARY_H_
#define MEGATRON_DATA_TOKENIZER_WORDPIECE_STORY_VOCABULARY_H_

#include <string>

namespace megatron {

// As a vocab.txt: one piece per line.
std::string StoryVocabulary();

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_WORDPIECE_STORY_VOCABULARY_H_
