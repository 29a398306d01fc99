// Takes texts out of a line of JSON without building a tree of it, so a line costs little and no
// nesting is too deep.
//
// The grammar is RFC 8259's with what Python's json module reads besides, since Python wrote most
// of the lines there are: NaN, Infinity and -Infinity as values, numbers of any size, and half a
// surrogate pair in strings that nobody asks for.
#ifndef MEGATRON_DATA_TEXT_JSON_TEXT_H_
#define MEGATRON_DATA_TEXT_JSON_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/data/text/bad_line_kind.h"

namespace megatron {

// The value of a key: a text, or a list of texts, its sentences say.
struct JsonText {
  std::string text;          // all pieces back to back; of a lone text, itself
  std::vector<size_t> ends;  // where each piece ends in `text`
  bool is_list = false;
};

// Whether there is nothing in a line but what JSON takes for white space. A form feed is not.
bool IsBlankJsonLine(absl::string_view line);

// `line` must be one JSON object, in UTF-8, that has every one of `keys` at its top with a string
// or a list of strings; (*texts)[i] becomes that of keys[i], where a key stands twice the later
// one, as in Python. kInvalidArgument says what is wrong and, of the syntax, where; *kind says it
// in short.
absl::Status ExtractJsonTexts(absl::string_view line, const std::vector<std::string>& keys,
                              std::vector<JsonText>* texts, BadLineKind* kind);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_JSON_TEXT_H_
