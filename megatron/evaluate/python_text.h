// What Python's methods of str do to text in UTF-8, for rules of tasks that are published as
// Python.
#ifndef MEGATRON_EVALUATE_PYTHON_TEXT_H_
#define MEGATRON_EVALUATE_PYTHON_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// str.isspace(), which is also \s in patterns.
bool IsPythonSpace(char32_t c);

// str.strip() and str.rstrip().
absl::string_view StripPythonSpace(absl::string_view text);
absl::string_view StripTrailingPythonSpace(absl::string_view text);

// len(text): the number of code points.
int64_t CountCharacters(absl::string_view text);

// len(re.split(r"\s+", text)): the number of runs of white space, and one.
int64_t CountWords(absl::string_view text);

// str.capitalize(), with the simple mappings of Unicode: the first character in title case, and all
// others in lower case.
std::string Capitalize(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_PYTHON_TEXT_H_
