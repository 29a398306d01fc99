// JSON strings: finding their ends, and converting them to text and back. These loops run over
// every byte of a corpus.
#ifndef MEGATRON_DATA_TEXT_JSON_STRING_H_
#define MEGATRON_DATA_TEXT_JSON_STRING_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

struct JsonString {
  absl::string_view raw;     // the bytes between the quotes
  bool has_escapes = false;  // if false, `raw` is the text
};

// ScanJsonString returns this for bytes that are not UTF-8.
inline constexpr absl::string_view kBadUtf8Problem = "bad UTF-8";

// Scans the string whose opening quote is at *at. Returns "" and moves *at past the closing quote;
// or returns what is wrong and moves *at there. Lone surrogates are not an error here.
absl::string_view ScanJsonString(const char** at, const char* end, JsonString* string);

// Appends the text of a string that ScanJsonString found. Returns false if it has a lone surrogate;
// then `text` must not be used.
bool AppendUnescapedJson(absl::string_view raw, std::string* text);

// Appends `text`, which must be UTF-8, as a JSON string with its quotes.
void AppendJsonString(absl::string_view text, std::string* out);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_JSON_STRING_H_
