// JSON's strings: finding their ends, and turning them into text and back. These loops see every
// byte of a corpus.
#ifndef MEGATRON_DATA_TEXT_JSON_STRING_H_
#define MEGATRON_DATA_TEXT_JSON_STRING_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

struct JsonString {
  absl::string_view raw;     // between the quotes
  bool has_escapes = false;  // else `raw` is the text
};

// What ScanJsonString says of bytes that are not UTF-8.
inline constexpr absl::string_view kBadUtf8Problem = "bad UTF-8";

// Reads the string whose first quote is at *at. Returns "", and *at is behind its last quote; or
// says what is wrong, and *at is where. Half a surrogate pair is none of its business.
absl::string_view ScanJsonString(const char** at, const char* end, JsonString* string);

// Appends the text of a string that ScanJsonString found. False where it has half a surrogate pair;
// `text` is then of no use.
bool AppendUnescapedJson(absl::string_view raw, std::string* text);

// Appends `text`, which must be UTF-8, as a JSON string with its quotes.
void AppendJsonString(absl::string_view text, std::string* out);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_JSON_STRING_H_
