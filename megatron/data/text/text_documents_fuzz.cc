// Fuzzes line reading and the conversion of text documents. Any bytes as a text file give the lines
// that a loop over the bytes finds, for pieces of any size; as documents they give either JSON
// lines that hold all of the text, or an error.
//
// The first byte picks the sizes and options.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/data/io/byte_source.h"
#include "megatron/data/io/line_batches.h"
#include "megatron/data/text/text_documents.h"
#include "megatron/data/text/utf8_scan.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

constexpr char kTooLong[] = "(too long)";

LineBatchReader Reader(absl::string_view text, const LineBatchReader::Options& options) {
  return LineBatchReader(
      {"x"},
      [text](const std::string&, const std::atomic<bool>*) {
        return MakeMemorySource(std::string(text), 11);
      },
      options);
}

std::vector<std::string> LinesByHand(absl::string_view text, size_t max_line_bytes) {
  if (text.empty()) return {};
  absl::ConsumeSuffix(&text, "\n");
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines[0] = std::string(absl::StripPrefix(lines[0], "\xef\xbb\xbf"));
  for (std::string& line : lines) {
    if (line.size() > max_line_bytes) line = kTooLong;
  }
  return lines;
}

void CheckLines(absl::string_view text, const LineBatchReader::Options& options) {
  LineBatchReader reader = Reader(text, options);
  std::vector<std::string> lines;
  LineBatch batch;
  absl::StatusOr<bool> more;
  while ((more = reader.Next(&batch)).ok() && *more) {
    CHECK_EQ(batch.first_line, static_cast<int64_t>(lines.size()) + 1);
    CHECK(!batch.lines.empty());
    for (const LineBatch::Line& line : batch.lines) {
      lines.emplace_back(line.too_long ? kTooLong : line.text);
    }
  }
  CHECK(more.ok()) << more.status();
  CHECK_EQ(batch.stored_bytes_read, static_cast<int64_t>(text.size()));
  CHECK(lines == LinesByHand(text, options.max_line_bytes));
}

// Returns the documents of `text`, joined, or the error of the conversion.
absl::StatusOr<std::string> Documents(absl::string_view text, size_t batch_bytes,
                                      const TextDocumentOptions& options) {
  LineBatchReader reader = Reader(text, {options.max_document_bytes, batch_bytes});
  std::string out;
  const auto report = TextToJsonLines(
      reader, options,
      [&](absl::string_view json) {
        out.append(json.data(), json.size());
        return absl::OkStatus();
      },
      [](const TextDocumentReport&) { return true; });
  if (!report.ok()) return report.status();
  std::vector<std::string> documents;
  for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    documents.push_back(Json::parse(line).at("t").get<std::string>());
    CHECK(!documents.back().empty());
  }
  CHECK_EQ(report->documents, static_cast<int64_t>(documents.size()));
  return absl::StrJoin(documents, "");
}

// Returns the text without white space, line ends and separators.
std::string Letters(absl::string_view text) {
  std::string letters;
  for (const char c : text) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c)) && c != '#') letters.push_back(c);
  }
  return letters;
}

void CheckDocuments(absl::string_view text, uint8_t flags) {
  TextDocumentOptions options;
  options.separator = (flags & 1) != 0 ? "##" : "";
  options.anywhere = (flags & 2) != 0;
  options.strip = (flags & 4) != 0;
  options.replace_bad_utf8 = (flags & 8) != 0;
  options.max_document_bytes = (flags & 16) != 0 ? 64 : 4096;
  options.json_key = "t";
  const absl::StatusOr<std::string> documents = Documents(text, 7, options);
  const absl::StatusOr<std::string> again = Documents(text, 4096, options);
  CHECK_EQ(documents.ok(), again.ok()) << documents.status() << again.status();
  if (!documents.ok()) return;
  CHECK_EQ(*documents, *again);
  CHECK_EQ(Utf8PrefixLength(*documents), documents->size());
  const bool whole = Utf8PrefixLength(text) == text.size();
  if (whole) {
    CHECK_EQ(Letters(*documents), Letters(absl::StripPrefix(text, "\xef\xbb\xbf")));
  }
  CHECK(whole || options.replace_bad_utf8);
}

}  // namespace
}  // namespace megatron

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  megatron::CheckLines(text, {data[0], size_t{1} + data[0] % 32});
  megatron::CheckDocuments(text, data[0]);
  return 0;
}
