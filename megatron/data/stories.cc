#include "megatron/data/stories.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "megatron/base/philox.h"

namespace megatron {
namespace {

using Words = std::vector<absl::string_view>;

// Separates our use of a seed from others' (DeriveKey's purposes).
constexpr uint32_t kStoryPurpose = 0x53746f72;

// Words are short, so that many choices fit into few bytes. What follows "a" begins with a
// consonant, nouns form their plural with an s, and no word has a blank.
std::map<absl::string_view, Words> MakeWordLists() {
  std::map<absl::string_view, Words> lists;
  const auto set = [&lists](absl::string_view slot, absl::string_view words) {
    lists[slot] = absl::StrSplit(words, ' ');
  };
  // The first half are girls.
  set("hero", "Mia Ana Zoe Lily Ruby Eva Nora Tess Tom Ben Max Sam Leo Jack Finn Hugo");
  set("friend", "Mia Ana Zoe Lily Ruby Eva Nora Tess Tom Ben Max Sam Leo Jack Finn Hugo");
  set("he", "she he");
  set("He", "She He");
  set("treasure", "bell coin drum flag gem kite lamp ring");
  set("mood",
      "bold brave calm cross dizzy fair fast fond funny fussy giddy glad good grand "
      "grim happy hasty jolly keen kind lazy loud loyal lucky mean meek merry messy "
      "moody nosy prim proud quick quiet rowdy sad shy silly sly stern stout sulky "
      "tame timid tired tough vain wise");
  set("look",
      "bare big blue bold brown bumpy cheap clean cold cool crisp curly cute damp "
      "dark deep dim dirty dry dull dusty faded fancy fat fine firm flat fresh furry "
      "gold gray green hard heavy hot huge large light long loose low lush magic mild "
      "mossy muddy neat new nice pale pink plain plump poor pretty pure rare red rich "
      "ripe rosy rough round rusty safe salty shiny short slim slow small smooth snug "
      "soft sour spare spicy steep stiff sunny sweet tall tan thick thin tidy tiny "
      "torn vast warm weak wet white wide wild worn");
  set("animal",
      "ant ape bat bear bee bird boar bug bull cat clam colt cow crab crow cub dog "
      "dove duck eel emu fawn frog gnat goat gull hare hawk hen lamb lark lion loon "
      "mole moth mule newt owl pig pup ram rat seal slug swan toad wasp yak");
  set("thing",
      "bag ball band bean bed belt bike boat book boot bow bowl bun cake can cane cap "
      "card cart chair clip clock club coat cone cot crib crown cube cup dart desk "
      "doll door dot egg fan fig flute fork gear gown hat hook horn jar jet jug key "
      "knot leek lid lock log map mat mint mop mug nail nest net nut oar pan pea pear "
      "pen pie pin pipe plum pot raft rake robe rod rope rug sack sail seed shoe sled "
      "sock tart tent tie tile toy tray tub vase vest wand wig");
  set("place",
      "bank barn bay bog camp cape cave cove dam den dock dune farm fort gate glen "
      "gulf hall hill hole hut inn isle lake lane lawn maze mill mine moat nook park "
      "path peak pier pit pond pool port road rock roof room shed shop town vale zoo");
  set("verb",
      "bent bit chose cut drew fixed found got had held hid hit hugged hung kept "
      "kicked left liked lost made moved packed pulled saw sent shook sold threw tied "
      "took tossed won");
  static const auto& digits = *new std::vector<std::string>([] {
    std::vector<std::string> numbers;
    for (int i = 10; i < 100; ++i) numbers.push_back(std::to_string(i));
    return numbers;
  }());
  lists["number"] = Words(digits.begin(), digits.end());
  return lists;
}

// Uniform choices, all that a story consists of. Counter-based: a story is a function of its seed
// and index.
class Chooser {
 public:
  Chooser(uint64_t seed, uint64_t index) : key_(DeriveKey(seed, kStoryPurpose, index, 0)) {}

  // Uniform over [0, count), exactly: words that would favour some values are drawn again.
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

// Takes a template apart, in order.
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

// What is drawn once in a story, as indices into the lists of words.
struct Cast {
  size_t hero, friend_, treasure;
};

Cast ChooseCast(Chooser* chooser) {
  Cast cast;
  const size_t names = StoryWords("hero").size();
  cast.hero = chooser->Choose(names);
  cast.friend_ = chooser->Choose(names - 1);
  if (cast.friend_ >= cast.hero) ++cast.friend_;  // anybody but the hero
  cast.treasure = chooser->Choose(StoryWords("treasure").size());
  return cast;
}

size_t ChooseWord(absl::string_view slot, const Cast& cast, Chooser* chooser) {
  if (slot == "hero") return cast.hero;
  if (slot == "friend") return cast.friend_;
  if (slot == "treasure") return cast.treasure;
  if (slot == "he" || slot == "He") return cast.hero < StoryWords("hero").size() / 2 ? 0 : 1;
  return chooser->Choose(StoryWords(slot).size());
}

bool IsCast(absl::string_view slot) {
  return slot == "hero" || slot == "friend" || slot == "treasure" || slot == "he" || slot == "He";
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
      {"{hero} the {mood} {animal} {verb} {number} {look} {thing}s and a {look} {treasure}.",
       "In a {look} {place} {hero} the {mood} {animal} {verb} {number} {thing}s and a {look} "
       "{treasure}.",
       "Once {hero} the {mood} {animal} {verb} {number} {look} {thing}s for a {look} {treasure}."},
      {"{friend} the {mood} {animal} {verb} {number} {look} {thing}s at a {look} {place}.",
       "Then {friend} the {mood} {animal} {verb} {number} {look} {thing}s.",
       "By a {look} {place} {he} saw {friend} the {mood} {animal} with {number} {thing}s."},
      {"But {number} {mood} {animal}s {verb} the {treasure} at a {look} {place}.",
       "But a {mood} {animal} {verb} the {treasure} by {number} {look} {place}s.",
       "But {number} {look} {animal}s {verb} the {treasure} in a {look} {thing}."},
      {"So {he} {verb} {number} {look} {thing}s and a {look} {thing}.",
       "Soon {number} {mood} {animal}s {verb} a {look} {thing}.",
       "They {verb} {number} {mood} {animal}s and a {look} {animal}."},
      {"A {mood} {animal} {verb} it by {number} {look} {thing}s.",
       "It was at a {look} {place} with {number} {look} {thing}s.",
       "{friend} {verb} it for {number} {mood} {animal}s and a {look} {thing}."},
      {"{hero} was {mood} and {verb} {number} {look} {thing}s.",
       "That day {number} {mood} {animal}s {verb} {number} {look} {thing}s.",
       "And {he} {verb} {number} {look} {thing}s with a {mood} {animal}."},
  };
  return templates;
}

std::string MakeStory(uint64_t seed, uint64_t index) {
  Chooser chooser(seed, index);
  const Cast cast = ChooseCast(&chooser);
  std::string story;
  for (const auto& alternatives : StoryTemplates()) {
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

StoryEntropy ComputeStoryEntropy() {
  const double names = static_cast<double>(StoryWords("hero").size());
  StoryEntropy entropy;
  entropy.nats_per_story = std::log(names) + std::log(names - 1) +
                           std::log(static_cast<double>(StoryWords("treasure").size()));
  entropy.bytes_per_story =
      static_cast<double>(StoryTemplates().size()) - 1;  // blanks between sentences
  for (const auto& alternatives : StoryTemplates()) {
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
            // The hero is uniform over all names, and so, over all stories, are the friend and the
            // pronouns: expected lengths add up.
            entropy.bytes_per_story += MeanLength(words) / count;
            if (!IsCast(slot))
              entropy.nats_per_story += std::log(static_cast<double>(words.size())) / count;
          });
    }
  }
  return entropy;
}

}  // namespace megatron
