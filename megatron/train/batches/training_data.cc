#include "megatron/train/batches/training_data.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/all_samples.h"
#include "megatron/data/blend.h"
#include "megatron/data/dealt_samples.h"
#include "megatron/data/gpt/gpt_dataset.h"
#include "megatron/data/gpt/story_sequences.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/sample_order.h"
#include "megatron/train/batches/per_split_paths.h"

namespace megatron {
namespace {

constexpr int64_t kMaxListBytes = 1 << 24;
// What ends the names of perplexities among metrics.
constexpr char kPerplexitySuffix[] = "ppl";

// The tokenizer, and what else is needed to make samples from tokens.
struct Text {
  const Tokenizer& tokenizer;
  std::shared_ptr<const FillInTheMiddle> fill_in_the_middle;
};

// Whether an evaluation reads all of the part, and not as many samples as the run needs.
bool ReadsAll(const DataOptions& options, Split split) {
  return options.full_validation && split == Split::kValid;
}

GptDatasetOptions DatasetOptions(const DataOptions& options, const Text& text, Split split) {
  GptDatasetOptions dataset;
  dataset.seq_length = options.seq_length;
  dataset.seed = options.seed;
  if (!ReadsAll(options, split)) dataset.num_samples = SamplesNeeded(split, options.run);
  dataset.vocab_size = text.tokenizer.vocab_size();
  dataset.eod = text.tokenizer.eod();
  dataset.fill_in_the_middle = text.fill_in_the_middle;
  dataset.reset_position_ids = options.reset_position_ids;
  dataset.reset_attention_mask = options.reset_attention_mask;
  dataset.eod_mask_loss = options.eod_mask_loss;
  return dataset;
}

SentenceDatasetOptions SentenceOptions(const DataOptions& options, Split split) {
  SentenceDatasetOptions dataset;
  dataset.seq_length = options.seq_length;
  dataset.seed = options.seed;
  dataset.split = split;
  dataset.num_samples = SamplesNeeded(split, options.run);
  return dataset;
}

// Opens the training part and, where the run evaluates, the validation part. `open` opens one.
absl::Status OpenParts(
    const DataOptions& options, TrainingData* data,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<SampleSource>>(Split split)> open) {
  MEGATRON_ASSIGN_OR_RETURN(data->train, open(Split::kTrain),
                            _ << "for the training part of data.split = " << options.split);
  if (options.run.eval_interval == 0) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> valid, open(Split::kValid),
                            _ << "for the validation part of data.split = " << options.split
                              << "; train.eval_iters = 0 turns evaluation off");
  data->valid.push_back({"", std::move(valid)});
  return absl::OkStatus();
}

absl::StatusOr<TrainingData> OpenStorySentences(const DataOptions& options, const Text& text) {
  MEGATRON_ASSIGN_OR_RETURN(
      StorySentences stories,
      MakeStorySentences(options.stories_bytes, options.stories_seed, text.tokenizer));
  TrainingData data;
  data.description = absl::StrFormat("%d stories written by a grammar, %d sentences, %d tokens",
                                     stories.num_documents(), stories.sentences.num_sequences(),
                                     stories.sentences.num_tokens());
  data.fingerprint = absl::StrCat("stories ", options.stories_bytes, " ", options.stories_seed);
  const auto all = std::make_shared<const StorySentences>(std::move(stories));
  const std::shared_ptr<const TokenSequences> sentences(all, &all->sentences);
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(options.split));
  MEGATRON_RETURN_IF_ERROR(OpenParts(options, &data, [&](Split split) {
    SentenceDatasetOptions dataset = SentenceOptions(options, split);
    dataset.documents = SplitRange(split, shares, all->num_documents());
    return OpenSentences(
        *options.sentences, dataset, sentences,
        [&](int64_t i) { return all->DocumentSequences(i); }, text.tokenizer);
  }));
  return data;
}

absl::StatusOr<TrainingData> OpenStories(const DataOptions& options, const Text& text) {
  MEGATRON_ASSIGN_OR_RETURN(
      InMemorySequences stories,
      MakeStorySequences(options.stories_bytes, options.stories_seed, text.tokenizer));
  TrainingData data;
  data.description = absl::StrFormat("%d stories written by a grammar, %d tokens",
                                     stories.num_sequences(), stories.num_tokens());
  data.fingerprint = absl::StrCat("stories ", options.stories_bytes, " ", options.stories_seed);
  const auto sequences = std::make_shared<const InMemorySequences>(std::move(stories));
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(options.split));
  MEGATRON_RETURN_IF_ERROR(
      OpenParts(options, &data, [&](Split split) -> absl::StatusOr<std::unique_ptr<SampleSource>> {
        GptDatasetOptions dataset = DatasetOptions(options, text, split);
        dataset.range = SplitRange(split, shares, sequences->num_sequences());
        MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> samples,
                                  GptDataset::Create(sequences, dataset));
        if (!ReadsAll(options, split)) return samples;
        std::vector<std::unique_ptr<SampleSource>> sources;
        sources.push_back(std::move(samples));
        return std::make_unique<AllSamples>(std::move(sources), options.run.global_batch_size);
      }));
  return data;
}

absl::StatusOr<TrainingData> OpenMock(const DataOptions& options, const Text& text) {
  TrainingData data;
  data.description = "mock data";
  data.fingerprint = "mock";
  MEGATRON_RETURN_IF_ERROR(
      OpenParts(options, &data, [&](Split split) -> absl::StatusOr<std::unique_ptr<SampleSource>> {
        if (!options.sentences.has_value())
          return CreateMockGptDataset(split, DatasetOptions(options, text, split));
        return OpenMockSentences(*options.sentences, SentenceOptions(options, split),
                                 text.tokenizer);
      }));
  return data;
}

struct OpenedFile {
  std::string fingerprint;
  std::shared_ptr<const IndexedDataset> sequences;
};

// Datasets in files, one or several with or without weights.
class Files {
 public:
  static absl::StatusOr<Files> Open(const std::vector<std::string>& path, bool mmap_bin_files) {
    Files files;
    MEGATRON_ASSIGN_OR_RETURN(files.spec_, ParseBlend(path));
    for (const std::string& prefix : files.spec_.prefixes) {
      MEGATRON_ASSIGN_OR_RETURN(IndexedDataset dataset,
                                IndexedDataset::Open(prefix, {mmap_bin_files}));
      MEGATRON_ASSIGN_OR_RETURN(std::string fingerprint, dataset.DescribeContents());
      files.files_.push_back(
          {std::move(fingerprint), std::make_shared<const IndexedDataset>(std::move(dataset))});
    }
    return files;
  }

  std::string Description() const {
    int64_t documents = 0, tokens = 0;
    for (const OpenedFile& file : files_) {
      documents += file.sequences->num_documents();
      tokens += file.sequences->num_tokens();
    }
    return absl::StrFormat(
        "%s, %d documents, %d tokens",
        files_.size() == 1 ? files_[0].sequences->prefix() : absl::StrCat(files_.size(), " files"),
        documents, tokens);
  }

  std::string Fingerprint() const {
    std::string text;
    for (size_t i = 0; i < files_.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : "; ", files_[i].fingerprint);
      if (!spec_.weights.empty()) absl::StrAppendFormat(&text, ", weight %.17g", spec_.weights[i]);
    }
    return text;
  }

  // Returns the files without weights, one by one.
  absl::StatusOr<std::vector<Files>> Apart() const {
    if (!spec_.weights.empty())
      return absl::InvalidArgumentError("has weights: sets that are evaluated apart have none");
    std::vector<Files> apart(files_.size());
    for (size_t i = 0; i < files_.size(); ++i) apart[i].files_ = {files_[i]};
    return apart;
  }
  std::vector<std::string> Prefixes() const {
    std::vector<std::string> prefixes;
    for (const OpenedFile& file : files_) prefixes.push_back(file.sequences->prefix());
    return prefixes;
  }

  // Returns whether every file has documents in the split.
  bool AllHave(const DataOptions& options, Split split, const SplitShares& shares) const {
    return std::all_of(files_.begin(), files_.end(), [&](const OpenedFile& file) {
      const int64_t count = options.sentences.has_value() ? file.sequences->num_documents()
                                                          : file.sequences->num_sequences();
      return SplitRange(split, shares, count).size() > 0;
    });
  }

  // Returns one dataset as it is, several as a blend.
  absl::StatusOr<std::unique_ptr<SampleSource>> PartOf(const DataOptions& options, const Text& text,
                                                       Split split,
                                                       const SplitShares& shares) const;

 private:
  absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> Datasets(
      const GptDatasetOptions& options, const SplitShares& shares,
      const std::vector<std::optional<int64_t>>& num_samples) const;
  absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> SentenceDatasets(
      const SentenceDataOptions& options, const SentenceDatasetOptions& dataset,
      const Tokenizer& tokenizer, const SplitShares& shares,
      const std::vector<std::optional<int64_t>>& num_samples) const;

  BlendSpec spec_;
  std::vector<OpenedFile> files_;
};

absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> Files::Datasets(
    const GptDatasetOptions& options, const SplitShares& shares,
    const std::vector<std::optional<int64_t>>& num_samples) const {
  std::vector<std::unique_ptr<SampleSource>> datasets;
  for (size_t i = 0; i < files_.size(); ++i) {
    const OpenedFile& file = files_[i];
    GptDatasetOptions dataset = options;
    dataset.range = SplitRange(options.identity.split, shares, file.sequences->num_sequences());
    dataset.num_samples = num_samples[i];
    dataset.identity.fingerprint = file.fingerprint;
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<GptDataset> created,
                              GptDataset::Create(file.sequences, dataset),
                              _ << file.sequences->prefix());
    datasets.push_back(std::move(created));
  }
  return datasets;
}

absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> Files::SentenceDatasets(
    const SentenceDataOptions& options, const SentenceDatasetOptions& dataset,
    const Tokenizer& tokenizer, const SplitShares& shares,
    const std::vector<std::optional<int64_t>>& num_samples) const {
  std::vector<std::unique_ptr<SampleSource>> datasets;
  for (size_t i = 0; i < files_.size(); ++i) {
    const IndexedDataset& file = *files_[i].sequences;
    SentenceDatasetOptions own = dataset;
    own.documents = SplitRange(dataset.split, shares, file.num_documents());
    own.num_samples = num_samples[i];
    own.cache.fingerprint = files_[i].fingerprint;
    const auto document = [&](int64_t d) { return file.DocumentSequences(d); };
    MEGATRON_ASSIGN_OR_RETURN(
        std::unique_ptr<SampleSource> created,
        OpenSentences(options, own, files_[i].sequences, document, tokenizer),
        _ << file.prefix() << ", which preprocess_data --split_sentences makes");
    datasets.push_back(std::move(created));
  }
  return datasets;
}

absl::StatusOr<std::unique_ptr<SampleSource>> Files::PartOf(const DataOptions& options,
                                                            const Text& text, Split split,
                                                            const SplitShares& shares) const {
  const IndexCache cache(PosixFileSystem(), options.cache_path);
  GptDatasetOptions dataset = DatasetOptions(options, text, split);
  dataset.identity.split = split;
  if (!options.cache_path.empty()) dataset.cache = &cache;
  SentenceDatasetOptions sentences = SentenceOptions(options, split);
  sentences.cache.cache = dataset.cache;
  sentences.cache.split = split;
  const int64_t needed = SamplesNeeded(split, options.run);
  std::vector<std::optional<int64_t>> num_samples;
  const bool alone = files_.size() == 1 && spec_.weights.empty();
  if (ReadsAll(options, split)) {
    if (!spec_.weights.empty()) {
      return absl::InvalidArgumentError(
          "the files have weights, and train.full_validation reads each sample once: leave out "
          "the weights");
    }
    num_samples.resize(files_.size());  // one epoch
  } else if (alone) {
    num_samples = {needed};
  } else if (spec_.weights.empty()) {
    num_samples.resize(files_.size());  // one epoch: a blend without weights has all of the data
  } else {
    for (const int64_t count : SamplesPerDataset(spec_.weights, needed))
      num_samples.push_back(count);
  }
  MEGATRON_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<SampleSource>> datasets,
      options.sentences.has_value()
          ? SentenceDatasets(*options.sentences, sentences, text.tokenizer, shares, num_samples)
          : Datasets(dataset, shares, num_samples));
  if (ReadsAll(options, split))
    return std::make_unique<AllSamples>(std::move(datasets), options.run.global_batch_size);
  if (alone) return std::move(datasets[0]);
  std::vector<double> weights = spec_.weights;
  if (weights.empty()) {
    int64_t available = 0;
    for (const auto& source : datasets) available += source->size();
    if (needed > available) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%d files without weights hold %d samples and the run needs %d; with "
                          "weights files are read more than once",
                          files_.size(), available, needed));
    }
    for (const auto& source : datasets)
      weights.push_back(static_cast<double>(source->size()) / static_cast<double>(available));
  }
  return BlendedDataset::Create(std::move(datasets), weights, needed, {dataset.cache, split});
}

absl::StatusOr<TrainingData> OpenFiles(const DataOptions& options, const Text& text) {
  MEGATRON_ASSIGN_OR_RETURN(
      const Files files, Files::Open(options.data_path, options.mmap_bin_files),
      _.SetPrepend() << (options.data_args_path.empty() ? "data.data_path: "
                                                        : "data.data_args_path: "));
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(options.split));
  TrainingData data;
  data.description = files.Description();
  data.fingerprint = files.Fingerprint();
  MEGATRON_RETURN_IF_ERROR(OpenParts(
      options, &data, [&](Split split) { return files.PartOf(options, text, split, shares); }));
  if (options.run.eval_interval == 0 || !files.AllHave(options, Split::kTest, shares)) return data;
  MEGATRON_ASSIGN_OR_RETURN(data.test, files.PartOf(options, text, Split::kTest, shares),
                            _ << "for the test part of data.split = " << options.split
                              << "; with a third share of 0 there is none");
  return data;
}

// Opens the files of a part that has its own. An error begins with the field that names them.
absl::StatusOr<Files> OpenPart(const DataOptions& options, absl::string_view part,
                               const std::vector<std::string>& path) {
  MEGATRON_ASSIGN_OR_RETURN(
      Files files, Files::Open(path, options.mmap_bin_files),
      _.SetPrepend() << (options.per_split_data_args_path.empty()
                             ? absl::StrCat("data.", part, "_data_path: ")
                             : absl::StrCat("data.per_split_data_args_path: ", part, ": ")));
  return files;
}

// Returns the names of the sets in these files: those of the files without their directories, or
// the whole prefixes of those that would be called alike.
absl::StatusOr<std::vector<std::string>> SetNames(const std::vector<std::string>& prefixes) {
  std::map<std::string, int> uses;
  const auto name_of = [](const std::string& prefix) {
    return prefix.substr(prefix.rfind('/') + 1);  // npos + 1 is 0
  };
  for (const std::string& prefix : prefixes) ++uses[name_of(prefix)];
  std::vector<std::string> names;
  for (const std::string& prefix : prefixes) {
    const std::string name = name_of(prefix);
    names.push_back(uses[name] == 1 ? name : prefix);
    if (std::count(names.begin(), names.end(), names.back()) > 1)
      return absl::InvalidArgumentError(absl::StrCat("names ", prefix, " twice"));
    if (names.back() == kPerplexitySuffix) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a validation set can't be called ", kPerplexitySuffix,
          ", since metrics have \"lm loss validation ", kPerplexitySuffix, "\": rename the file"));
    }
  }
  return names;
}

// Opens the validation data, which have files of their own: as one set, or each file as one.
absl::StatusOr<std::vector<ValidationSet>> ValidationSets(const DataOptions& options,
                                                          const Text& text, const Files& files) {
  const SplitShares all = {0, 1, 0};
  std::vector<ValidationSet> sets;
  if (!options.multiple_validation_sets) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> samples,
                              files.PartOf(options, text, Split::kValid, all));
    sets.push_back({"", std::move(samples)});
    return sets;
  }
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Files> apart, files.Apart(),
                            _ << "with train.multiple_validation_sets");
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, SetNames(files.Prefixes()),
                            _ << "with train.multiple_validation_sets");
  for (size_t i = 0; i < apart.size(); ++i) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> samples,
                              apart[i].PartOf(options, text, Split::kValid, all));
    sets.push_back({names[i], std::move(samples)});
  }
  return sets;
}

// Each part of the run has files of its own and takes all of their documents.
absl::StatusOr<TrainingData> OpenFilesPerSplit(const DataOptions& options, const Text& text) {
  MEGATRON_ASSIGN_OR_RETURN(const Files train, OpenPart(options, "train", options.train_data_path));
  TrainingData data;
  data.description = train.Description();
  data.fingerprint = absl::StrCat("train ", train.Fingerprint());
  MEGATRON_ASSIGN_OR_RETURN(data.train, train.PartOf(options, text, Split::kTrain, {1, 0, 0}),
                            _ << "for data.train_data_path");
  if (options.run.eval_interval == 0) return data;
  MEGATRON_ASSIGN_OR_RETURN(const Files valid, OpenPart(options, "valid", options.valid_data_path));
  absl::StrAppend(&data.description, "; validation on ", valid.Description());
  absl::StrAppend(&data.fingerprint, "; valid ", valid.Fingerprint());
  MEGATRON_ASSIGN_OR_RETURN(data.valid, ValidationSets(options, text, valid),
                            _ << "for data.valid_data_path");
  if (options.test_data_path.empty()) return data;
  MEGATRON_ASSIGN_OR_RETURN(const Files test, OpenPart(options, "test", options.test_data_path));
  absl::StrAppend(&data.description, "; test on ", test.Description());
  MEGATRON_ASSIGN_OR_RETURN(data.test, test.PartOf(options, text, Split::kTest, {0, 0, 1}),
                            _ << "for data.test_data_path");
  return data;
}

absl::StatusOr<std::unique_ptr<SampleSource>> Cyclic(const DataOptions& options,
                                                     std::unique_ptr<SampleSource> source) {
  const int64_t size = source->size();
  const int64_t micro_step = options.micro_batch_size * options.data_parallel_size;
  std::unique_ptr<SampleOrder> order;
  if (!options.data_sharding) {
    order = std::make_unique<GlobalOrder>(size, options.seed);
  } else if (micro_step <= size && size < kMaxBucketSamples) {
    order =
        std::make_unique<BucketOrder>(size, options.micro_batch_size, options.data_parallel_size);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("data.data_sharding: the data has ", size, " samples; it shares out from ",
                     micro_step, ", a micro-batch for every rank, up to ", kMaxBucketSamples));
  }
  return std::make_unique<OrderedSamples>(std::move(source), std::move(order));
}

}  // namespace

absl::Status ReadDataArgs(FileSystem& fs, DataOptions* options) {
  const std::string& path = options->data_args_path;
  if (path.empty()) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMaxListBytes),
                            _ << "for data.data_args_path");
  options->data_path = absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  if (!options->data_path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": names no data, for data.data_args_path"));
}

absl::Status ReadPerSplitDataArgs(FileSystem& fs, DataOptions* options) {
  const std::string& path = options->per_split_data_args_path;
  if (path.empty()) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMaxListBytes),
                            _ << "for data.per_split_data_args_path");
  MEGATRON_ASSIGN_OR_RETURN(PerSplitPaths paths, ParsePerSplitPaths(text),
                            _.SetPrepend() << path << ": ");
  options->train_data_path = std::move(paths.train);
  options->valid_data_path = std::move(paths.valid);
  options->test_data_path = std::move(paths.test);
  const bool evaluates = options->run.eval_interval > 0;
  if (!evaluates || !options->valid_data_path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": names nothing to validate on; train.eval_iters = 0 turns evaluation off"));
}

int64_t EstimateDataBytes(const DataOptions& options) {
  // The bytes of a sample: its place in the stream (two int32) and in the shuffled order (one), or
  // its sentences.
  const int64_t kBytesPerSample = options.sentences.has_value() ? 16 : 12, kBytesPerToken = 4;
  int64_t samples = SamplesNeeded(Split::kTrain, options.run);
  if (options.run.eval_interval > 0) samples += SamplesNeeded(Split::kValid, options.run);
  const bool tests = !options.data_path.empty() || !options.data_args_path.empty() ||
                     !options.test_data_path.empty();
  if (tests) samples += SamplesNeeded(Split::kTest, options.run);
  // A cached order is mapped, as files are.
  const int64_t bytes = options.cache_path.empty() ? samples * kBytesPerSample : 0;
  if (!options.stories) return bytes;
  // An epoch's samples are all indexed, also those that the run does not reach.
  return options.stories_bytes * kBytesPerToken +
         std::max(samples, options.stories_bytes / options.seq_length) * kBytesPerSample;
}

absl::StatusOr<TrainingData> OpenTrainingData(const DataOptions& options,
                                              const Tokenizer& tokenizer) {
  Text text = {tokenizer, nullptr};
  if (options.fill_in_the_middle.has_value()) {
    // The caller owns the tokenizer.
    const std::shared_ptr<const Tokenizer> alias(std::shared_ptr<void>(), &tokenizer);
    MEGATRON_ASSIGN_OR_RETURN(FillInTheMiddle created,
                              FillInTheMiddle::Create(alias, *options.fill_in_the_middle),
                              _ << "for data.fim_data");
    text.fill_in_the_middle = std::make_shared<const FillInTheMiddle>(std::move(created));
  }
  const auto open_stories = options.sentences.has_value() ? OpenStorySentences : OpenStories;
  MEGATRON_ASSIGN_OR_RETURN(TrainingData data, options.stories ? open_stories(options, text)
                                               : options.mock  ? OpenMock(options, text)
                                               : !options.train_data_path.empty()
                                                   ? OpenFilesPerSplit(options, text)
                                                   : OpenFiles(options, text));
  std::vector<std::unique_ptr<SampleSource>*> parts = {&data.train, &data.test};
  for (ValidationSet& set : data.valid) {
    if (!options.full_validation) parts.push_back(&set.samples);
  }
  for (std::unique_ptr<SampleSource>* part : parts) {
    if (*part == nullptr || !options.cyclic) continue;
    MEGATRON_ASSIGN_OR_RETURN(*part, Cyclic(options, std::move(*part)));
  }
  if (options.run.training_runs > 1) {
    data.train =
        std::make_unique<DealtSamples>(std::move(data.train), options.run.global_batch_size,
                                       options.training_run, options.run.training_runs);
  }
  return data;
}

}  // namespace megatron
