#include "tools/from_megatron/shell_condition.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quoted.h"

namespace megatron {
namespace {

constexpr int kDeepest = 60;
constexpr size_t kLongestPattern = 256;

// Evaluates a condition by recursive descent: || binds less than &&, and && less than !.
class ConditionReader {
 public:
  explicit ConditionReader(const std::vector<ConditionToken>& tokens) : tokens_(tokens) {}

  absl::StatusOr<ShellCondition> Evaluate() {
    ShellCondition condition;
    const bool holds = EvaluateOr();
    if (too_deep_) return absl::InvalidArgumentError("the script is nested too deeply");
    if (!broken_ && next_ == tokens_.size()) {
      condition.holds = holds;
    } else {
      notes_.push_back("a condition is not understood: it is taken as false");
    }
    condition.notes = std::move(notes_);
    return condition;
  }

 private:
  bool AtOperator(absl::string_view text) const {
    return next_ < tokens_.size() && tokens_[next_].is_operator && tokens_[next_].text == text;
  }

  bool IsWord(size_t i) const { return i < tokens_.size() && !tokens_[i].is_operator; }

  bool TakeOperator(absl::string_view text) {
    if (broken_ || too_deep_ || !AtOperator(text)) return false;
    ++next_;
    return true;
  }

  bool EvaluateOr() {
    bool holds = EvaluateAnd();
    while (TakeOperator("||")) {
      const bool other = EvaluateAnd();
      holds = holds || other;
    }
    return holds;
  }

  bool EvaluateAnd() {
    bool holds = EvaluateNot();
    while (TakeOperator("&&")) {
      const bool other = EvaluateNot();
      holds = holds && other;
    }
    return holds;
  }

  bool EvaluateNot() {
    if (depth_ == kDeepest) too_deep_ = true;
    if (too_deep_) return false;
    ++depth_;
    bool holds;
    if (TakeOperator("!")) {
      holds = !EvaluateNot();
    } else if (TakeOperator("(")) {
      holds = EvaluateOr();
      if (!TakeOperator(")")) broken_ = true;
    } else {
      holds = EvaluateComparison();
    }
    --depth_;
    return holds;
  }

  bool EvaluateComparison() {
    if (!IsWord(next_)) {
      broken_ = true;
      return false;
    }
    const std::string& left = tokens_[next_].text;
    if (IsWord(next_ + 1) && IsWord(next_ + 2)) {
      next_ += 3;
      return Compare(left, tokens_[next_ - 2].text, tokens_[next_ - 1].text);
    }
    if (IsWord(next_ + 1)) {
      next_ += 2;
      const std::string& right = tokens_[next_ - 1].text;
      if (left == "-n") return !right.empty();
      if (left == "-z") return right.empty();
      notes_.push_back(absl::StrCat("the condition ", Quoted(left), " is taken as false"));
      return false;
    }
    ++next_;
    return !left.empty();
  }

  bool Compare(const std::string& left, const std::string& sign, const std::string& right) {
    if (sign == "=" || sign == "==") return MatchesWildcards(right, left);
    if (sign == "!=") return !MatchesWildcards(right, left);
    int64_t a, b;
    if (absl::SimpleAtoi(left, &a) && absl::SimpleAtoi(right, &b)) {
      if (sign == "-eq") return a == b;
      if (sign == "-ne") return a != b;
      if (sign == "-lt") return a < b;
      if (sign == "-le") return a <= b;
      if (sign == "-gt") return a > b;
      if (sign == "-ge") return a >= b;
    }
    notes_.push_back(absl::StrCat("the condition ", Quoted(sign), " is taken as false"));
    return false;
  }

  const std::vector<ConditionToken>& tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  bool broken_ = false;    // The tokens are no condition.
  bool too_deep_ = false;  // The nesting is beyond the limit.
  std::vector<std::string> notes_;
};

}  // namespace

absl::StatusOr<ShellCondition> EvaluateShellCondition(const std::vector<ConditionToken>& tokens) {
  return ConditionReader(tokens).Evaluate();
}

bool MatchesWildcards(absl::string_view pattern, absl::string_view text) {
  if (pattern.size() > kLongestPattern || text.size() > kLongestPattern) return pattern == text;
  size_t p = 0, t = 0, star = absl::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.substr(p).find_first_not_of('*') == absl::string_view::npos;
}

}  // namespace megatron
