#include "megatron/data/tokenizer/piece_trie.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(PieceTrieTest, TheLongestPrefixIsFound) {
  const PieceTrie trie({{"a", 5}, {"abc", 7}, {"b", 0}});
  EXPECT_EQ(trie.LongestPrefix("abcd").value, 7);
  EXPECT_EQ(trie.LongestPrefix("abcd").length, 3u);
  EXPECT_EQ(trie.LongestPrefix("abd").value, 5);
  EXPECT_EQ(trie.LongestPrefix("abd").length, 1u);
  EXPECT_EQ(trie.LongestPrefix("cab").length, 0u);
  EXPECT_EQ(trie.LongestPrefix("").length, 0u);
  EXPECT_EQ(trie.Find("ab"), -1);
  EXPECT_EQ(trie.Find("abc"), 7);
  EXPECT_EQ(trie.Find("abcd"), -1);
}

TEST(PieceTrieTest, AnEmptyTrieHasNoPrefixes) {
  EXPECT_EQ(PieceTrie().LongestPrefix("a").length, 0u);
}

// The trie has nodes with few children and nodes with 256.
TEST(PieceTrieTest, LookupsAgreeWithAMap) {
  std::mt19937 random(1);
  std::map<std::string, int32_t> map;
  for (int i = 0; i < 20000; ++i) {
    std::string piece;
    const size_t length = 1 + random() % 4;
    for (size_t j = 0; j < length; ++j)
      piece.push_back(static_cast<char>(random() % (1u << (2 * j + 2))));
    map.emplace(piece, static_cast<int32_t>(map.size()));
  }
  std::vector<std::pair<absl::string_view, int32_t>> pieces(map.begin(), map.end());
  const PieceTrie trie(pieces);
  for (int i = 0; i < 100000; ++i) {
    std::string text;
    for (size_t j = 0; j < 4; ++j)
      text.push_back(static_cast<char>(random() % (1u << (2 * j + 2))));
    const auto found = map.find(text);
    ASSERT_EQ(trie.Find(text), found == map.end() ? -1 : found->second);
    PieceTrie::Match want;
    for (size_t length = 1; length <= text.size(); ++length) {
      const auto prefix = map.find(text.substr(0, length));
      if (prefix != map.end()) want = {prefix->second, length};
    }
    const PieceTrie::Match match = trie.LongestPrefix(text);
    ASSERT_EQ(match.value, want.value);
    ASSERT_EQ(match.length, want.length);
  }
}

}  // namespace
}  // namespace megatron
