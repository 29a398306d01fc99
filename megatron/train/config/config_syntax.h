// Reads protobuf's text format into a tree of fields, knowing nothing of what the fields mean.
//
// protobuf's own parser stops at the first error of most kinds. This one goes on at the next line,
// so that a user sees every error of a file at once, and it keeps the place of each value. Tokens
// are protobuf's; a value is kept as text for its TextFormat to convert.
//
// The subset that configurations need: `name: value`, `name: [value, value]`, `name { ... }` and
// `name: { ... }` (or < >), separated by nothing, ',' or ';', with '#' comments. No extensions, no
// Any, no lists of messages.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_SYNTAX_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_SYNTAX_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// A place in the text. Lines and columns are counted from 1, as editors do.
struct TextPosition {
  int line = 0;
  int column = 0;
};

struct SyntaxField {
  std::string name;
  TextPosition position;
  bool is_message = false;
  bool is_list = false;
  // The text in the source: `3`, `- 1e-4`, `"a" "b"`, `adam`; empty for a message.
  std::vector<std::string> values;
  std::vector<SyntaxField> fields;  // fields of a message
};

struct SyntaxError {
  TextPosition position;
  std::string message;
};

struct SyntaxTree {
  std::vector<SyntaxField> fields;
  std::vector<SyntaxError> errors;  // errors in the order of the text, at most kMaxSyntaxErrors
};

inline constexpr int kMaxSyntaxErrors = 50;

// Terminates for every input, with memory proportional to its size.
SyntaxTree ParseSyntax(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_SYNTAX_H_
