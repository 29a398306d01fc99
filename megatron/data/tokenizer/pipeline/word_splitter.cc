#include "megatron/data/tokenizer/pipeline/word_splitter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

Word Part(const Word& word, TextSpan span) {
  Word part;
  part.text = word.text.substr(span.begin, span.end - span.begin);
  part.begin = word.begin;
  if (!word.origins.empty()) {
    part.origins.assign(word.origins.begin() + span.begin, word.origins.begin() + span.end + 1);
    part.begin = part.origins[0];
  } else {
    part.begin += span.begin;
  }
  return part;
}

Word WithSpaces(const Word& word, const MetaspaceOptions& options) {
  Word spelled;
  spelled.begin = word.begin;
  const bool wanted = !word.origins.empty();
  const auto put = [&](absl::string_view text, size_t origin) {
    spelled.text.append(text.data(), text.size());
    if (wanted) spelled.origins.insert(spelled.origins.end(), text.size(), origin);
  };
  const bool prefixed =
      absl::StartsWith(word.text, " ") || absl::StartsWith(word.text, options.replacement);
  const bool prepend = options.prepend == MetaspaceOptions::Prepend::kAlways ||
                       (options.prepend == MetaspaceOptions::Prepend::kFirst && word.begin == 0);
  if (prepend && !prefixed) put(options.replacement, wanted ? word.origins[0] : 0);
  for (size_t i = 0; i < word.text.size(); ++i) {
    const absl::string_view byte = absl::string_view(word.text).substr(i, 1);
    put(byte == " " ? options.replacement : byte, wanted ? word.origins[i] : 0);
  }
  if (wanted) spelled.origins.push_back(word.origins.back());
  return spelled;
}

// Returns words that begin at each mark.
std::vector<TextSpan> SplitBefore(absl::string_view mark, absl::string_view text) {
  std::vector<TextSpan> spans;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find(mark, begin == 0 && !absl::StartsWith(text, mark) ? 0 : begin + 1);
    if (end == absl::string_view::npos) end = text.size();
    spans.push_back({begin, end});
    begin = end;
  }
  return spans;
}

struct Occurrence {
  TextSpan span;
  bool is_mark;  // else what lies between marks
};

std::vector<Occurrence> FindOccurrences(absl::string_view mark, absl::string_view text) {
  std::vector<Occurrence> found;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t at = std::min(text.find(mark, begin), text.size());
    if (at > begin) found.push_back({{begin, at}, false});
    if (at == text.size()) break;
    begin = at + mark.size();
    found.push_back({{at, begin}, true});
  }
  return found;
}

// Returns the words of a text that is split at a mark.
std::vector<TextSpan> SplitAt(absl::string_view mark, SplitBehavior behavior,
                              absl::string_view text) {
  const std::vector<Occurrence> found = FindOccurrences(mark, text);
  std::vector<TextSpan> words;
  for (size_t i = 0; i < found.size(); ++i) {
    const bool follows_mark = i > 0 && found[i - 1].is_mark;
    bool joins = false;  // the word before
    switch (behavior) {
      case SplitBehavior::kRemoved:
        if (found[i].is_mark) continue;
        break;
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kWithPrevious:
        joins = found[i].is_mark && i > 0 && !follows_mark;
        break;
      case SplitBehavior::kWithNext:
        joins = !found[i].is_mark && follows_mark;
        break;
      case SplitBehavior::kContiguous:
        joins = found[i].is_mark && follows_mark;
        break;
    }
    if (joins) {
      words.back().end = found[i].span.end;
    } else {
      words.push_back(found[i].span);
    }
  }
  return words;
}

}  // namespace

WordStep SplitAtStringStep(std::string mark, SplitBehavior behavior) {
  return SplitStep([mark = std::move(mark), behavior](absl::string_view text) {
    return SplitAt(mark, behavior, text);
  });
}

WordStep SplitStep(std::function<std::vector<TextSpan>(absl::string_view)> split) {
  return [split = std::move(split)](std::vector<Word>* words) {
    std::vector<Word> parts;
    for (const Word& word : *words) {
      for (const TextSpan span : split(word.text)) parts.push_back(Part(word, span));
    }
    words->swap(parts);
  };
}

std::vector<TextSpan> SplitWhiteSpace(absl::string_view text) {
  std::vector<TextSpan> spans;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    const bool space = CharClasses::Get().Is(c.code_point, kWhiteSpace);
    if (!space && !in_word) spans.push_back({at, at});
    at += c.length;
    if (!space) spans.back().end = at;
    in_word = !space;
  }
  return spans;
}

std::vector<TextSpan> SplitByPieces(FirstPiece first_piece, absl::string_view text) {
  std::vector<TextSpan> spans;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at + first_piece(text.substr(at));
    spans.push_back({at, end});
    at = end;
  }
  return spans;
}

WordStep MetaspaceStep(MetaspaceOptions options) {
  const WordStep split = SplitStep(
      [mark = options.replacement](absl::string_view text) { return SplitBefore(mark, text); });
  return [options = std::move(options), split](std::vector<Word>* words) {
    for (Word& word : *words) word = WithSpaces(word, options);
    if (options.split) split(words);
  };
}

}  // namespace megatron
