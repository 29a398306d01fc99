#include "megatron/train/gpt_data.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
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

absl::StatusOr<GptData> OpenFile(const std::string& prefix, const DataOptions& options,
                                 const Tokenizer& tokenizer) {
  MEGATRON_ASSIGN_OR_RETURN(IndexedDataset dataset, IndexedDataset::Open(prefix));
  MEGATRON_ASSIGN_OR_RETURN(const std::string index,
                            ReadFileToString(PosixFileSystem(), prefix + ".idx"));
  GptData data;
  data.description = absl::StrFormat("%s, %d documents, %d tokens", prefix, dataset.num_documents(),
                                     dataset.num_tokens());
  data.fingerprint =
      absl::StrFormat("%d tokens, index crc32c %08x", dataset.num_tokens(), Crc32c(index));
  MEGATRON_RETURN_IF_ERROR(
      SplitAll(std::make_shared<IndexedDataset>(std::move(dataset)), options, tokenizer, &data),
      _ << prefix);
  return data;
}

}  // namespace

absl::StatusOr<GptData> OpenGptData(const DataOptions& options, const Tokenizer& tokenizer) {
  if (options.stories) return OpenStories(options, tokenizer);
  if (options.mock) return OpenMock(options, tokenizer);
  return OpenFile(options.data_path.front(), options, tokenizer);
}

}  // namespace megatron
