// Prints the samples of one split, one a line, for comparison with those of Megatron-LM's own
// Python code.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/blend.h"
#include "megatron/data/gpt/gpt_dataset.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::vector<std::string>, data_path, {},
          "Prefixes, each with its weight before it or none; without any, mock data.");
ABSL_FLAG(std::string, split, "969,30,1", "Shares of training, validation and test.");
ABSL_FLAG(int32_t, part, 0, "0: training, 1: validation, 2: test.");
ABSL_FLAG(std::string, cache_dir, "", "Folder of the index cache; empty: none.");
ABSL_FLAG(int64_t, samples, 100, "How many samples to ask for.");
ABSL_FLAG(int64_t, print, 100, "How many to print at most.");
ABSL_FLAG(int64_t, seq_length, 64, "");
ABSL_FLAG(uint32_t, seed, 1234, "");
ABSL_FLAG(int32_t, vocab_size, 257, "");
ABSL_FLAG(int32_t, eod, 256, "");
ABSL_FLAG(bool, resets, false, "reset_position_ids, reset_attention_mask and eod_mask_loss.");

namespace megatron {
namespace {

const IndexCache* Cache() {
  static const auto* const cache =
      absl::GetFlag(FLAGS_cache_dir).empty()
          ? nullptr
          : new IndexCache(PosixFileSystem(), absl::GetFlag(FLAGS_cache_dir));
  return cache;
}

Split Part() { return static_cast<Split>(absl::GetFlag(FLAGS_part)); }

GptDatasetOptions OptionsFromFlags(int64_t num_samples) {
  GptDatasetOptions options;
  options.seq_length = absl::GetFlag(FLAGS_seq_length);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.num_samples = num_samples;
  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  options.eod = absl::GetFlag(FLAGS_eod);
  options.reset_position_ids = options.reset_attention_mask = options.eod_mask_loss =
      absl::GetFlag(FLAGS_resets);
  return options;
}

absl::StatusOr<std::unique_ptr<SampleSource>> OpenPrefix(const std::string& prefix,
                                                         int64_t num_samples) {
  MEGATRON_ASSIGN_OR_RETURN(IndexedDataset corpus, IndexedDataset::Open(prefix));
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(absl::GetFlag(FLAGS_split)));
  GptDatasetOptions options = OptionsFromFlags(num_samples);
  options.range = SplitRange(Part(), shares, corpus.num_sequences());
  options.cache = Cache();
  options.identity.split = Part();
  MEGATRON_ASSIGN_OR_RETURN(options.identity.fingerprint, corpus.DescribeContents());
  return GptDataset::Create(std::make_shared<IndexedDataset>(std::move(corpus)), options);
}

absl::StatusOr<std::unique_ptr<SampleSource>> OpenAll() {
  const int64_t num_samples = absl::GetFlag(FLAGS_samples);
  const std::vector<std::string> data_path = absl::GetFlag(FLAGS_data_path);
  if (data_path.empty()) {
    return CreateMockGptDataset(Part(), OptionsFromFlags(num_samples));
  }
  MEGATRON_ASSIGN_OR_RETURN(const BlendSpec blend, ParseBlend(data_path));
  if (blend.weights.empty()) return OpenPrefix(blend.prefixes[0], num_samples);
  const std::vector<int64_t> wanted = SamplesPerDataset(blend.weights, num_samples);
  std::vector<std::unique_ptr<SampleSource>> datasets;
  for (size_t i = 0; i < wanted.size(); ++i) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> dataset,
                              OpenPrefix(blend.prefixes[i], wanted[i]));
    datasets.push_back(std::move(dataset));
  }
  return BlendedDataset::Create(std::move(datasets), OrderWeights(blend.weights),
                                BlendSize(blend.weights, num_samples), {Cache(), Part()});
}

absl::Status Main(const std::vector<std::string>&) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<SampleSource> source, OpenAll());
  std::cout << "size " << source->size() << "\n";
  Sample sample;
  for (int64_t i = 0; i < std::min(source->size(), absl::GetFlag(FLAGS_print)); ++i) {
    MEGATRON_RETURN_IF_ERROR(source->Get(i, &sample));
    std::cout << absl::StrJoin(sample.tokens, ",") << " " << absl::StrJoin(sample.labels, ",")
              << " " << absl::StrJoin(sample.positions, ",") << " "
              << absl::StrJoin(sample.loss_mask, ",") << " "
              << absl::StrJoin(sample.document_starts, ",") << "\n";
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Prints samples.", megatron::Main);
}
