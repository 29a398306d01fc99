#include "megatron/data/tokenizer/sentencepiece/precompiled_charsmap.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/tokenizer/unicode.h"
#include "utf8proc.h"

namespace megatron {
namespace {

// The limit keeps a small file from making a text many times as long as all memory.
constexpr size_t kMaxReplacementBytes = 1024;

// These functions read the fields of a double array's unit, as Darts-clone packs them.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t LeafValue(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t Label(uint32_t unit) { return unit & 0x800000ff; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

uint32_t ReadU32(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

// Returns the length in bytes of the grapheme that begins at `at`.
size_t GraphemeLength(absl::string_view text, size_t at) {
  Utf8Char c = DecodeUtf8(text, at);
  utf8proc_int32_t state = 0;
  size_t end = at + c.length;
  while (end < text.size()) {
    const Utf8Char next = DecodeUtf8(text, end);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.code_point),
                                         static_cast<utf8proc_int32_t>(next.code_point), &state)) {
      break;
    }
    c = next;
    end += c.length;
  }
  return end - at;
}

}  // namespace

absl::StatusOr<PrecompiledCharsmap> PrecompiledCharsmap::Create(absl::string_view bytes) {
  PrecompiledCharsmap map;
  if (bytes.empty()) return map;
  const uint32_t trie_bytes = bytes.size() < 4 ? 0 : ReadU32(bytes, 0);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("the normalization rules are damaged: ", bytes.size(),
                     " bytes, of which the trie is said to be ", trie_bytes));
  }
  for (size_t at = 4; at < 4 + size_t{trie_bytes}; at += 4) {
    map.units_.push_back(ReadU32(bytes, at));
  }
  map.strings_ = std::string(bytes.substr(4 + size_t{trie_bytes}));
  map.strings_.push_back('\0');
  for (size_t begin = 0, end = 0; begin < map.strings_.size(); begin = end + 1) {
    end = map.strings_.find('\0', begin);
    map.longest_replacement_ = std::max(map.longest_replacement_, end - begin);
  }
  if (map.longest_replacement_ > kMaxReplacementBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a normalization rule puts ",
                                                   map.longest_replacement_, " bytes in, but ",
                                                   kMaxReplacementBytes, " is the limit"));
  }
  for (unsigned char c = 0; c < 128; ++c) map.changed_[c] = map.MayChange(c);
  return map;
}

// Every step checks that the unit exists, since the file determines the offsets. In a trie no path
// is longer than the number of units; this also ends paths that form a cycle.
template <bool kLongest>
PrecompiledCharsmap::Rule PrecompiledCharsmap::Find(absl::string_view text) const {
  Rule rule;
  if (units_.empty()) return rule;
  size_t node = Offset(units_[0]);
  const size_t longest = std::min(text.size(), units_.size());
  for (size_t i = 0; i < longest; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || Label(units_[node]) != byte) break;
    const bool leaf = HasLeaf(units_[node]);
    node ^= Offset(units_[node]);
    if (!leaf) continue;
    if (node >= units_.size()) break;
    const uint32_t value = LeafValue(units_[node]);
    if (value >= strings_.size()) continue;
    rule.length = i + 1;
    rule.replacement = absl::string_view(strings_.data() + value);
    if (!kLongest) break;
  }
  return rule;
}

PrecompiledCharsmap::Rule PrecompiledCharsmap::Longest(absl::string_view text) const {
  return Find<true>(text);
}

PrecompiledCharsmap::Rule PrecompiledCharsmap::Shortest(absl::string_view text) const {
  return Find<false>(text);
}

bool PrecompiledCharsmap::MayChange(unsigned char c) const {
  const size_t node = Offset(units_[0]) ^ c;
  if (node >= units_.size() || Label(units_[node]) != c) return false;
  if (HasLeaf(units_[node])) return true;
  const size_t children = node ^ Offset(units_[node]);
  for (unsigned char next = 0; next < 128; ++next) {
    const size_t child = children ^ next;
    if (child < units_.size() && Label(units_[child]) == next) return true;
  }
  return false;
}

std::string NormalizePrecompiled(const PrecompiledCharsmap& map, absl::string_view text,
                                 std::vector<size_t>* origins) {
  constexpr size_t kLongGrapheme = 6;
  std::string out;
  if (origins != nullptr) origins->clear();
  const auto replace = [&](size_t at, size_t length) {
    const PrecompiledCharsmap::Rule rule = map.Shortest(text.substr(at, length));
    if (rule.length == 0) return false;
    out.append(rule.replacement.data(), rule.replacement.size());
    if (origins != nullptr) origins->resize(out.size(), at);
    return true;
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = begin + GraphemeLength(text, begin);
    if (end - begin < kLongGrapheme && replace(begin, end - begin)) {
      begin = end;
      continue;
    }
    while (begin < end) {
      const size_t length = DecodeUtf8(text, begin).length;
      if (!replace(begin, length)) {
        out.append(text.data() + begin, length);
        if (origins != nullptr) origins->resize(out.size(), begin);
      }
      begin += length;
    }
  }
  if (origins != nullptr) origins->push_back(text.size());
  return out;
}

}  // namespace megatron
