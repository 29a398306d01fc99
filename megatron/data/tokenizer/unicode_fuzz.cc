// Fuzzes normalization: for any bytes, every form gives valid UTF-8, normalizing again changes
// nothing, and the origins of the bytes are in order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using megatron::NormalizationForm;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  for (const NormalizationForm form : {NormalizationForm::kNfc, NormalizationForm::kNfd,
                                       NormalizationForm::kNfkc, NormalizationForm::kNfkd}) {
    std::vector<size_t> origins;
    const std::string once = megatron::NormalizeUnicode(form, text, &origins);
    CHECK(megatron::IsValidUtf8(once));
    CHECK_EQ(origins.size(), once.size() + 1);
    CHECK(std::is_sorted(origins.begin(), origins.end()));
    CHECK_EQ(origins.back(), text.size());
    CHECK_EQ(megatron::NormalizeUnicode(form, once), once);
  }
  std::vector<size_t> origins;
  const std::string lower = megatron::ToLower(text, &origins);
  CHECK_EQ(origins.size(), lower.size() + 1);
  return 0;
}
