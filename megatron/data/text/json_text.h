// Extracts texts from a line of JSON without building a tree, so a line costs little and any
// nesting depth is fine.
//
// The grammar is RFC 8259's plus what Python's json module accepts, since Python wrote most
// existing files: NaN, Infinity and -Infinity as values, numbers of any size, and lone surrogates
// in strings that are not extracted.
#ifndef MEGATRON_DATA_TEXT_JSON_TEXT_H_
#define MEGATRON_DATA_TEXT_JSON_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/data/text/bad_line_kind.h"

namespace megatron {

// The value of a key: a text, or a list of texts, for example its sentences.
struct JsonText {
  std::string text;          // all pieces back to back; a single text is one piece
  std::vector<size_t> ends;  // position in `text` at which each piece ends
  bool is_list = false;
};

// Returns whether a line holds nothing but JSON's white space, which does not include form feeds.
bool IsBlankJsonLine(absl::string_view line);

// Extracts the values of `keys` from `line`, which must be one JSON object in UTF-8 with a string
// or a list of strings at its top level for each key. (*texts)[i] becomes the value of keys[i]; if
// a key occurs twice, the later value counts, as in Python. kInvalidArgument tells what is wrong,
// and for syntax errors where; *kind classifies it.
absl::Status ExtractJsonTexts(absl::string_view line, const std::vector<std::string>& keys,
                              std::vector<JsonText>* texts, BadLineKind* kind);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_JSON_TEXT_H_
