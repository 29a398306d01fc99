// Takes texts out of a line of JSON without building a tree of it, so a line costs little and no
// nesting is too deep.
#ifndef MEGATRON_DATA_JSON_TEXT_H_
#define MEGATRON_DATA_JSON_TEXT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megatron {

// `line` must be one JSON object, in UTF-8, that has every one of `keys` at its top with a string;
// (*texts)[i] becomes that of keys[i], where a key stands twice the later one, as in Python.
// kInvalidArgument says what is wrong: the syntax and where, bad UTF-8, half a surrogate pair, a
// missing key, a value that is no string.
absl::Status ExtractJsonTexts(absl::string_view line, const std::vector<std::string>& keys,
                              std::vector<std::string>* texts);

}  // namespace megatron

#endif  // MEGATRON_DATA_JSON_TEXT_H_
