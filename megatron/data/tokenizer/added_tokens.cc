#include "megatron/data/tokenizer/added_tokens.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

// Returns whether a character is part of a word, like \w in regular expressions.
bool IsWordChar(char32_t c) {
  return c == '_' || CharClasses::Get().Is(c, kLetter | kMark | kNumber);
}

// Returns the position of the last character of `text`, which is not empty.
size_t LastChar(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && text.size() - at < 4 && (text[at] & 0xC0) == 0x80) --at;
  return at + DecodeUtf8(text, at).length == text.size() ? at : text.size() - 1;
}

bool EndsInWord(absl::string_view text) {
  return !text.empty() && IsWordChar(DecodeUtf8(text, LastChar(text)).code_point);
}

bool StartsWithWord(absl::string_view text) {
  return !text.empty() && IsWordChar(DecodeUtf8(text, 0).code_point);
}

bool IsSpaceAt(absl::string_view text, size_t at) {
  return CharClasses::Get().Is(DecodeUtf8(text, at).code_point, kWhiteSpace);
}

// Returns the position at which the white space at the end of text[begin, end) begins.
size_t SpaceBefore(absl::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    const size_t last = LastChar(text.substr(0, end));
    if (last < begin || !IsSpaceAt(text, last)) break;
    end = last;
  }
  return end;
}

size_t SpaceBehind(absl::string_view text, size_t at) {
  while (at < text.size() && IsSpaceAt(text, at)) at += DecodeUtf8(text, at).length;
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::vector<std::pair<absl::string_view, int32_t>> pieces;
  absl::flat_hash_set<absl::string_view> known;  // the first of two tokens with one spelling counts
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const absl::string_view content = tokens_[i].content;
    if (known.insert(content).second) pieces.emplace_back(content, static_cast<int32_t>(i));
    is_first_byte_.set(static_cast<unsigned char>(content[0]));
    all_special_ &= tokens_[i].special;
  }
  trie_ = PieceTrie(std::move(pieces));
}

const AddedToken* AddedTokens::Match(absl::string_view text) const {
  if (!is_first_byte_[static_cast<unsigned char>(text[0])]) return nullptr;
  const int32_t longest = trie_.LongestPrefix(text).value;
  return longest < 0 ? nullptr : &tokens_[static_cast<size_t>(longest)];
}

std::vector<AddedTokens::Section> AddedTokens::Split(absl::string_view text,
                                                     bool parse_special) const {
  std::vector<Section> sections;
  size_t done = 0;  // end of the sections so far
  if (!tokens_.empty() && (parse_special || !all_special_)) {
    for (size_t at = 0; at < text.size();) {
      const AddedToken* const token = Match(text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      size_t begin = at;
      size_t end = at + token->content.size();
      at = end;  // a match is skipped even if the token is not taken
      if (token->special && !parse_special) continue;
      if (token->single_word &&
          (EndsInWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
        continue;
      }
      if (token->lstrip) begin = SpaceBefore(text, done, begin);
      if (token->rstrip) at = end = SpaceBehind(text, end);
      if (done < begin) sections.push_back({-1, {done, begin}});
      sections.push_back({token->id, {begin, end}});
      done = end;
    }
  }
  if (done < text.size()) sections.push_back({-1, {done, text.size()}});
  return sections;
}

}  // namespace megatron
