// Fuzzes ExtractJsonTexts: any bytes as a line give either an error, or texts that are UTF-8, no
// longer than the line, and equal to those that another JSON library reads.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/text/json_string.h"
#include "megatron/data/text/json_text.h"
#include "megatron/data/text/utf8_scan.h"
#include "nlohmann/json.hpp"

namespace {

using megatron::JsonText;
using Json = nlohmann::json;

// Returns the value as the other library would hold it.
Json ToJson(const JsonText& text) {
  if (!text.is_list) return text.text;
  Json list = Json::array();
  size_t begin = 0;
  for (const size_t end : text.ends) {
    list.push_back(text.text.substr(begin, end - begin));
    begin = end;
  }
  return list;
}

bool IsTextOrTexts(const Json& value) {
  if (!value.is_array()) return value.is_string();
  for (const Json& piece : value) {
    if (!piece.is_string()) return false;
  }
  return true;
}

void CheckText(const JsonText& text, size_t line_size) {
  CHECK_LE(text.text.size(), line_size);  // no escape is shorter than the text it stands for
  CHECK_EQ(megatron::Utf8PrefixLength(text.text), text.text.size());
  std::string quoted;
  megatron::AppendJsonString(text.text, &quoted);
  CHECK(Json::parse(quoted) == text.text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<JsonText> texts;
  megatron::BadLineKind kind;
  const absl::string_view line(reinterpret_cast<const char*>(data), size);
  const bool good = megatron::ExtractJsonTexts(line, {"text", "t"}, &texts, &kind).ok();
  // ExtractJsonTexts may accept more (for example numbers of any size), but must accept every line
  // that the other library accepts, except that a zero byte ends the other library's input.
  const Json parsed = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  const bool has_both = !parsed.is_discarded() && parsed.is_object() && parsed.contains("text") &&
                        parsed.contains("t") && IsTextOrTexts(parsed["text"]) &&
                        IsTextOrTexts(parsed["t"]);
  if (has_both && line.find('\0') == line.npos) CHECK(good) << line;
  if (!good) return 0;
  CHECK_EQ(texts.size(), 2u);
  for (const JsonText& text : texts) CheckText(text, size);
  if (parsed.is_discarded()) return 0;
  CHECK(has_both) << line;
  CHECK(ToJson(texts[0]) == parsed["text"] && ToJson(texts[1]) == parsed["t"]) << line;
  return 0;
}
