#ifndef MEGATRON_TRAIN_CONSOLE_WRAP_TEXT_H_
#define MEGATRON_TRAIN_CONSOLE_WRAP_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// Breaks the text at spaces, so that no line is longer than `columns` but one of a single word.
// Lines after the first begin with `indent`. An operator ("+") stays between its operands: at the
// beginning of a line Markdown would take it for the mark of a list.
std::string WrapText(absl::string_view text, absl::string_view indent, size_t columns);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONSOLE_WRAP_TEXT_H_
