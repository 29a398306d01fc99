// Shows the contents of an indexed dataset, and checks it.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "nlohmann/json.hpp"
#include "tools/common/tokenizer_flags.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(
    bool, json, false,
    "Prints one JSON object in place of the text. After an error nothing is printed to stdout.");
ABSL_FLAG(int64_t, documents, 3, "How many documents to print.");
ABSL_FLAG(int64_t, first, 0, "The first document to print.");
ABSL_FLAG(int64_t, max_tokens, 400, "Tokens to print of each document.");
ABSL_FLAG(
    bool, verify, false,
    "Checks all that can be: every token (against the tokenizer's vocabulary, where "
    "--tokenizer_type is given), and that the .bin file holds the sequences and nothing else.");
ABSL_FLAG(std::string, fingerprint, "", "Fails where the dataset's fingerprint is another one.");

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

void PrintHeader(const IndexedDataset& dataset, const std::string& fingerprint) {
  const int64_t documents = dataset.num_documents();
  absl::PrintF("dataset      %s\n", dataset.prefix());
  absl::PrintF("fingerprint  %s\n", fingerprint);
  absl::PrintF("tokens       %d, stored as %s\n", dataset.num_tokens(),
               std::string(TokenTypeName(dataset.token_type())));
  absl::PrintF("documents    %d\n", documents);
  absl::PrintF("sequences    %d%s\n", dataset.num_sequences(),
               dataset.has_modes() ? ", with modes" : "");
  if (documents > 0) {
    absl::PrintF("on average   %.1f tokens in a document\n",
                 static_cast<double>(dataset.num_tokens()) / static_cast<double>(documents));
  }
}

int64_t DocumentLength(const IndexedDataset& dataset, int64_t document) {
  int64_t length = 0;
  const auto [begin, end] = dataset.DocumentSequences(document);
  for (int64_t i = begin; i < end; ++i) length += dataset.SequenceLength(i);
  return length;
}

// Counts of values from `low` to `high`, which are powers of two.
struct Bucket {
  uint64_t low = 0, high = 0;
  int64_t count = 0;
};

struct Histogram {
  std::string title;
  std::vector<Bucket> buckets;  // those that are not empty
};

Histogram CountByPowersOfTwo(absl::string_view title, int64_t count,
                             absl::FunctionRef<int64_t(int64_t)> value) {
  std::array<int64_t, 65> counts = {};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t x = static_cast<uint64_t>(value(i));
    ++counts[x == 0 ? 0 : 64 - __builtin_clzll(x)];
  }
  Histogram histogram = {std::string(title), {}};
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const uint64_t low = i == 0 ? 0 : uint64_t{1} << (i - 1);
    histogram.buckets.push_back({low, i == 0 ? 0 : low - 1 + low, counts[i]});
  }
  return histogram;
}

std::vector<Histogram> HistogramsOf(const IndexedDataset& dataset) {
  std::vector<Histogram> histograms;
  histograms.push_back(CountByPowersOfTwo("tokens in a document", dataset.num_documents(),
                                          [&](int64_t i) { return DocumentLength(dataset, i); }));
  // A dataset with several sequences in a document gets two more histograms.
  if (dataset.num_sequences() <= dataset.num_documents()) return histograms;
  histograms.push_back(CountByPowersOfTwo("tokens in a sequence", dataset.num_sequences(),
                                          [&](int64_t i) { return dataset.SequenceLength(i); }));
  histograms.push_back(
      CountByPowersOfTwo("sequences in a document", dataset.num_documents(), [&](int64_t i) {
        const auto [begin, end] = dataset.DocumentSequences(i);
        return end - begin;
      }));
  return histograms;
}

// Prints counts as bars.
void PrintHistogram(const Histogram& histogram) {
  if (histogram.buckets.empty()) return;
  int64_t most = 0;
  for (const Bucket& bucket : histogram.buckets) most = std::max(most, bucket.count);
  std::cout << "\n" << histogram.title << "\n";
  for (const Bucket& bucket : histogram.buckets) {
    absl::PrintF("%11d - %-11d %11d %s\n", bucket.low, bucket.high, bucket.count,
                 std::string((bucket.count * 40 + most - 1) / most, '#'));
  }
}

Json ToJson(const Histogram& histogram) {
  Json buckets = Json::array();
  for (const Bucket& bucket : histogram.buckets)
    buckets.push_back({{"from", bucket.low}, {"to", bucket.high}, {"count", bucket.count}});
  return buckets;
}

struct Document {
  int64_t number = 0, tokens = 0;
  int64_t num_sequences = 0;
  std::vector<std::vector<int32_t>> sequences;  // as far as --max_tokens allows
};

absl::StatusOr<Document> ReadDocument(const IndexedDataset& dataset, int64_t number) {
  int64_t left = absl::GetFlag(FLAGS_max_tokens);
  const auto [begin, end] = dataset.DocumentSequences(number);
  Document document = {number, DocumentLength(dataset, number), end - begin, {}};
  for (int64_t i = begin; i < end && left > 0; ++i) {
    std::vector<int32_t> tokens(
        static_cast<size_t>(std::min<int64_t>(left, dataset.SequenceLength(i))));
    MEGATRON_RETURN_IF_ERROR(dataset.ReadTokens(i, 0, absl::MakeSpan(tokens)));
    left -= static_cast<int64_t>(tokens.size());
    document.sequences.push_back(std::move(tokens));
  }
  return document;
}

// Prints the sequences of a document, each on a line, as text or as numbers.
void PrintDocument(const Document& document, const Tokenizer* tokenizer) {
  absl::PrintF("\ndocument %d, %d tokens in %d sequences\n", document.number, document.tokens,
               document.num_sequences);
  for (const std::vector<int32_t>& tokens : document.sequences) {
    std::cout << (tokenizer == nullptr ? absl::StrJoin(tokens, " ") : tokenizer->Decode(tokens))
              << "\n";
  }
}

Json ToJson(const Document& document, const Tokenizer* tokenizer) {
  Json sequences = Json::array();
  for (const std::vector<int32_t>& tokens : document.sequences)
    sequences.push_back(tokenizer == nullptr ? Json(tokens) : Json(tokenizer->Decode(tokens)));
  return {{"document", document.number},
          {"tokens", document.tokens},
          {"sequences", document.num_sequences},
          {tokenizer == nullptr ? "ids" : "text", std::move(sequences)}};
}

// Calls `take` with each document that is to be shown.
absl::Status ForEachDocument(const IndexedDataset& dataset,
                             absl::FunctionRef<void(const Document&)> take) {
  const int64_t first = absl::GetFlag(FLAGS_first);
  const int64_t count = absl::GetFlag(FLAGS_documents);
  for (int64_t i = first; i < dataset.num_documents() && i - first < count; ++i) {
    MEGATRON_ASSIGN_OR_RETURN(const Document document, ReadDocument(dataset, i));
    take(document);
  }
  return absl::OkStatus();
}

// Checks what opening a dataset leaves unchecked.
absl::Status Verify(const IndexedDataset& dataset, const Tokenizer* tokenizer) {
  MEGATRON_RETURN_IF_ERROR(dataset.VerifyBinSize());
  const int64_t vocab_size = tokenizer != nullptr
                                 ? tokenizer->vocab_size()
                                 : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  return dataset.VerifyTokens(vocab_size);
}

absl::Status PrintText(const IndexedDataset& dataset, const std::string& fingerprint,
                       const Tokenizer* tokenizer) {
  PrintHeader(dataset, fingerprint);
  for (const Histogram& histogram : HistogramsOf(dataset)) PrintHistogram(histogram);
  MEGATRON_RETURN_IF_ERROR(ForEachDocument(
      dataset, [&](const Document& document) { PrintDocument(document, tokenizer); }));
  if (!absl::GetFlag(FLAGS_verify)) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(Verify(dataset, tokenizer));
  absl::PrintF("\nverified: the index, the size of the .bin file, and that every token %s\n",
               tokenizer != nullptr
                   ? absl::StrCat("lies in a vocabulary of ", tokenizer->vocab_size())
                   : "is a number from 0 to 2^31 - 1");
  return absl::OkStatus();
}

absl::StatusOr<Json> Describe(const IndexedDataset& dataset, const std::string& fingerprint,
                              const Tokenizer* tokenizer) {
  Json all = {{"dataset", dataset.prefix()},
              {"fingerprint", fingerprint},
              {"tokens", dataset.num_tokens()},
              {"dtype", std::string(TokenTypeName(dataset.token_type()))},
              {"documents", dataset.num_documents()},
              {"sequences", dataset.num_sequences()},
              {"modes", dataset.has_modes()},
              {"histograms", Json::object()},
              {"shown", Json::array()}};
  for (const Histogram& histogram : HistogramsOf(dataset))
    all["histograms"][histogram.title] = ToJson(histogram);
  MEGATRON_RETURN_IF_ERROR(ForEachDocument(dataset, [&](const Document& document) {
    all["shown"].push_back(ToJson(document, tokenizer));
  }));
  if (!absl::GetFlag(FLAGS_verify)) return all;
  MEGATRON_RETURN_IF_ERROR(Verify(dataset, tokenizer));
  all["verified"] = true;
  return all;
}

absl::Status CheckFlags(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1)
    return absl::InvalidArgumentError("expected one argument, the dataset's prefix");
  for (const auto& [name, value] : {std::pair("documents", absl::GetFlag(FLAGS_documents)),
                                    std::pair("first", absl::GetFlag(FLAGS_first)),
                                    std::pair("max_tokens", absl::GetFlag(FLAGS_max_tokens))}) {
    if (value < 0)
      return absl::InvalidArgumentError(absl::StrCat("--", name, "=", value, " is negative"));
  }
  const std::string fingerprint = absl::GetFlag(FLAGS_fingerprint);
  const bool is_one = fingerprint.size() == 8 && absl::c_all_of(fingerprint, absl::ascii_isxdigit);
  if (fingerprint.empty() || is_one) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--fingerprint=", fingerprint, ": expected eight hexadecimal digits"));
}

absl::Status Main(const std::vector<std::string>& arguments) {
  MEGATRON_RETURN_IF_ERROR(CheckFlags(arguments));
  std::unique_ptr<Tokenizer> tokenizer;
  if (HasTokenizerFlags()) {
    MEGATRON_ASSIGN_OR_RETURN(tokenizer, TokenizerFromFlags());
  }
  MEGATRON_ASSIGN_OR_RETURN(const IndexedDataset dataset,
                            AsInput(IndexedDataset::Open(arguments[0])));
  MEGATRON_ASSIGN_OR_RETURN(const uint32_t fingerprint, dataset.ContentFingerprint());
  const std::string fingerprint_text = absl::StrFormat("%08x", fingerprint);
  Json json;
  if (absl::GetFlag(FLAGS_json)) {
    MEGATRON_ASSIGN_OR_RETURN(json, Describe(dataset, fingerprint_text, tokenizer.get()));
  } else {
    MEGATRON_RETURN_IF_ERROR(PrintText(dataset, fingerprint_text, tokenizer.get()));
  }
  const std::string expected = absl::AsciiStrToLower(absl::GetFlag(FLAGS_fingerprint));
  if (!expected.empty() && expected != fingerprint_text) {
    return absl::DataLossError(absl::StrCat("'", dataset.prefix(), "' has the fingerprint ",
                                            fingerprint_text, ", not ", expected));
  }
  // The bytes of a document and of a path need not be UTF-8.
  if (!json.is_null())
    std::cout << json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Shows what is in an indexed dataset; with --tokenizer_type, its documents as text:\n"
      "  inspect_dataset --tokenizer_type=ByteLevel --verify stories_text_document",
      megatron::Main);
}
