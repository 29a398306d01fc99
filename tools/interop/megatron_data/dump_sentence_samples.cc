// Prints samples of BERT or T5, one a line, for comparison with those of Megatron-LM's own Python
// code. The vocabulary is that of compare_sentences.py.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/masked/bert_dataset.h"
#include "megatron/data/masked/t5_dataset.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, model, "bert", "bert or t5.");
ABSL_FLAG(std::string, prefix, "", "An indexed dataset of sentences.");
ABSL_FLAG(int64_t, first_document, 0, "");
ABSL_FLAG(int64_t, last_document, 0, "One behind the last.");
ABSL_FLAG(int64_t, samples, 100, "How many samples to ask for; at most 1000 are printed.");
ABSL_FLAG(int32_t, seq_length, 128, "");
ABSL_FLAG(int32_t, decoder_seq_length, 128, "");
ABSL_FLAG(uint32_t, seed, 1234, "");
ABSL_FLAG(double, short_seq_prob, 0.1, "");
ABSL_FLAG(double, mask_prob, 0.15, "");
ABSL_FLAG(int32_t, max_ngram, 3, "");
ABSL_FLAG(bool, full_word, true, "");
ABSL_FLAG(bool, longer_ngrams, false, "");
ABSL_FLAG(bool, geometric, false, "");
ABSL_FLAG(bool, head, true, "");
ABSL_FLAG(std::string, cache_dir, "", "Where the list of samples is kept; empty: nowhere.");

namespace megatron {
namespace {

constexpr int32_t kVocabSize = 1000;

WordPieces Pieces() {
  WordPieces pieces;
  pieces.special.pad = 0;
  pieces.special.cls = 1;
  pieces.special.sep = 2;
  pieces.special.mask = 4;
  pieces.special.bos = 5;
  pieces.special.eos = 6;
  pieces.special.sentinels.resize(100);
  std::iota(pieces.special.sentinels.begin(), pieces.special.sentinels.end(), kVocabSize - 100);
  pieces.continues_word.resize(kVocabSize);
  for (int32_t id = 3; id < kVocabSize; id += 4) pieces.continues_word[id] = true;
  return pieces;
}

template <typename Options>
Options OptionsFromFlags(const IndexCache& cache) {
  Options options;
  if (!absl::GetFlag(FLAGS_cache_dir).empty()) options.cache.cache = &cache;
  options.documents = {absl::GetFlag(FLAGS_first_document), absl::GetFlag(FLAGS_last_document)};
  options.seq_length = absl::GetFlag(FLAGS_seq_length);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.num_samples = absl::GetFlag(FLAGS_samples);
  options.short_sequence_probability = absl::GetFlag(FLAGS_short_seq_prob);
  options.masking.probability = absl::GetFlag(FLAGS_mask_prob);
  options.masking.max_ngram = absl::GetFlag(FLAGS_max_ngram);
  options.masking.full_word = absl::GetFlag(FLAGS_full_word);
  options.masking.use_longer_ngrams = absl::GetFlag(FLAGS_longer_ngrams);
  options.masking.use_geometric_distribution = absl::GetFlag(FLAGS_geometric);
  return options;
}

// Returns Megatron's padding mask.
std::string Mask(int32_t num_tokens, size_t length) {
  std::vector<int> mask(length, 0);
  std::fill_n(mask.begin(), num_tokens, 1);
  return absl::StrJoin(mask, ",");
}

std::string ToString(const BertSample& sample) {
  return absl::StrCat(absl::StrJoin(sample.tokens, ","), " ", absl::StrJoin(sample.types, ","), " ",
                      absl::StrJoin(sample.labels, ","), " ", absl::StrJoin(sample.loss_mask, ","),
                      " ", Mask(sample.num_tokens, sample.tokens.size()), " ", sample.is_random,
                      " ", sample.truncated);
}

std::string ToString(const T5Sample& sample) {
  return absl::StrCat(
      absl::StrJoin(sample.encoder_tokens, ","), " ", absl::StrJoin(sample.decoder_tokens, ","),
      " ", absl::StrJoin(sample.labels, ","), " ", absl::StrJoin(sample.loss_mask, ","), " ",
      Mask(sample.num_encoder_tokens, sample.encoder_tokens.size()), " ",
      Mask(sample.num_decoder_tokens, sample.decoder_tokens.size()), " ", sample.truncated);
}

template <typename Dataset, typename Sample>
absl::Status Print(const Dataset& dataset) {
  std::cout << "size " << dataset.size() << "\n";
  Sample sample;
  for (int64_t i = 0; i < std::min<int64_t>(dataset.size(), 1000); ++i) {
    MEGATRON_RETURN_IF_ERROR(dataset.Get(i, &sample));
    std::cout << ToString(sample) << "\n";
  }
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>&) {
  MEGATRON_ASSIGN_OR_RETURN(IndexedDataset opened,
                            IndexedDataset::Open(absl::GetFlag(FLAGS_prefix)));
  const auto corpus = std::make_shared<IndexedDataset>(std::move(opened));
  const auto document = [&](int64_t i) { return corpus->DocumentSequences(i); };
  const IndexCache cache(PosixFileSystem(), absl::GetFlag(FLAGS_cache_dir));
  if (absl::GetFlag(FLAGS_model) == "bert") {
    BertDatasetOptions options = OptionsFromFlags<BertDatasetOptions>(cache);
    options.classification_head = absl::GetFlag(FLAGS_head);
    MEGATRON_ASSIGN_OR_RETURN(const auto dataset,
                              BertDataset::Create(corpus, document, Pieces(), options));
    return Print<BertDataset, BertSample>(*dataset);
  }
  T5DatasetOptions options = OptionsFromFlags<T5DatasetOptions>(cache);
  options.decoder_seq_length = absl::GetFlag(FLAGS_decoder_seq_length);
  MEGATRON_ASSIGN_OR_RETURN(const auto dataset,
                            T5Dataset::Create(corpus, document, Pieces(), options));
  return Print<T5Dataset, T5Sample>(*dataset);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Prints samples.", megatron::Main);
}
