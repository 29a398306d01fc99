#include "megatron/data/text/stories.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

std::vector<std::string> SlotsOf(absl::string_view text) {
  std::vector<std::string> slots;
  for (absl::string_view part : absl::StrSplit(text, '{')) {
    const size_t close = part.find('}');
    if (close != part.npos) slots.push_back(std::string(part.substr(0, close)));
  }
  return slots;
}

// Returns all strings that one blank-separated part of a template can become: "{animal}s" gives
// "cats", "dogs" and so on.
std::set<std::string> Alternatives(absl::string_view token) {
  const std::vector<std::string> slots = SlotsOf(token);
  if (slots.empty()) return {std::string(token)};
  EXPECT_EQ(slots.size(), 1u) << token;
  std::set<std::string> alternatives;
  for (const absl::string_view word : StoryWords(slots[0])) {
    alternatives.insert(
        absl::StrCat(token.substr(0, token.find('{')), word, token.substr(token.find('}') + 1)));
  }
  return alternatives;
}

bool CanBeTold(absl::string_view a, absl::string_view b) {
  const std::vector<std::string> first = absl::StrSplit(a, ' '), second = absl::StrSplit(b, ' ');
  for (size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    std::set<std::string> both;
    const std::set<std::string> left = Alternatives(first[i]), right = Alternatives(second[i]);
    std::set_intersection(left.begin(), left.end(), right.begin(), right.end(),
                          std::inserter(both, both.begin()));
    if (both.empty()) return true;
  }
  return false;
}

std::set<std::string> AllSlots() {
  std::set<std::string> slots;
  for (const auto& alternatives : StoryTemplates()) {
    for (const absl::string_view text : alternatives) {
      for (const std::string& slot : SlotsOf(text)) slots.insert(slot);
    }
  }
  return slots;
}

// This test and WordsAreDistinctAndHaveNoBlanks together prove that the text determines the
// choices: sentences end at the only full stops, two templates of a sentence differ at some word
// for all choices, and each word of a template is a separate choice.
TEST(StoriesTest, TwoTemplatesNeverGiveTheSameSentence) {
  for (const auto& alternatives : StoryTemplates()) {
    for (size_t i = 0; i < alternatives.size(); ++i) {
      for (size_t j = 0; j < i; ++j)
        EXPECT_TRUE(CanBeTold(alternatives[i], alternatives[j])) << alternatives[i];
    }
  }
}

TEST(StoriesTest, WordsAreDistinctAndHaveNoBlanks) {
  for (const std::string& slot : AllSlots()) {
    const auto& words = StoryWords(slot);
    EXPECT_EQ(std::set<absl::string_view>(words.begin(), words.end()).size(), words.size()) << slot;
    for (const absl::string_view word : words) {
      EXPECT_FALSE(word.empty()) << slot;
      EXPECT_EQ(word.find_first_of(" ."), word.npos) << word;
    }
  }
}

// All words that are drawn once per story and add to the entropy must be seen in every story.
TEST(StoriesTest, EveryStoryNamesItsHeroItsFriendAndItsTreasure) {
  for (const char* slot : {"hero", "friend", "treasure"}) {
    bool always = false;
    for (const auto& alternatives : StoryTemplates()) {
      always |= std::all_of(alternatives.begin(), alternatives.end(), [&](absl::string_view text) {
        return absl::StrContains(text, absl::StrCat("{", slot, "}"));
      });
    }
    EXPECT_TRUE(always) << slot;
  }
}

TEST(StoriesTest, TheEntropyIsTheMeanLogarithmOfTheChoices) {
  // The sum is written out by hand from the lists' sizes: 16 · 15 names, 8 treasures, 3^6
  // templates, and each template's slots.
  const double adjective = std::log(64), animal = std::log(32), thing = std::log(64),
               place = std::log(32), verb = std::log(16), number = std::log(90);
  const std::vector<std::vector<double>> sentences = {
      {3 * adjective + animal + verb + number + thing,
       3 * adjective + place + animal + verb + number + thing,
       3 * adjective + animal + verb + number + thing},
      {3 * adjective + animal + verb + number + thing + place,
       2 * adjective + animal + verb + number + thing,
       2 * adjective + place + animal + number + thing},
      {number + 2 * adjective + animal + verb + place,
       2 * adjective + animal + verb + number + place,
       number + 2 * adjective + animal + verb + thing},
      {verb + number + 2 * adjective + 2 * thing, number + 2 * adjective + animal + verb + thing,
       verb + number + 2 * adjective + 2 * animal},
      {2 * adjective + animal + verb + number + thing, 2 * adjective + place + number + thing,
       verb + number + 2 * adjective + animal + thing},
      {2 * adjective + verb + number + thing, 2 * number + 2 * adjective + animal + verb + thing,
       verb + number + 2 * adjective + thing + animal}};
  double nats = std::log(16) + std::log(15) + std::log(8) + 6 * std::log(3);
  for (const auto& sentence : sentences) nats += (sentence[0] + sentence[1] + sentence[2]) / 3;
  EXPECT_NEAR(ComputeStoryEntropy().nats_per_story, nats, 1e-9);
  EXPECT_GT(ComputeStoryEntropy().nats_per_byte(), 0.5);
}

TEST(StoriesTest, TheExpectedLengthAgreesWithTheMeanOfManyStories) {
  double sum = 0, squares = 0;
  constexpr int kStories = 20000;
  for (int i = 0; i < kStories; ++i) {
    const double size = static_cast<double>(MakeStory(1, static_cast<uint64_t>(i)).size());
    sum += size;
    squares += size * size;
  }
  const double mean = sum / kStories;
  const double error = std::sqrt((squares / kStories - mean * mean) / kStories);
  EXPECT_NEAR(ComputeStoryEntropy().bytes_per_story, mean, 4 * error);
}

TEST(StoriesTest, ChoicesAreUniform) {
  std::map<std::string, int> heroes;
  constexpr int kStories = 16000;
  for (int i = 0; i < kStories; ++i) {
    const std::string story = MakeStory(2, static_cast<uint64_t>(i));
    if (!absl::StartsWith(story, "In ") && !absl::StartsWith(story, "Once "))
      ++heroes[story.substr(0, story.find(' '))];
  }
  EXPECT_EQ(heroes.size(), 16u);
  for (const auto& [name, count] : heroes) EXPECT_NEAR(count, kStories / 3 / 16, 80) << name;
}

TEST(StoriesTest, AStoryDependsOnlyOnItsSeedAndIndex) {
  EXPECT_EQ(MakeStory(1, 7), MakeStory(1, 7));
  EXPECT_NE(MakeStory(1, 7), MakeStory(1, 8));
  EXPECT_NE(MakeStory(1, 7), MakeStory(2, 7));
  EXPECT_EQ(MakeStory(1, 0),
            "Once Tom the fat owl took 15 sad cones for a mild lamp. By a bumpy bay he saw Ana the "
            "clean frog with 42 sacks. But 65 happy apes took the lamp in a dry cube. They hid 67 "
            "good dogs and a dusty frog. Ana left it for 32 dusty bugs and a merry pear. And he "
            "got 36 tall peas with a calm bat.");
}

TEST(StoriesTest, AShortStoryIsTheBeginningOfAWholeOne) {
  EXPECT_EQ(MakeStory(1, 0, 2),
            "Once Tom the fat owl took 15 sad cones for a mild lamp. By a bumpy bay he saw Ana the "
            "clean frog with 42 sacks.");
  for (uint64_t i = 0; i < 200; ++i) {
    const std::string whole = MakeStory(5, i), brief = MakeStory(5, i, kFewestStorySentences);
    EXPECT_TRUE(absl::StartsWith(whole, brief + " ")) << brief;
    for (const StoryQuestion& asked : MakeStoryQuestions(5, i))
      EXPECT_NE((" " + brief).find(" " + asked.answer), std::string::npos) << brief;
  }
  // The entropy of six sentences is that of four and of what the two others choose.
  const double two_more =
      ComputeStoryEntropy().nats_per_story - ComputeStoryEntropy(4).nats_per_story;
  const double adjective = std::log(64), animal = std::log(32), thing = std::log(64),
               place = std::log(32), verb = std::log(16), number = std::log(90);
  EXPECT_NEAR(two_more,
              2 * std::log(3) +
                  (2 * adjective + animal + verb + number + thing + 2 * adjective + place + number +
                   thing + verb + number + 2 * adjective + animal + thing) /
                      3 +
                  (2 * adjective + verb + number + thing + 2 * number + 2 * adjective + animal +
                   verb + thing + verb + number + 2 * adjective + thing + animal) /
                      3,
              1e-9);
}

TEST(StoriesTest, TheHeroKeepsNamePronounAndTreasureThroughAStory) {
  const auto& names = StoryWords("hero");
  for (uint64_t i = 0; i < 200; ++i) {
    const std::string story = MakeStory(3, i);
    std::set<std::string> seen, treasures;
    for (const std::string& word :
         std::vector<std::string>(absl::StrSplit(story, absl::ByAnyChar(" .")))) {
      if (std::count(names.begin(), names.end(), word) > 0) seen.insert(word);
      for (const absl::string_view treasure : StoryWords("treasure")) {
        if (word == treasure) treasures.insert(word);
      }
    }
    EXPECT_EQ(seen.size(), 2u) << story;
    EXPECT_EQ(treasures.size(), 1u) << story;
    EXPECT_FALSE(absl::StrContains(story, " he ") && absl::StrContains(story, " she ")) << story;
  }
}

// A sample of which every forty bytes are new was not memorized.
TEST(StoriesTest, HardlyAnyStorySharesFortyBytesWithOthers) {
  constexpr size_t kPiece = 40;
  std::unordered_set<std::string> pieces;
  uint64_t index = 0;
  for (size_t bytes = 0; bytes < (size_t{1} << 19); ++index) {
    const std::string story = MakeStory(4, index);
    for (size_t i = 0; i + kPiece <= story.size(); ++i) pieces.insert(story.substr(i, kPiece));
    bytes += story.size();
  }
  int sharing = 0;
  for (int k = 0; k < 500; ++k, ++index) {
    const std::string story = MakeStory(4, index);
    bool shares = false;
    for (size_t i = 0; i + kPiece <= story.size(); ++i)
      shares |= pieces.count(story.substr(i, kPiece)) > 0;
    sharing += shares;
  }
  EXPECT_LE(sharing, 3);
}

TEST(StoriesTest, AnswersToQuestionsAreWordsOfTheStory) {
  std::set<std::string> questions, answers, orders;
  for (uint64_t index = 0; index < 300; ++index) {
    std::string order;
    for (const StoryQuestion& asked : MakeStoryQuestions(7, index)) {
      EXPECT_NE((" " + MakeStory(7, index)).find(" " + asked.answer), std::string::npos)
          << MakeStory(7, index) << " " << asked.question << " " << asked.answer;
      questions.insert(asked.question);
      answers.insert(asked.answer);
      order += asked.question;
    }
    orders.insert(order);
  }
  EXPECT_EQ(questions.size(), 3u);
  EXPECT_EQ(orders.size(), 6u);
  // All names and all treasures.
  EXPECT_EQ(answers.size(), StoryWords("hero").size() + StoryWords("treasure").size());
}

}  // namespace
}  // namespace megatron
