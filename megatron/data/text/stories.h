// Children's stories from a small grammar: any amount of training text, the same on every machine,
// whose entropy is known exactly.
//
//   Once Tom the fat owl took 15 sad cones for a mild lamp. By a bumpy bay he saw Ana the clean
//   frog with 42 sacks. But 65 happy apes took the lamp in a dry cube. ...
//
// A story is a sequence of sentences: somebody with a treasure, a friend, the treasure lost, a
// search, the treasure found, an end. Each sentence is one of a few templates, and each slot of a
// template is filled with one word of a list. All choices are uniform, and independent except for
// names. The hero's and the friend's names, the hero's pronoun and the treasure are drawn once in a
// story and then repeated.
//
// No two sequences of choices give the same text (a test proves it for every pair of templates), so
// the entropy of the text is the sum of the logarithms of the numbers of choices. A model can reach
// that loss and none can go below it, so the loss of a model trained on stories tells how good the
// model is. Choices are so frequent that two stories hardly ever share forty bytes, so a model that
// writes good stories has not memorized them.
#ifndef MEGATRON_DATA_TEXT_STORIES_H_
#define MEGATRON_DATA_TEXT_STORIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// The sentences of a whole story, and the first ones, in which hero, friend and treasure are named.
constexpr int kStorySentences = 6, kFewestStorySentences = 2;

// Returns the first `sentences` sentences of story number `index` of the stream `seed`. Any thread
// may call, in any order.
std::string MakeStory(uint64_t seed, uint64_t index, int sentences = kStorySentences);

// A question about a story, whose answer is a word of its first kFewestStorySentences sentences:
// the hero, the friend or the treasure.
struct StoryQuestion {
  std::string question, answer;
};
// Returns the three questions about MakeStory(seed, index), in an order that the index decides.
std::vector<StoryQuestion> MakeStoryQuestions(uint64_t seed, uint64_t index);

// Expectations over all stories, exact up to floating-point rounding.
struct StoryEntropy {
  double nats_per_story = 0;
  double bytes_per_story = 0;

  double nats_per_byte() const { return nats_per_story / bytes_per_story; }
  // The entropy per token of byte tokens with one end-of-document token after each story. That
  // token carries no information: the grammar determines where a story ends.
  double nats_per_token() const { return nats_per_story / (bytes_per_story + 1); }
};

// `sentences`, as many as the stories have, is kFewestStorySentences or more.
StoryEntropy ComputeStoryEntropy(int sentences = kStorySentences);

// Returns the grammar: the templates of each sentence in turn. A template is text with slots in
// braces. {hero}, {friend} and {treasure} are drawn once per story, {he} follows from the hero, and
// any other slot is drawn anew each time from the list of its name.
const std::vector<std::vector<absl::string_view>>& StoryTemplates();

// Returns the words that may fill a slot.
const std::vector<absl::string_view>& StoryWords(absl::string_view slot);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_STORIES_H_
