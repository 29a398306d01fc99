#include "megatron/train/gpt_data.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/blend.h"
#include "megatron/data/gpt_dataset.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/story_sequences.h"

namespace megatron {
namespace {

GptDatasetOptions DatasetOptions(const DataOptions& options, const Tokenizer& tokenizer,
                                 Split split) {
  GptDatasetOptions dataset;
  dataset.seq_length = options.seq_length;
  dataset.seed = options.seed;
  dataset.num_samples = SamplesNeeded(split, options.run);
  dataset.vocab_size = tokenizer.vocab_size();
  dataset.eod = tokenizer.eod();
  dataset.reset_position_ids = options.reset_position_ids;
  dataset.reset_attention_mask = options.reset_attention_mask;
  dataset.eod_mask_loss = options.eod_mask_loss;
  return dataset;
}

absl::StatusOr<std::unique_ptr<GptSampleSource>> SplitOf(
    const std::shared_ptr<const TokenSequences>& sequences, const DataOptions& options,
    const Tokenizer& tokenizer, Split split) {
  GptDatasetOptions dataset = DatasetOptions(options, tokenizer, split);
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(options.split));
  dataset.range = RangeOf(split, shares, sequences->num_sequences());
  return GptDataset::Create(sequences, dataset);
}

absl::Status SplitAll(const std::shared_ptr<const TokenSequences>& sequences,
                      const DataOptions& options, const Tokenizer& tokenizer, GptData* data) {
  MEGATRON_ASSIGN_OR_RETURN(data->train, SplitOf(sequences, options, tokenizer, Split::kTrain),
                            _ << "for the training part of data.split = " << options.split);
  if (options.run.eval_interval == 0) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(data->valid, SplitOf(sequences, options, tokenizer, Split::kValid),
                            _ << "for the validation part of data.split = " << options.split
                              << "; training.eval_iters = 0 turns evaluation off");
  return absl::OkStatus();
}

absl::StatusOr<GptData> OpenStories(const DataOptions& options, const Tokenizer& tokenizer) {
  MEGATRON_ASSIGN_OR_RETURN(
      InMemorySequences stories,
      MakeStorySequences(options.stories_bytes, options.stories_seed, tokenizer));
  GptData data;
  data.description = absl::StrFormat("%d stories written by a grammar, %d tokens",
                                     stories.num_sequences(), stories.num_tokens());
  data.fingerprint = absl::StrCat("stories ", options.stories_bytes, " ", options.stories_seed);
  MEGATRON_RETURN_IF_ERROR(
      SplitAll(std::make_shared<InMemorySequences>(std::move(stories)), options, tokenizer, &data));
  return data;
}

absl::StatusOr<GptData> OpenMock(const DataOptions& options, const Tokenizer& tokenizer) {
  GptData data;
  data.description = "mock data";
  data.fingerprint = "mock";
  MEGATRON_ASSIGN_OR_RETURN(
      data.train,
      CreateMockGptDataset(Split::kTrain, DatasetOptions(options, tokenizer, Split::kTrain)));
  if (options.run.eval_interval > 0) {
    MEGATRON_ASSIGN_OR_RETURN(
        data.valid,
        CreateMockGptDataset(Split::kValid, DatasetOptions(options, tokenizer, Split::kValid)));
  }
  return data;
}

struct OpenedFile {
  std::string prefix;
  std::shared_ptr<const IndexedDataset> sequences;
};

// The files' part of one split: one of them as it is, several as a blend.
absl::StatusOr<std::unique_ptr<GptSampleSource>> BlendOf(const std::vector<OpenedFile>& files,
                                                         const BlendSpec& spec,
                                                         const DataOptions& options,
                                                         const Tokenizer& tokenizer, Split split) {
  const int64_t needed = SamplesNeeded(split, options.run);
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(options.split));
  std::vector<int64_t> wanted = SamplesPerDataset(spec.weights, needed);
  std::vector<std::unique_ptr<GptSampleSource>> parts;
  std::vector<double> weights = spec.weights;
  int64_t available = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    GptDatasetOptions dataset = DatasetOptions(options, tokenizer, split);
    dataset.range = RangeOf(split, shares, files[i].sequences->num_sequences());
    if (spec.weights.empty()) {
      dataset.num_samples.reset();  // one epoch: without weights a blend is all there is
    } else {
      dataset.num_samples = wanted[i];
    }
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<GptDataset> part,
                              GptDataset::Create(files[i].sequences, dataset),
                              _ << files[i].prefix);
    available += part->size();
    parts.push_back(std::move(part));
  }
  if (spec.weights.empty()) {
    if (needed > available) {
      return absl::InvalidArgumentError(
          absl::StrFormat("data.data_path: %d files without weights hold %d samples and the run "
                          "needs %d; with weights files are read more than once",
                          files.size(), available, needed));
    }
    for (const auto& part : parts)
      weights.push_back(static_cast<double>(part->size()) / static_cast<double>(available));
  }
  return BlendedDataset::Create(std::move(parts), weights, needed);
}

absl::StatusOr<GptData> OpenFiles(const DataOptions& options, const Tokenizer& tokenizer) {
  MEGATRON_ASSIGN_OR_RETURN(const BlendSpec spec, ParseBlend(options.data_path));
  std::vector<OpenedFile> files;
  GptData data;
  int64_t documents = 0, tokens = 0;
  for (size_t i = 0; i < spec.prefixes.size(); ++i) {
    MEGATRON_ASSIGN_OR_RETURN(IndexedDataset dataset, IndexedDataset::Open(spec.prefixes[i]));
    documents += dataset.num_documents();
    tokens += dataset.num_tokens();
    MEGATRON_ASSIGN_OR_RETURN(const uint32_t fingerprint, dataset.ContentFingerprint());
    absl::StrAppendFormat(&data.fingerprint, "%s%d tokens, crc32c %08x", i == 0 ? "" : "; ",
                          dataset.num_tokens(), fingerprint);
    if (!spec.weights.empty()) {
      absl::StrAppendFormat(&data.fingerprint, ", weight %.17g", spec.weights[i]);
    }
    const std::string prefix = dataset.prefix();
    files.push_back({prefix, std::make_shared<IndexedDataset>(std::move(dataset))});
  }
  data.description =
      absl::StrFormat("%s, %d documents, %d tokens",
                      files.size() == 1 ? files[0].prefix : absl::StrCat(files.size(), " files"),
                      documents, tokens);
  if (files.size() == 1 && spec.weights.empty()) {
    MEGATRON_RETURN_IF_ERROR(SplitAll(files[0].sequences, options, tokenizer, &data),
                             _ << files[0].prefix);
    return data;
  }
  MEGATRON_ASSIGN_OR_RETURN(data.train, BlendOf(files, spec, options, tokenizer, Split::kTrain));
  if (options.run.eval_interval > 0) {
    MEGATRON_ASSIGN_OR_RETURN(data.valid, BlendOf(files, spec, options, tokenizer, Split::kValid));
  }
  return data;
}

}  // namespace

int64_t EstimateDataBytes(const DataOptions& options) {
  // A sample's place in the stream (two int32) and in the shuffled order (one).
  constexpr int64_t kBytesPerSample = 12, kBytesPerToken = 4;
  int64_t samples = SamplesNeeded(Split::kTrain, options.run);
  if (options.run.eval_interval > 0) samples += SamplesNeeded(Split::kValid, options.run);
  const int64_t bytes = samples * kBytesPerSample;
  if (!options.stories) return bytes;
  // An epoch's samples are all indexed, also those that the run does not reach.
  return options.stories_bytes * kBytesPerToken +
         std::max(samples, options.stories_bytes / options.seq_length) * kBytesPerSample;
}

absl::StatusOr<GptData> OpenGptData(const DataOptions& options, const Tokenizer& tokenizer) {
  if (options.stories) return OpenStories(options, tokenizer);
  if (options.mock) return OpenMock(options, tokenizer);
  return OpenFiles(options, tokenizer);
}

}  // namespace megatron
