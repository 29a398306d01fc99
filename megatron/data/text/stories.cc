#include "megatron/data/text/stories.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/philox.h"

namespace megatron {
namespace {

using Words = std::vector<absl::string_view>;

// Separates this use of a seed from others (DeriveKey's purposes).
constexpr uint32_t kStoryPurpose = 0x53746f72;

// Words are short, so that many choices fit into few bytes. Words that follow "a" begin with a
// consonant, nouns form their plural with an s, and no word contains a blank.
std::map<absl::string_view, Words> MakeWordLists() {
  std::map<absl::string_view, Words> lists;
  const auto set = [&lists](absl::string_view slot, absl::string_view words) {
    lists[slot] = absl::StrSplit(words, ' ');
  };
  // The first half are girls' names.
  set("hero", "Mia Ana Zoe Lily Ruby Eva Nora Tess Tom Ben Max Sam Leo Jack Finn Hugo");
  set("friend", "Mia Ana Zoe Lily Ruby Eva Nora Tess Tom Ben Max Sam Leo Jack Finn Hugo");
  set("he", "she he");
  set("treasure", "bell coin drum flag gem kite lamp ring");
  set("adjective",
      "big blue bold brave brown bumpy calm clean cold curly cute damp dark dry dusty "
      "fancy fast fat flat fresh funny glad gold good gray green happy huge jolly "
      "keen kind lazy loud lucky merry messy mild muddy neat new nice pale pink rare "
      "red rich rosy sad shy slim slow sly soft sour tall tame thin tidy tiny warm "
      "wet wild wise worn");
  set("animal",
      "ant ape bat bear bee bird bug bull cat crab crow cub dog dove duck eel frog "
      "goat gull hare hen lamb lion mole newt owl pig pup rat seal slug yak");
  set("thing",
      "bag ball bed belt boat book boot bowl bun cake can cap card cart clip coat "
      "cone crib cube cup desk doll door dot egg fan fig fork gear hat hook horn jar "
      "jet jug key knot lid lock map mop mug nail net nut oar pan pea pear pen pie "
      "pin pipe plum pot rake rope rug sack sail tie toy tub wig");
  set("place",
      "bank barn bay bog camp cave dam dock farm fort gate glen hall hill hut inn "
      "lake lane mill mine park path pier pond pool road room shed shop town well zoo");
  set("verb", "cut found got had held hid hit kept left lost made saw sent sold took won");
  static const auto& digits = *new std::vector<std::string>([] {
    std::vector<std::string> numbers;
    for (int i = 10; i < 100; ++i) numbers.push_back(std::to_string(i));
    return numbers;
  }());
  lists["number"] = Words(digits.begin(), digits.end());
  return lists;
}

// Draws the uniform choices that make up a story. It is counter-based: a story is a function of its
// seed and index.
class Chooser {
 public:
  Chooser(uint64_t seed, uint64_t index) : key_(DeriveKey(seed, kStoryPurpose, index, 0)) {}

  // Returns a number exactly uniform over [0, count): random words that would favour some values
  // are drawn again.
  size_t Choose(size_t count) {
    const uint64_t accepted = (uint64_t{1} << 32) / count * count;
    uint32_t word;
    do {
      word = NextWord();
    } while (word >= accepted);
    return word % count;
  }

 private:
  uint32_t NextWord() {
    const uint32_t place = next_++;
    if (place % 4 == 0) block_ = Philox(key_, {{place / 4, 0, 0, 0}});
    return block_.word[place % 4];
  }

  PhiloxKey key_;
  uint32_t next_ = 0;
  PhiloxBlock block_;
};

// Calls the functions for the literals and slots of a template, in order.
void ForEachPart(absl::string_view text,
                 absl::FunctionRef<void(absl::string_view literal)> on_literal,
                 absl::FunctionRef<void(absl::string_view slot)> on_slot) {
  while (!text.empty()) {
    const size_t open = std::min(text.find('{'), text.size());
    if (open > 0) on_literal(text.substr(0, open));
    text.remove_prefix(open);
    if (text.empty()) return;
    const size_t close = text.find('}');
    on_slot(text.substr(1, close - 1));
    text.remove_prefix(close + 1);
  }
}

// The words that are drawn once in a story, as indices into the lists of words.
struct Cast {
  size_t hero, companion, treasure;
};

Cast ChooseCast(Chooser* chooser) {
  Cast cast;
  const size_t names = StoryWords("hero").size();
  cast.hero = chooser->Choose(names);
  cast.companion = chooser->Choose(names - 1);
  if (cast.companion >= cast.hero) ++cast.companion;  // the friend is never the hero
  cast.treasure = chooser->Choose(StoryWords("treasure").size());
  return cast;
}

size_t ChooseWord(absl::string_view slot, const Cast& cast, Chooser* chooser) {
  if (slot == "hero") return cast.hero;
  if (slot == "friend") return cast.companion;
  if (slot == "treasure") return cast.treasure;
  if (slot == "he") return cast.hero < StoryWords("hero").size() / 2 ? 0 : 1;
  return chooser->Choose(StoryWords(slot).size());
}

bool IsCast(absl::string_view slot) {
  return slot == "hero" || slot == "friend" || slot == "treasure" || slot == "he";
}

// Returns the templates of the first sentences.
absl::Span<const std::vector<absl::string_view>> FirstTemplates(int sentences) {
  CHECK(sentences > 0 && sentences <= kStorySentences) << sentences;
  return absl::MakeConstSpan(StoryTemplates()).first(static_cast<size_t>(sentences));
}

double MeanLength(const Words& words) {
  double sum = 0;
  for (const absl::string_view word : words) sum += static_cast<double>(word.size());
  return sum / static_cast<double>(words.size());
}

}  // namespace

const std::vector<absl::string_view>& StoryWords(absl::string_view slot) {
  static const auto& lists = *new std::map<absl::string_view, Words>(MakeWordLists());
  const auto found = lists.find(slot);
  CHECK(found != lists.end()) << slot;
  return found->second;
}

const std::vector<std::vector<absl::string_view>>& StoryTemplates() {
  static const auto& templates = *new std::vector<std::vector<absl::string_view>>{
      {"{hero} the {adjective} {animal} {verb} {number} {adjective} {thing}s and a {adjective} "
       "{treasure}.",
       "In a {adjective} {place} {hero} the {adjective} {animal} {verb} {number} {thing}s and a "
       "{adjective} "
       "{treasure}.",
       "Once {hero} the {adjective} {animal} {verb} {number} {adjective} {thing}s for a "
       "{adjective} {treasure}."},
      {"{friend} the {adjective} {animal} {verb} {number} {adjective} {thing}s at a {adjective} "
       "{place}.",
       "Then {friend} the {adjective} {animal} {verb} {number} {adjective} {thing}s.",
       "By a {adjective} {place} {he} saw {friend} the {adjective} {animal} with {number} "
       "{thing}s."},
      {"But {number} {adjective} {animal}s {verb} the {treasure} at a {adjective} {place}.",
       "But a {adjective} {animal} {verb} the {treasure} by {number} {adjective} {place}s.",
       "But {number} {adjective} {animal}s {verb} the {treasure} in a {adjective} {thing}."},
      {"So {he} {verb} {number} {adjective} {thing}s and a {adjective} {thing}.",
       "Soon {number} {adjective} {animal}s {verb} a {adjective} {thing}.",
       "They {verb} {number} {adjective} {animal}s and a {adjective} {animal}."},
      {"A {adjective} {animal} {verb} it by {number} {adjective} {thing}s.",
       "It was at a {adjective} {place} with {number} {adjective} {thing}s.",
       "{friend} {verb} it for {number} {adjective} {animal}s and a {adjective} {thing}."},
      {"{hero} was {adjective} and {verb} {number} {adjective} {thing}s.",
       "That day {number} {adjective} {animal}s {verb} {number} {adjective} {thing}s.",
       "And {he} {verb} {number} {adjective} {thing}s with a {adjective} {animal}."},
  };
  CHECK_EQ(templates.size(), size_t{kStorySentences});
  return templates;
}

std::string MakeStory(uint64_t seed, uint64_t index, int sentences) {
  Chooser chooser(seed, index);
  const Cast cast = ChooseCast(&chooser);
  std::string story;
  for (const auto& alternatives : FirstTemplates(sentences)) {
    if (!story.empty()) story += ' ';
    ForEachPart(
        alternatives[chooser.Choose(alternatives.size())],
        [&](absl::string_view literal) { story.append(literal.data(), literal.size()); },
        [&](absl::string_view slot) {
          const absl::string_view word = StoryWords(slot)[ChooseWord(slot, cast, &chooser)];
          story.append(word.data(), word.size());
        });
  }
  return story;
}

std::vector<StoryQuestion> MakeStoryQuestions(uint64_t seed, uint64_t index) {
  Chooser chooser(seed, index);
  const Cast cast = ChooseCast(&chooser);
  std::vector<StoryQuestion> questions = {
      {"Who is it about?", std::string(StoryWords("hero")[cast.hero])},
      {"Who is the friend?", std::string(StoryWords("friend")[cast.companion])},
      {"What is the treasure?", std::string(StoryWords("treasure")[cast.treasure])}};
  std::rotate(questions.begin(), questions.begin() + index % 3, questions.end());
  if (index / 3 % 2 == 1) std::swap(questions[1], questions[2]);
  return questions;
}

StoryEntropy ComputeStoryEntropy(int sentences) {
  CHECK_GE(sentences, kFewestStorySentences);
  const double names = static_cast<double>(StoryWords("hero").size());
  StoryEntropy entropy;
  entropy.nats_per_story = std::log(names) + std::log(names - 1) +
                           std::log(static_cast<double>(StoryWords("treasure").size()));
  entropy.bytes_per_story = sentences - 1;  // blanks between sentences
  for (const auto& alternatives : FirstTemplates(sentences)) {
    const double count = static_cast<double>(alternatives.size());
    entropy.nats_per_story += std::log(count);
    for (const absl::string_view text : alternatives) {
      ForEachPart(
          text,
          [&](absl::string_view literal) {
            entropy.bytes_per_story += static_cast<double>(literal.size()) / count;
          },
          [&](absl::string_view slot) {
            const Words& words = StoryWords(slot);
            // The hero is uniform over all names, and so are the friend and the pronouns over all
            // stories, so expected lengths add up.
            entropy.bytes_per_story += MeanLength(words) / count;
            if (!IsCast(slot))
              entropy.nats_per_story += std::log(static_cast<double>(words.size())) / count;
          });
    }
  }
  return entropy;
}

}  // namespace megatron
