// Shows what is in an indexed dataset.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "tools/tool_main.h"

ABSL_FLAG(int64_t, documents, 3, "How many documents to print.");
ABSL_FLAG(int64_t, first, 0, "The first document to print.");
ABSL_FLAG(int64_t, max_tokens, 400, "Tokens to print of each document.");
ABSL_FLAG(std::string, tokenizer_type, "ByteLevel",
          "Tokenizer that wrote the dataset: ByteLevel or NullTokenizer.");
ABSL_FLAG(int64_t, vocab_size, 0, "Number of token ids of NullTokenizer.");
ABSL_FLAG(bool, verify, false,
          "Checks every token too, that it lies in the tokenizer's vocabulary.");

namespace megatron {
namespace {

void PrintHeader(const IndexedDataset& dataset) {
  const int64_t documents = dataset.num_documents();
  absl::PrintF("dataset    %s\n", dataset.prefix());
  absl::PrintF("tokens     %d, stored as %s\n", dataset.num_tokens(),
               std::string(TokenTypeName(dataset.token_type())));
  absl::PrintF("documents  %d\n", documents);
  absl::PrintF("sequences  %d%s\n", dataset.num_sequences(),
               dataset.has_modes() ? ", with modes" : "");
}

int64_t DocumentLength(const IndexedDataset& dataset, int64_t document) {
  int64_t length = 0;
  const auto [begin, end] = dataset.DocumentSequences(document);
  for (int64_t i = begin; i < end; ++i) length += dataset.SequenceLength(i);
  return length;
}

// Counts documents by length, in powers of two.
void PrintHistogram(const IndexedDataset& dataset) {
  std::array<int64_t, 65> counts = {};
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    const uint64_t length = static_cast<uint64_t>(DocumentLength(dataset, i));
    ++counts[length == 0 ? 0 : 64 - __builtin_clzll(length)];
  }
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  if (most == 0) return;
  std::cout << "\ntokens in a document\n";
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const uint64_t low = i == 0 ? 0 : uint64_t{1} << (i - 1);
    const uint64_t high = i == 0 ? 0 : low - 1 + low;
    absl::PrintF("%11d - %-11d %11d %s\n", low, high, counts[i],
                 std::string((counts[i] * 40 + most - 1) / most, '#'));
  }
}

absl::StatusOr<std::string> DocumentText(const IndexedDataset& dataset, int64_t document,
                                         const Tokenizer& tokenizer) {
  int64_t left = std::max<int64_t>(absl::GetFlag(FLAGS_max_tokens), 0);
  std::vector<int32_t> tokens;
  const auto [begin, end] = dataset.DocumentSequences(document);
  for (int64_t i = begin; i < end && left > 0; ++i) {
    const size_t count = static_cast<size_t>(std::min<int64_t>(left, dataset.SequenceLength(i)));
    tokens.resize(tokens.size() + count);
    MEGATRON_RETURN_IF_ERROR(dataset.ReadTokens(i, 0, absl::MakeSpan(tokens).last(count)));
    left -= static_cast<int64_t>(count);
  }
  return tokenizer.Decode(tokens);
}

absl::Status PrintDocuments(const IndexedDataset& dataset, const Tokenizer& tokenizer) {
  const int64_t first = std::max<int64_t>(absl::GetFlag(FLAGS_first), 0);
  const int64_t count = std::max<int64_t>(absl::GetFlag(FLAGS_documents), 0);
  for (int64_t i = first; i < dataset.num_documents() && i - first < count; ++i) {
    absl::PrintF("\ndocument %d, %d tokens\n", i, DocumentLength(dataset, i));
    MEGATRON_ASSIGN_OR_RETURN(const std::string text, DocumentText(dataset, i, tokenizer));
    std::cout << text << "\n";
  }
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1)
    return absl::InvalidArgumentError("expected one argument, the dataset's prefix");
  MEGATRON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Tokenizer> tokenizer,
      CreateTokenizer({absl::GetFlag(FLAGS_tokenizer_type), absl::GetFlag(FLAGS_vocab_size)}));
  MEGATRON_ASSIGN_OR_RETURN(const IndexedDataset dataset, IndexedDataset::Open(arguments[0]));
  PrintHeader(dataset);
  PrintHistogram(dataset);
  MEGATRON_RETURN_IF_ERROR(PrintDocuments(dataset, *tokenizer));
  if (absl::GetFlag(FLAGS_verify)) {
    MEGATRON_RETURN_IF_ERROR(dataset.VerifyTokens(tokenizer->vocab_size()));
    absl::PrintF("\nverified: the index, and that every token lies in a vocabulary of %d\n",
                 tokenizer->vocab_size());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv, "Shows what is in an indexed dataset: inspect_dataset stories_text_document",
      megatron::Main);
}
