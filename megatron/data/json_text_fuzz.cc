// Any bytes as a line: an error, or a text for each key that is no longer than the line.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> texts;
  const absl::string_view line(reinterpret_cast<const char*>(data), size);
  if (megatron::ExtractJsonTexts(line, {"text", "t"}, &texts).ok()) {
    CHECK_EQ(texts.size(), 2u);
    // No escape is shorter than what it stands for.
    CHECK_LE(texts[0].size() + texts[1].size(), size);
  }
  return 0;
}
