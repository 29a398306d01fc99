// Measures the bytes of JSON lines read per second on one thread.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/data/text/json_string.h"
#include "megatron/data/text/json_text.h"
#include "megatron/data/text/sentence_splitter.h"

namespace megatron {
namespace {

constexpr size_t kTextBytes = 4000;

// The line resembles those of web corpora: metadata, and a text of a few kilobytes.
std::string MakeLine(absl::string_view sentence) {
  std::string text;
  while (text.size() < kTextBytes) absl::StrAppend(&text, sentence);
  std::string line = R"({"id": 123456, "url": "https://example.com/a/b", "text": )";
  AppendJsonString(text, &line);
  return line + R"(, "meta": {"score": 0.25, "tags": ["a", "b"], "date": null}})";
}

// Python's json.dumps escapes characters beyond ASCII like this.
std::string MakeEscapedLine() {
  std::string text;
  while (text.size() < 2 * kTextBytes)
    text += R"(\u543e\u8f29\u306f\u732b\u3067\u3042\u308b\u3002)";
  return absl::StrCat(R"({"text": ")", text, R"("})");
}

void Extract(benchmark::State& state, const std::string& line) {
  const std::vector<std::string> keys = {"text"};
  std::vector<JsonText> texts;
  BadLineKind kind;
  for (auto _ : state) {
    CHECK(ExtractJsonTexts(line, keys, &texts, &kind).ok());
    benchmark::DoNotOptimize(texts[0].text.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(line.size()));
}

BENCHMARK_CAPTURE(
    Extract, english,
    MakeLine("The cat \"Tom\" sat on the mat, and then it looked at us for a while.\n"));
BENCHMARK_CAPTURE(Extract, japanese, MakeLine("吾輩は猫である。名前はまだ無い。\n"));
BENCHMARK_CAPTURE(Extract, escaped_japanese, MakeEscapedLine());

void Split(benchmark::State& state, absl::string_view sentence) {
  std::string text;
  while (text.size() < kTextBytes) absl::StrAppend(&text, sentence);
  std::vector<absl::string_view> sentences;
  for (auto _ : state) {
    SplitSentences(text, {}, &sentences);
    benchmark::DoNotOptimize(sentences.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

BENCHMARK_CAPTURE(Split, english, "Mr. Tom sat on the mat. Then it looked at us for a while. ");
BENCHMARK_CAPTURE(Split, japanese, "吾輩は猫である。名前はまだ無い。");

}  // namespace
}  // namespace megatron
