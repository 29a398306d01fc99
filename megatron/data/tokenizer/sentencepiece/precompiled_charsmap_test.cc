#include "megatron/data/tokenizer/sentencepiece/precompiled_charsmap.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_testing.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

PrecompiledCharsmap Make(const std::vector<std::pair<std::string, std::string>>& rules) {
  const auto map = PrecompiledCharsmap::Create(MakeCharsmap(rules));
  EXPECT_THAT(map.status(), IsOk());
  return *map;
}

TEST(PrecompiledCharsmapTest, RulesForPrefixesAreFound) {
  const PrecompiledCharsmap map = Make({{"ab", "X"}, {"é", "e"}, {"q", ""}});
  EXPECT_EQ(map.Longest("abc").length, 2u);
  EXPECT_EQ(map.Longest("abc").replacement, "X");
  EXPECT_EQ(map.Longest("a").length, 0u);
  EXPECT_EQ(map.Longest("ac").length, 0u);
  EXPECT_EQ(map.Longest("é").replacement, "e");
  EXPECT_EQ(map.Longest("qq").length, 1u);
  EXPECT_EQ(map.Longest("qq").replacement, "");
  EXPECT_EQ(map.Longest("").length, 0u);
  EXPECT_EQ(map.Shortest("abc").replacement, "X");
}

TEST(PrecompiledCharsmapTest, KeepsTellsWhichAsciiCharactersAreUnchanged) {
  const PrecompiledCharsmap map = Make({{"ab", "X"}, {"e\u0301", "é"}, {"q", ""}});
  EXPECT_FALSE(map.Keeps('a'));  // it changes before "b"
  EXPECT_TRUE(map.Keeps('b'));
  EXPECT_TRUE(map.Keeps('e'));
  EXPECT_FALSE(map.Keeps('q'));
  EXPECT_FALSE(map.Keeps(0xc3));
  EXPECT_TRUE(PrecompiledCharsmap().Keeps('a'));
}

TEST(PrecompiledCharsmapTest, InvalidMapsAreRefused) {
  EXPECT_THAT(PrecompiledCharsmap::Create("").status(), IsOk());
  const std::string whole = MakeCharsmap({{"a", "b"}});
  for (const std::string& bytes :
       {std::string("abc"), MakeCharsmap({{"a", std::string(1025, 'b')}}), whole.substr(0, 100),
        std::string(4, '\0'), std::string(8, '\xff')}) {
    EXPECT_THAT(PrecompiledCharsmap::Create(bytes).status(),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

// Every unit points anywhere; the sanitizers report reads outside.
TEST(PrecompiledCharsmapTest, DamagedUnitsReadNothingOutside) {
  const std::string whole = MakeCharsmap({{"ab", "X"}, {"é", "e"}});
  for (size_t i = 4; i < whole.size(); i += 97) {
    std::string damaged = whole;
    for (size_t j = i; j < whole.size() && j < i + 4; ++j) damaged[j] = '\xff';
    const auto map = PrecompiledCharsmap::Create(damaged);
    ASSERT_THAT(map.status(), IsOk());
    for (const char* const text : {"ab", "é", "abab", "\xff\xff"}) {
      EXPECT_LE(map->Longest(text).length, std::string(text).size());
    }
  }
}

// The unit after "a" is the unit of "a" again, so the path never ends.
TEST(PrecompiledCharsmapTest, UnitsInACycleDoNotMakeLongTextsSlow) {
  constexpr char kA = 'a';
  std::string units(4 * (kA + 1), '\0');
  // The bytes are the unit's label and, from bit 10 on, its offset.
  units.replace(4 * kA, 3, "\x61\x84\x01");
  const auto map = PrecompiledCharsmap::Create(std::string("\x88\x01\0\0", 4) + units);
  ASSERT_THAT(map.status(), IsOk());
  const std::string text(1 << 20, kA);
  for (size_t i = 0; i < text.size(); ++i) {
    ASSERT_EQ(map->Longest(absl::string_view(text).substr(i)).length, 0u);
  }
}

TEST(PrecompiledCharsmapTest, AStringWithoutATerminatorEndsWithTheBytes) {
  std::string bytes = MakeCharsmap({{"a", "xyz"}});
  bytes.pop_back();
  const auto map = PrecompiledCharsmap::Create(bytes);
  ASSERT_THAT(map.status(), IsOk());
  EXPECT_EQ(map->Longest("a").replacement, "xyz");
}

TEST(NormalizePrecompiledTest, GraphemesAreReplacedBeforeCharacters) {
  const PrecompiledCharsmap map = Make({{"e\u0301", "é"}, {"ﬁ", "fi"}, {"\u0301", "'"}});
  std::vector<size_t> origins;
  EXPECT_EQ(NormalizePrecompiled(map, "xe\u0301ﬁ", &origins), "xéfi");
  EXPECT_EQ(origins, (std::vector<size_t>{0, 1, 1, 4, 4, 7}));
  // A grapheme of 6 bytes is replaced character by character.
  EXPECT_EQ(NormalizePrecompiled(map, "日\u0301\u200d"), "日'\u200d");
}

}  // namespace
}  // namespace megatron
