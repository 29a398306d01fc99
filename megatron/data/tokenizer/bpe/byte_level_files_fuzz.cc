// Fuzzes byte-level vocabularies: any bytes as vocab.json and merges.txt, or as a tiktoken file,
// give either an error, or a tokenizer whose ids are in range and whose tokens joined are the text.
//
// The first byte selects the format and the options; bytes 0xff separate the files and the text.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/bpe/byte_level_files.h"

namespace megatron {
namespace {

void Check(const absl::StatusOr<std::unique_ptr<Tokenizer>>& created, absl::string_view text) {
  if (!created.ok()) return;
  const Tokenizer& tokenizer = **created;
  std::vector<int32_t> ids;
  std::vector<TextSpan> spans;
  EncodeOptions options;
  options.spans = &spans;
  if (!tokenizer.Encode(text, &ids, options).ok()) return;
  CHECK_EQ(ids.size(), spans.size());
  for (const int32_t id : ids) CHECK(0 <= id && id < tokenizer.vocab_size());
  CHECK_EQ(tokenizer.Decode(ids), text);
  CHECK_EQ(spans.empty() ? 0 : spans.back().end, text.size());
}

TiktokenOptions OptionsOf(char first_byte) {
  TiktokenOptions options;
  options.num_special_tokens = first_byte == 'f' ? 2 : 5;
  options.vocab_size = first_byte == 'v' ? 8 : first_byte == 'l' ? int64_t{1} << 40 : 0;
  if (first_byte == 'e') options.special_tokens.push_back("");
  if (first_byte == 'd') options.special_tokens.push_back("<s>");
  return options;
}

}  // namespace
}  // namespace megatron

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  std::vector<absl::string_view> parts = absl::StrSplit(input.substr(1), '\xff');
  parts.resize(3);
  if (input[0] == 'g') {
    megatron::Check(megatron::CreateGpt2BpeTokenizer(parts[0], parts[1]), parts[2]);
  } else {
    megatron::Check(megatron::CreateTiktokenTokenizer(parts[0], megatron::OptionsOf(input[0])),
                    parts[1]);
  }
  return 0;
}
