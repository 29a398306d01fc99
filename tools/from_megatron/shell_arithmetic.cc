#include "tools/from_megatron/shell_arithmetic.h"

#include <cstdint>
#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr int kDeepest = 50;  // parentheses and signs within each other

using Lookup = absl::FunctionRef<absl::StatusOr<int64_t>(absl::string_view name)>;

class Arithmetic {
 public:
  Arithmetic(absl::string_view text, Lookup lookup) : text_(text), rest_(text), lookup_(lookup) {}

  absl::StatusOr<int64_t> Compute() {
    MEGATRON_ASSIGN_OR_RETURN(const int64_t value, Sum());
    if (Peek() != '\0') return Wrong();
    return value;
  }

 private:
  absl::Status Wrong() const {
    return absl::InvalidArgumentError(absl::StrCat("cannot compute ", Quoted(text_)));
  }

  char Peek() {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    return rest_.empty() ? '\0' : rest_[0];
  }

  absl::StatusOr<int64_t> Sum() {
    MEGATRON_ASSIGN_OR_RETURN(int64_t left, Product());
    while (Peek() == '+' || Peek() == '-') {
      const char sign = rest_[0];
      rest_.remove_prefix(1);
      MEGATRON_ASSIGN_OR_RETURN(const int64_t right, Product());
      if (sign == '+' ? __builtin_add_overflow(left, right, &left)
                      : __builtin_sub_overflow(left, right, &left)) {
        return Wrong();
      }
    }
    return left;
  }

  absl::StatusOr<int64_t> Product() {
    MEGATRON_ASSIGN_OR_RETURN(int64_t left, Factor());
    while (Peek() == '*' || Peek() == '/' || Peek() == '%') {
      const char sign = rest_[0];
      rest_.remove_prefix(1);
      MEGATRON_ASSIGN_OR_RETURN(const int64_t right, Factor());
      if (sign == '*') {
        if (__builtin_mul_overflow(left, right, &left)) return Wrong();
        continue;
      }
      const bool overflows = left == std::numeric_limits<int64_t>::min() && right == -1;
      if (right == 0 || overflows) return Wrong();
      left = sign == '/' ? left / right : left % right;
    }
    return left;
  }

  absl::StatusOr<int64_t> Factor() {
    if (++depth_ > kDeepest) return Wrong();
    const absl::StatusOr<int64_t> value = FactorBelowLimit();
    --depth_;
    return value;
  }

  absl::StatusOr<int64_t> FactorBelowLimit() {
    const char first = Peek();
    if (first == '(') {
      rest_.remove_prefix(1);
      MEGATRON_ASSIGN_OR_RETURN(const int64_t value, Sum());
      if (Peek() != ')') return Wrong();
      rest_.remove_prefix(1);
      return value;
    }
    if (first == '-' || first == '+') {
      rest_.remove_prefix(1);
      MEGATRON_ASSIGN_OR_RETURN(const int64_t value, Factor());
      if (first == '-' && value == std::numeric_limits<int64_t>::min()) return Wrong();
      return first == '-' ? -value : value;
    }
    size_t length = 0;
    while (length < rest_.size() && (absl::ascii_isalnum(rest_[length]) || rest_[length] == '_'))
      ++length;
    const absl::string_view token = rest_.substr(0, length);
    rest_.remove_prefix(length);
    if (token.empty()) return Wrong();
    if (!absl::ascii_isdigit(token[0])) return lookup_(token);
    int64_t value;
    if (!absl::SimpleAtoi(token, &value)) return Wrong();
    return value;
  }

  const absl::string_view text_;
  absl::string_view rest_;
  const Lookup lookup_;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<int64_t> ComputeShellArithmetic(absl::string_view expression, Lookup lookup) {
  return Arithmetic(expression, lookup).Compute();
}

}  // namespace megatron
