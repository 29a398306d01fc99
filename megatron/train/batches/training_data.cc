#include "megatron/train/batches/training_data.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/all_samples.h"
#include "megatron/data/blend.h"
#include "megatron/data/chat/chat_template.h"
#include "megatron/data/dealt_samples.h"
#include "megatron/data/gpt/gpt_dataset.h"
#include "megatron/data/gpt/story_sequences.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/sample_order.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/train/batches/data_files.h"
#include "megatron/train/batches/per_split_paths.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

constexpr int64_t kMaxListBytes = 1 << 24;
// What ends the names of perplexities among metrics.
constexpr char kPerplexitySuffix[] = "ppl";

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

absl::StatusOr<TrainingData> OpenStorySentences(const DataOptions& options, const DataText& text) {
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

absl::StatusOr<TrainingData> OpenStories(const DataOptions& options, const DataText& text) {
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

absl::StatusOr<TrainingData> OpenMock(const DataOptions& options, const DataText& text) {
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

// Sets what only several training files can differ in.
absl::Status SetSourceOptions(const DataOptions& options, DataFiles* train) {
  if (options.sampling_alpha.has_value() && train->Prefixes().size() == 1) {
    return absl::InvalidArgumentError(
        "data.sampling_alpha: has no effect on one training file; leave it out");
  }
  return train->SetLossWeights(options.loss_weights);
}

std::string DescribeTraining(const DataOptions& options, const DataFiles& train) {
  const std::string description = train.Description(options);
  if (train.Prefixes().size() <= kMostSources) return description;
  return absl::StrCat(description, ", without losses by file, which up to ", kMostSources,
                      " files have");
}

absl::StatusOr<TrainingData> OpenFiles(const DataOptions& options, const DataText& text) {
  MEGATRON_ASSIGN_OR_RETURN(DataFiles files, DataFiles::Open(options, text, options.data_path),
                            _.SetPrepend()
                                << (options.data_args_path.empty() ? "data.data_path: "
                                                                   : "data.data_args_path: "));
  MEGATRON_RETURN_IF_ERROR(SetSourceOptions(options, &files));
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(options.split));
  TrainingData data;
  data.description = DescribeTraining(options, files);
  data.fingerprint = files.Fingerprint();
  MEGATRON_RETURN_IF_ERROR(OpenParts(
      options, &data, [&](Split split) { return files.PartOf(options, text, split, shares); }));
  if (options.run.eval_interval == 0 || !files.AllHave(options, Split::kTest, shares)) return data;
  MEGATRON_ASSIGN_OR_RETURN(data.test, files.PartOf(options, text, Split::kTest, shares),
                            _ << "for the test part of data.split = " << options.split
                              << "; with a third share of 0 there is none");
  return data;
}

// What an error about the files of a part that has its own begins with: the field that names them.
std::string PartPrefix(const DataOptions& options, absl::string_view part) {
  return options.per_split_data_args_path.empty()
             ? absl::StrCat("data.", part, "_data_path: ")
             : absl::StrCat("data.per_split_data_args_path: ", part, ": ");
}

// Opens the files of a part that has its own. Megatron blends no file that is alone there, whether
// it has a weight or not.
absl::StatusOr<DataFiles> OpenPart(const DataOptions& options, const DataText& text,
                                   absl::string_view part, const std::vector<std::string>& path) {
  MEGATRON_ASSIGN_OR_RETURN(const BlendSpec spec, ParseBlend(path),
                            _.SetPrepend() << PartPrefix(options, part));
  MEGATRON_ASSIGN_OR_RETURN(
      DataFiles files,
      DataFiles::Open(options, text, spec.prefixes.size() == 1 ? spec.prefixes : path),
      _.SetPrepend() << PartPrefix(options, part));
  return files;
}

// Returns the fingerprint of files that are evaluated. The weight of one that is alone changes
// nothing, but is in the fingerprints that checkpoints have.
std::string EvaluatedFingerprint(const DataFiles& files, const std::vector<std::string>& path) {
  const bool has_lone_weight = files.Prefixes().size() == 1 && path.size() == 2;
  return absl::StrCat(files.Fingerprint(), has_lone_weight ? ", weight 1" : "");
}

// Returns the name as metrics can have it, which are lines of UTF-8.
std::string MetricName(absl::string_view name) {
  std::string text = ReplaceInvalidUtf8(name);
  absl::c_replace_if(text, absl::ascii_iscntrl, '_');
  return text;
}

// Returns the names of the files without their directories, or the whole prefixes of those that
// would be called alike.
std::vector<std::string> FileNames(const std::vector<std::string>& prefixes) {
  const auto name_of = [](const std::string& prefix) {
    return MetricName(prefix.substr(prefix.rfind('/') + 1));  // npos + 1 is 0
  };
  std::map<std::string, std::set<std::string>> called;
  for (const std::string& prefix : prefixes) called[name_of(prefix)].insert(prefix);
  std::vector<std::string> names;
  for (const std::string& prefix : prefixes) {
    const std::string name = name_of(prefix);
    names.push_back(called[name].size() == 1 ? name : MetricName(prefix));
  }
  return names;
}

// Returns the names of the sets in these files: those that the options give or, where they give
// none, FileNames. An error begins with a field.
absl::StatusOr<std::vector<std::string>> SetNames(const DataOptions& options,
                                                  const std::vector<std::string>& prefixes) {
  const std::vector<std::string>& given = options.validation_set_names;
  if (!given.empty()) {
    if (given.size() == prefixes.size()) return given;
    return absl::InvalidArgumentError(absl::StrCat(
        "train.validation_set_names: has ",
        FormatQuantity(static_cast<int64_t>(given.size()), "name"), " for ",
        FormatQuantity(static_cast<int64_t>(prefixes.size()), "file"), ": give each file one"));
  }
  std::vector<std::string> names = FileNames(prefixes);
  for (const std::string& name : names) {
    if (std::count(names.begin(), names.end(), name) > 1)
      return absl::InvalidArgumentError(
          absl::StrCat(PartPrefix(options, "valid"), "names ", name, " twice"));
    if (name == kPerplexitySuffix) {
      return absl::InvalidArgumentError(absl::StrCat(
          PartPrefix(options, "valid"), "a validation set can't be called ", kPerplexitySuffix,
          ", since metrics have \"lm loss validation ", kPerplexitySuffix, "\": rename the file"));
    }
  }
  return names;
}

// Opens the validation data, which have files of their own: as one set, or each file as one. What
// forbids the latter is in the configuration, and such an error carries kExitConfig.
absl::StatusOr<std::vector<ValidationSet>> ValidationSets(const DataOptions& options,
                                                          const DataText& text,
                                                          const DataFiles& files) {
  const SplitShares all = {0, 1, 0};
  std::vector<ValidationSet> sets;
  if (!options.multiple_validation_sets) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> samples,
                              files.PartOf(options, text, Split::kValid, all),
                              _ << "for data.valid_data_path");
    sets.push_back({"", std::move(samples)});
    return sets;
  }
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<DataFiles> apart,
                            WithExitCode(files.Apart(), kExitConfig),
                            _.SetPrepend() << PartPrefix(options, "valid"));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            WithExitCode(SetNames(options, files.Prefixes()), kExitConfig),
                            _ << "with train.multiple_validation_sets");
  for (size_t i = 0; i < apart.size(); ++i) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> samples,
                              apart[i].PartOf(options, text, Split::kValid, all),
                              _ << "for data.valid_data_path");
    sets.push_back({names[i], std::move(samples)});
  }
  return sets;
}

// Each part of the run has files of its own and takes all of their documents.
absl::StatusOr<TrainingData> OpenFilesPerSplit(const DataOptions& options, const DataText& text) {
  MEGATRON_ASSIGN_OR_RETURN(DataFiles train,
                            OpenPart(options, text, "train", options.train_data_path));
  MEGATRON_RETURN_IF_ERROR(SetSourceOptions(options, &train));
  TrainingData data;
  data.description = DescribeTraining(options, train);
  data.fingerprint = absl::StrCat("train ", train.Fingerprint());
  MEGATRON_ASSIGN_OR_RETURN(data.train, train.PartOf(options, text, Split::kTrain, {1, 0, 0}),
                            _ << "for data.train_data_path");
  if (options.run.eval_interval == 0) return data;
  MEGATRON_ASSIGN_OR_RETURN(const DataFiles valid,
                            OpenPart(options, text, "valid", options.valid_data_path));
  absl::StrAppend(&data.description, "; validation on ", valid.Description(options));
  absl::StrAppend(&data.fingerprint, "; valid ",
                  EvaluatedFingerprint(valid, options.valid_data_path));
  MEGATRON_ASSIGN_OR_RETURN(data.valid, ValidationSets(options, text, valid));
  if (options.test_data_path.empty()) return data;
  MEGATRON_ASSIGN_OR_RETURN(const DataFiles test,
                            OpenPart(options, text, "test", options.test_data_path));
  absl::StrAppend(&data.description, "; test on ", test.Description(options));
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

namespace {

// Returns the size of a file, or of the files in a directory.
int64_t BytesOn(const std::string& path) {
  FileSystem& fs = PosixFileSystem();
  const absl::StatusOr<std::vector<std::string>> names = fs.List(path);
  int64_t bytes = 0;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>{std::string()}) {
    const absl::StatusOr<FileInfo> info =
        fs.Stat(names.ok() ? absl::StrCat(path, "/", name) : path);
    if (info.ok()) bytes += info->size;
  }
  return bytes;
}

// A token has a byte of its file at least, unless that is compressed.
int64_t EstimateTextBytes(const DataOptions& options) {
  int64_t bytes = 0;
  for (const std::vector<std::string>* paths :
       {&options.data_path, &options.train_data_path, &options.valid_data_path,
        &options.test_data_path}) {
    for (const std::string& path : *paths)
      bytes += BytesOn(path) * static_cast<int64_t>(sizeof(int32_t));
  }
  return bytes;
}

}  // namespace

std::vector<std::string> SourceNames(const DataOptions& options) {
  if (options.stories || options.mock) return {};
  const absl::StatusOr<BlendSpec> spec =
      ParseBlend(options.train_data_path.empty() ? options.data_path : options.train_data_path);
  if (!spec.ok() || spec->prefixes.size() > kMostSources) return {};
  const bool is_text = options.conversations.has_value() || options.task.has_value();
  std::vector<std::string> prefixes;
  for (const std::string& path : spec->prefixes)
    prefixes.emplace_back(is_text ? path : IndexedDataset::PrefixOf(path));
  std::vector<std::string> names = FileNames(prefixes);
  const bool differ = absl::c_any_of(names, [&](const std::string& n) { return n != names[0]; });
  return differ ? names : std::vector<std::string>();
}

int64_t EstimateDataBytes(const DataOptions& options) {
  if (options.conversations.has_value() || options.task.has_value())
    return EstimateTextBytes(options);
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
  DataText text = {tokenizer, nullptr, std::nullopt};
  if (options.conversations.has_value()) {
    MEGATRON_ASSIGN_OR_RETURN(text.chat,
                              ChatTemplate::Make(options.conversations->chat_template, tokenizer),
                              _ << "for data.sft_tokenizer_prompt_format");
  }
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
