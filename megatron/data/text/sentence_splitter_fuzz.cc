// Fuzzes SplitSentences: any bytes give sentences that follow each other in the text, with only
// white space between and around them, and not even that if newlines are kept.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/text/sentence_splitter.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<absl::string_view> sentences;
  megatron::SplitSentences(text, {}, &sentences);
  const char* at = text.data();
  for (const absl::string_view sentence : sentences) {
    CHECK(!sentence.empty());
    CHECK_GE(sentence.data(), at);
    at = sentence.data() + sentence.size();
  }
  CHECK_LE(at, text.data() + text.size());

  megatron::SentenceSplitterOptions keep;
  keep.keep_newlines = true;
  std::vector<absl::string_view> kept;
  megatron::SplitSentences(text, keep, &kept);
  CHECK_EQ(kept.size(), sentences.size());
  for (size_t i = 0; i < kept.size(); ++i) CHECK_EQ(kept[i].data(), sentences[i].data());
  const std::string joined = absl::StrJoin(kept, "");
  CHECK(absl::string_view(text).substr(size - joined.size()) == joined);
  return 0;
}
