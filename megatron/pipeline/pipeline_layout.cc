#include "megatron/pipeline/pipeline_layout.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr size_t kMostLetters = 100'000;

// Writes repetitions out: "Et*2|(t|)*2L" becomes "Ett|t|t|L".
class Unroller {
 public:
  explicit Unroller(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::string> Unroll() {
    std::string all;
    for (SkipBlanks(); at_ < text_.size(); SkipBlanks()) {
      if (Peek() == '(') {
        MEGATRON_ASSIGN_OR_RETURN(const std::string group, Group());
        MEGATRON_RETURN_IF_ERROR(AppendRepeated(group, &all));
      } else {
        MEGATRON_RETURN_IF_ERROR(Letter(&all));
      }
    }
    return all;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void SkipBlanks() {
    while (at_ < text_.size() && (Peek() == ',' || Peek() == ' ')) ++at_;
  }

  // The text without its parentheses, its letters unrolled.
  absl::StatusOr<std::string> Group() {
    const size_t begin = at_++;
    std::string group;
    for (SkipBlanks(); Peek() != ')'; SkipBlanks()) {
      if (at_ >= text_.size()) return Wrong(begin, "has no end");
      MEGATRON_RETURN_IF_ERROR(Letter(&group));
    }
    ++at_;
    return group;
  }

  absl::Status Letter(std::string* out) {
    const size_t begin = at_++;
    switch (text_[begin]) {
      case 'E':
      case 't':
      case 'm':
      case 'L':
      case '|':
        return AppendRepeated(text_.substr(begin, 1), out);
      case '(':
        return Wrong(begin, "is a group in a group");
      case '*':
        return Wrong(begin, "repeats nothing");
      default:
        return Wrong(begin, "is none of E, t, m, L, |, (, ), * and a number");
    }
  }

  // Appends once, or as often as the `*n` says that may follow.
  absl::Status AppendRepeated(absl::string_view letters, std::string* out) {
    int64_t times = 1;
    SkipBlanks();
    if (Peek() == '*') {
      const size_t begin = at_++;
      const size_t digits = text_.find_first_not_of("0123456789", at_);
      const absl::string_view number =
          text_.substr(at_, digits == text_.npos ? digits : digits - at_);
      at_ += number.size();
      if (number.empty() || !absl::SimpleAtoi(number, &times) || times < 1 ||
          times > static_cast<int64_t>(kMostLetters)) {
        return Wrong(begin, absl::StrCat("must be followed by a number from 1 to ", kMostLetters));
      }
    }
    if (letters.size() * static_cast<size_t>(times) > kMostLetters - out->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it describes more than ", kMostLetters, " layers and parts"));
    }
    for (int64_t i = 0; i < times; ++i) absl::StrAppend(out, letters);
    return absl::OkStatus();
  }

  absl::Status Wrong(size_t place, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text_.substr(place, 1), "' at character ", place + 1, " ", what));
  }

  absl::string_view text_;
  size_t at_ = 0;
};

}  // namespace

namespace {

// Returns the letters of a layout, without repetitions.
absl::StatusOr<std::string> LettersOf(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string letters, Unroller(text).Unroll());
  if (letters.empty() || letters.front() != 'E' || letters.rfind('E') != 0)
    return absl::InvalidArgumentError("it must begin with E, the embedding, and hold no other");
  if (letters.back() != 'L' || letters.find('L') != letters.size() - 1)
    return absl::InvalidArgumentError("it must end with L, the loss, and hold no other");
  const size_t first = letters.find('m');
  if (first == std::string::npos) return letters;
  const absl::string_view behind =
      absl::string_view(letters).substr(letters.find_first_not_of('m', first));
  if (behind != "L" && behind != "|L") {
    return absl::InvalidArgumentError(
        "all m, layers of multi-token prediction, must stand in one part behind all t: in the "
        "last, "
        "in front of L, or in the part before, with nothing but L in the last");
  }
  return letters;
}

}  // namespace

absl::StatusOr<PipelineLayout> ParsePipelineLayout(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string letters, LettersOf(text));
  PipelineLayout layout;
  layout.layers = {0};
  for (char letter : letters) {
    if (letter == '|') layout.layers.push_back(0);
    if (letter == 't') ++layout.layers.back();
    if (letter == 'm') ++layout.mtp_layers;
  }
  layout.mtp_before_last = absl::EndsWith(letters, "m|L");
  return layout;
}

}  // namespace megatron
