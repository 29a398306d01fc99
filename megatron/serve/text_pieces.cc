#include "megatron/serve/text_pieces.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron::serve {
namespace {

constexpr size_t kMostContext = 4;
// A code point has at most four bytes, so that four tokens of a byte each are enough to know it.
constexpr size_t kBytesOfCodePoint = 4;
// Tokens that show nothing, or bytes of which none ends a code point, are not kept longer.
constexpr size_t kMostHeld = 64;
constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// Returns the length of the UTF-8 sequence that the byte begins; 0 if it begins none of several.
size_t SequenceLength(unsigned char first) {
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  if (first >= 0xF0 && first < 0xF5) return 4;
  return 0;
}

// Returns whether the bytes begin a code point that further bytes can complete.
bool IsBeginning(absl::string_view bytes) {
  const size_t length = SequenceLength(static_cast<unsigned char>(bytes[0]));
  if (bytes.size() >= length) return false;
  // These are the ends of the ranges that any second byte may have.
  for (const char fill : {'\x80', '\x90', '\xA0', '\xBF'}) {
    if (IsValidUtf8(absl::StrCat(bytes, std::string(length - bytes.size(), fill)))) return true;
  }
  return false;
}

// Returns how many bytes of the text come before a code point that is not complete yet.
size_t WholeBytes(absl::string_view text) {
  for (size_t tail = 1; tail < kBytesOfCodePoint && tail <= text.size(); ++tail) {
    if (IsBeginning(text.substr(text.size() - tail))) return text.size() - tail;
  }
  return text.size();
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  return std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin()).first -
         a.begin();
}

}  // namespace

TokenText::TokenText(const Tokenizer& tokenizer, absl::Span<const int32_t> context)
    : tokenizer_(&tokenizer) {
  const size_t count = std::min(context.size(), kMostContext);
  tokens_.assign(context.end() - count, context.end());
  shown_ = tokenizer.Decode(tokens_);
}

std::string TokenText::NotShown() const {
  const std::string text = tokenizer_->Decode(tokens_);
  return text.substr(CommonPrefix(text, shown_));
}

std::string TokenText::Add(int32_t token) {
  tokens_.push_back(token);
  ++held_;
  const std::string rest = NotShown();
  size_t whole = WholeBytes(rest);
  // Some tokenizers decode a code point that is not complete to U+FFFD.
  if (absl::EndsWith(rest, kReplacement) && held_ < kBytesOfCodePoint) whole = 0;
  if (held_ >= kMostHeld) whole = rest.size();
  if (whole == rest.size() && (whole > 0 || held_ >= kMostHeld)) {
    tokens_.erase(tokens_.begin(), tokens_.end() - std::min(tokens_.size(), kMostContext));
    shown_ = tokenizer_->Decode(tokens_);
    held_ = 0;
  } else {
    absl::StrAppend(&shown_, rest.substr(0, whole));
  }
  return ReplaceInvalidUtf8(rest.substr(0, whole));
}

std::string TokenText::Finish() {
  const std::string rest = NotShown();
  absl::StrAppend(&shown_, rest);
  return ReplaceInvalidUtf8(rest);
}

std::string TokenBytes(const Tokenizer& tokenizer, int32_t token) {
  const std::string one = tokenizer.Decode({token}), two = tokenizer.Decode({token, token});
  return two.substr(CommonPrefix(one, two));
}

std::string ShownBytes(absl::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    absl::StrAppend(&text, "\\x", absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
  }
  return text;
}

int64_t CountCodePoints(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string StopFinder::Add(absl::string_view text) {
  if (found_) return "";
  const size_t known = held_.size();
  absl::StrAppend(&held_, text);
  for (size_t end = known + 1; end <= held_.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops_) {
      if (absl::EndsWith(absl::string_view(held_).substr(0, end), stop))
        longest = std::max(longest, stop.size());
    }
    if (longest == 0) continue;
    found_ = true;
    held_.resize(end - longest);
    return std::exchange(held_, "");
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (absl::EndsWith(held_, absl::string_view(stop).substr(0, size))) keep = size;
    }
  }
  std::string decided = held_.substr(0, held_.size() - keep);
  held_.erase(0, decided.size());
  return decided;
}

std::string StopFinder::Finish() { return std::exchange(held_, ""); }

}  // namespace megatron::serve
