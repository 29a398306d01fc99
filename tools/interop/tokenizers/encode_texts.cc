// Encodes texts from stdin and prints their ids, for comparisons with other tokenizers.
//
// A text is a line with its length in bytes and then its bytes; the answer to it is a line of ids
// with spaces between, or "error: …". With --spans each id is "id:begin:end", in bytes. With
// --decode the lines of stdin are ids instead, and the answer is a text in the same form. With
// --measure=N all texts are encoded N times, and the answer is the number of ids, the seconds and
// the seconds of the processor of each time.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, tokenizer_type, "", "As of pretrain_gpt, as are the files that follow.");
ABSL_FLAG(std::string, vocab_file, "", "");
ABSL_FLAG(std::string, merge_file, "", "");
ABSL_FLAG(std::string, tokenizer_model, "", "");
ABSL_FLAG(int64_t, tiktoken_num_special_tokens, 1000, "");
ABSL_FLAG(std::string, tiktoken_pattern, "v2", "");
ABSL_FLAG(bool, parse_special, false, "Takes text that spells a special token for that token.");
ABSL_FLAG(bool, spans, false, "Prints the bytes that each id stands for, too.");
ABSL_FLAG(bool, decode, false, "Turns ids into text instead.");
ABSL_FLAG(int32_t, measure, 0, "Times the encoding, so many times.");
ABSL_FLAG(int32_t, threads, 1, "Threads that encode, with --measure.");

namespace megatron {
namespace {

std::string Answer(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  std::vector<TextSpan> spans;
  EncodeOptions options;
  options.parse_special = absl::GetFlag(FLAGS_parse_special);
  if (absl::GetFlag(FLAGS_spans)) options.spans = &spans;
  const absl::Status status = tokenizer.Encode(text, &ids, options);
  if (!status.ok()) return absl::StrCat("error: ", status.message());
  std::string answer;
  for (size_t i = 0; i < ids.size(); ++i) {
    absl::StrAppend(&answer, i == 0 ? "" : " ", ids[i]);
    if (!spans.empty()) absl::StrAppend(&answer, ":", spans[i].begin, ":", spans[i].end);
  }
  return answer;
}

absl::StatusOr<std::vector<std::string>> ReadTexts() {
  std::vector<std::string> texts;
  std::string line;
  while (std::getline(std::cin, line)) {
    int64_t size;
    if (!absl::SimpleAtoi(line, &size) || size < 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", line, "' is no length of a text"));
    }
    texts.emplace_back(size, '\0');
    if (!std::cin.read(&texts.back()[0], size)) {
      return absl::InvalidArgumentError("a text is cut off");
    }
  }
  return texts;
}

absl::Status EncodeAll(const Tokenizer& tokenizer) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadTexts());
  for (const std::string& text : texts) std::cout << Answer(tokenizer, text) << "\n";
  return absl::OkStatus();
}

// Returns the number of ids.
int64_t EncodeInParallel(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                         int threads) {
  std::atomic<size_t> next{0};
  std::atomic<int64_t> count{0};
  std::vector<std::vector<int32_t>> results(texts.size());
  const auto work = [&] {
    for (size_t i = next++; i < texts.size(); i = next++) {
      CHECK_EQ(tokenizer.Encode(texts[i], &results[i]), absl::OkStatus());
      count += static_cast<int64_t>(results[i].size());
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return count;
}

absl::Status Measure(const Tokenizer& tokenizer) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadTexts());
  for (int i = 0; i < absl::GetFlag(FLAGS_measure); ++i) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t processor_start = std::clock();
    const int64_t count = EncodeInParallel(tokenizer, texts, absl::GetFlag(FLAGS_threads));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double processor = static_cast<double>(std::clock() - processor_start) / CLOCKS_PER_SEC;
    std::cout << count << " " << seconds.count() << " " << processor << "\n";
  }
  return absl::OkStatus();
}

absl::Status DecodeAll(const Tokenizer& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::vector<int32_t> ids;
    for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      int32_t id;
      if (!absl::SimpleAtoi(word, &id)) {
        return absl::InvalidArgumentError(absl::StrCat("'", word, "' is no id"));
      }
      ids.push_back(id);
    }
    const std::string text = tokenizer.Decode(ids);
    std::cout << text.size() << "\n" << text;
  }
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>&) {
  TokenizerOptions options;
  options.type = absl::GetFlag(FLAGS_tokenizer_type);
  options.vocab_file = absl::GetFlag(FLAGS_vocab_file);
  options.merge_file = absl::GetFlag(FLAGS_merge_file);
  options.tokenizer_model = absl::GetFlag(FLAGS_tokenizer_model);
  options.tiktoken_num_special_tokens = absl::GetFlag(FLAGS_tiktoken_num_special_tokens);
  options.tiktoken_pattern = absl::GetFlag(FLAGS_tiktoken_pattern);
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, CreateTokenizer(options));
  std::ios::sync_with_stdio(false);
  if (absl::GetFlag(FLAGS_measure) > 0) return Measure(*tokenizer);
  return absl::GetFlag(FLAGS_decode) ? DecodeAll(*tokenizer) : EncodeAll(*tokenizer);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Encodes texts from stdin.", megatron::Main);
}
