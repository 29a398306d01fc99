#include "megatron/train/batches/data_files.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/all_samples.h"
#include "megatron/data/chat/conversation_dataset.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/tasks/task_dataset.h"
#include "megatron/data/weighted_samples.h"

namespace megatron {

bool ReadsAll(const DataOptions& options, Split split) {
  return options.full_validation && split == Split::kValid;
}

GptDatasetOptions DatasetOptions(const DataOptions& options, const DataText& text, Split split) {
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

namespace {

absl::StatusOr<DataFile> OpenFile(const DataOptions& options, const DataText& text,
                                  const std::string& path) {
  DataFile file;
  if (text.chat.has_value()) {
    MEGATRON_ASSIGN_OR_RETURN(
        Conversations conversations,
        Conversations::Read(path, *text.chat,
                            {options.seq_length, options.conversations->drop_long}));
    file.path = path;
    file.fingerprint = conversations.Fingerprint();
    file.conversations = std::make_shared<const Conversations>(std::move(conversations));
    return file;
  }
  if (options.task.has_value()) {
    MEGATRON_ASSIGN_OR_RETURN(LabelledExamples examples,
                              LabelledExamples::Read(path, options.task->task, text.tokenizer));
    file.path = path;
    file.fingerprint = examples.Fingerprint();
    file.examples = std::make_shared<const LabelledExamples>(std::move(examples));
    return file;
  }
  MEGATRON_ASSIGN_OR_RETURN(IndexedDataset dataset,
                            IndexedDataset::Open(path, {options.mmap_bin_files}));
  file.path = dataset.prefix();
  MEGATRON_ASSIGN_OR_RETURN(file.fingerprint, dataset.DescribeContents());
  file.sequences = std::make_shared<const IndexedDataset>(std::move(dataset));
  return file;
}

}  // namespace

absl::StatusOr<DataFiles> DataFiles::Open(const DataOptions& options, const DataText& text,
                                          const std::vector<std::string>& path) {
  DataFiles files;
  MEGATRON_ASSIGN_OR_RETURN(files.spec_, ParseBlend(path));
  files.alpha_ = options.sampling_alpha;
  if (files.alpha_.has_value() && !files.spec_.weights.empty()) {
    return absl::InvalidArgumentError(
        "has weights, and data.sampling_alpha makes some: leave out one of the two");
  }
  for (const std::string& prefix : files.spec_.prefixes) {
    MEGATRON_ASSIGN_OR_RETURN(DataFile file, OpenFile(options, text, prefix));
    files.files_.push_back(std::move(file));
  }
  return files;
}

absl::Status DataFiles::SetLossWeights(const std::vector<double>& weights) {
  if (!weights.empty() && weights.size() != files_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.loss_weights has ", FormatQuantity(static_cast<int64_t>(weights.size()), "number"),
        " for ", FormatQuantity(static_cast<int64_t>(files_.size()), "training file")));
  }
  loss_weights_ = weights;
  return absl::OkStatus();
}

std::string DataFiles::Description(const DataOptions& options) const {
  const std::string name =
      files_.size() == 1 ? files_[0].path : absl::StrCat(files_.size(), " files");
  if (files_[0].sequences == nullptr) return absl::StrCat(name, ", ", Contents(options));
  int64_t documents = 0, tokens = 0;
  for (const DataFile& file : files_) {
    documents += file.sequences->num_documents();
    tokens += file.sequences->num_tokens();
  }
  return absl::StrFormat("%s, %d documents, %d tokens", name, documents, tokens);
}

std::string DataFiles::Fingerprint() const {
  std::string text;
  const std::vector<double> weights = OrderWeights(spec_.weights);
  for (size_t i = 0; i < files_.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", files_[i].fingerprint);
    if (!weights.empty()) absl::StrAppendFormat(&text, ", weight %.17g", weights[i]);
  }
  if (alpha_.has_value()) absl::StrAppendFormat(&text, "; alpha %.17g", *alpha_);
  for (const double weight : loss_weights_)
    absl::StrAppendFormat(&text, "; loss weight %.17g", weight);
  return text;
}

absl::StatusOr<std::vector<DataFiles>> DataFiles::Apart() const {
  if (!spec_.weights.empty())
    return absl::InvalidArgumentError(
        "has weights, and with train.multiple_validation_sets each file is evaluated apart: leave "
        "the weights out");
  std::vector<DataFiles> apart(files_.size());
  for (size_t i = 0; i < files_.size(); ++i) apart[i].files_ = {files_[i]};
  return apart;
}

std::vector<std::string> DataFiles::Prefixes() const {
  std::vector<std::string> prefixes;
  for (const DataFile& file : files_) prefixes.push_back(file.path);
  return prefixes;
}

bool DataFiles::AllHave(const DataOptions& options, Split split, const SplitShares& shares) const {
  return std::all_of(files_.begin(), files_.end(), [&](const DataFile& file) {
    return SplitRange(split, shares, file.NumPieces(options)).size() > 0;
  });
}

std::string DataFiles::Contents(const DataOptions& options) const {
  return absl::StrJoin(files_, "; ", [&](std::string* out, const DataFile& file) {
    absl::StrAppend(
        out, file.conversations != nullptr
                 ? file.conversations->Describe()
                 : file.examples->Describe(options.seq_length, options.task->decoder_seq_length));
  });
}

std::vector<double> DataFiles::Weights() const {
  if (!alpha_.has_value() || files_.size() == 1) return spec_.weights;
  std::vector<double> weights;
  for (const DataFile& file : files_)
    weights.push_back(std::pow(static_cast<double>(file.num_tokens()), *alpha_));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> DataFiles::ConversationDatasets(
    const DataOptions& options, const DataText& text, Split split, const SplitShares& shares,
    const std::vector<std::optional<int64_t>>& num_samples) const {
  const SpecialTokens& special = text.tokenizer.special();
  std::vector<std::unique_ptr<SampleSource>> datasets;
  for (size_t i = 0; i < files_.size(); ++i) {
    ConversationDatasetOptions dataset;
    dataset.range = SplitRange(split, shares, files_[i].conversations->size());
    if (dataset.range.size() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          files_[i].path, " has ", FormatQuantity(files_[i].conversations->size(), "conversation"),
          ", too few for a \"", SplitName(split),
          "\" part: give more conversations, or a larger share of them"));
    }
    dataset.seq_length = options.seq_length;
    dataset.seed = options.seed;
    dataset.num_samples = num_samples[i];
    dataset.fill_token = std::max({special.pad, special.eod, 0});
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> created,
                              ConversationDataset::Create(files_[i].conversations, dataset),
                              _ << files_[i].path);
    datasets.push_back(std::move(created));
  }
  return datasets;
}

absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> DataFiles::TaskDatasets(
    const DataOptions& options, const DataText& text, Split split, const SplitShares& shares,
    const std::vector<std::optional<int64_t>>& num_samples) const {
  std::vector<std::unique_ptr<SampleSource>> datasets;
  for (size_t i = 0; i < files_.size(); ++i) {
    TaskDatasetOptions dataset;
    dataset.range = SplitRange(split, shares, files_[i].examples->size());
    dataset.seq_length = options.seq_length;
    dataset.decoder_seq_length = options.task->decoder_seq_length;
    dataset.seed = options.seed;
    dataset.num_samples = num_samples[i];
    MEGATRON_ASSIGN_OR_RETURN(
        std::unique_ptr<SampleSource> created,
        TaskDataset::Create(files_[i].examples, text.tokenizer.special(), dataset),
        _ << files_[i].path);
    datasets.push_back(std::move(created));
  }
  return datasets;
}

absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> DataFiles::Datasets(
    const GptDatasetOptions& options, const SplitShares& shares,
    const std::vector<std::optional<int64_t>>& num_samples) const {
  std::vector<std::unique_ptr<SampleSource>> datasets;
  for (size_t i = 0; i < files_.size(); ++i) {
    const DataFile& file = files_[i];
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

absl::StatusOr<std::vector<std::unique_ptr<SampleSource>>> DataFiles::SentenceDatasets(
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

absl::StatusOr<std::unique_ptr<SampleSource>> DataFiles::PartOf(const DataOptions& options,
                                                                const DataText& text, Split split,
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
  std::vector<double> weights = Weights();
  const bool alone = files_.size() == 1 && weights.empty();
  if (ReadsAll(options, split)) {
    if (!spec_.weights.empty()) {
      return absl::InvalidArgumentError(
          "the files have weights, and train.full_validation reads each sample once: leave out "
          "the weights");
    }
    num_samples.resize(files_.size());  // one epoch
  } else if (alone) {
    num_samples = {needed};
  } else if (weights.empty()) {
    num_samples.resize(files_.size());  // one epoch: a blend without weights has all of the data
  } else {
    for (const int64_t count : SamplesPerDataset(weights, needed)) num_samples.push_back(count);
  }
  MEGATRON_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<SampleSource>> datasets,
      text.chat.has_value()      ? ConversationDatasets(options, text, split, shares, num_samples)
      : options.task.has_value() ? TaskDatasets(options, text, split, shares, num_samples)
      : options.sentences.has_value()
          ? SentenceDatasets(*options.sentences, sentences, text.tokenizer, shares, num_samples)
          : Datasets(dataset, shares, num_samples));
  if (split == Split::kTrain) {
    for (size_t i = 0; i < loss_weights_.size(); ++i) {
      datasets[i] = std::make_unique<WeightedSamples>(std::move(datasets[i]),
                                                      static_cast<float>(loss_weights_[i]));
    }
  }
  if (ReadsAll(options, split))
    return std::make_unique<AllSamples>(std::move(datasets), options.run.global_batch_size);
  if (alone) return std::move(datasets[0]);
  const BlendCache blend_cache = {dataset.cache, split};
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
    return BlendedDataset::Create(std::move(datasets), weights, needed, blend_cache);
  }
  const int64_t size = BlendSize(weights, needed);
  if (!spec_.weights.empty()) weights = OrderWeights(std::move(weights));
  return BlendedDataset::Create(std::move(datasets), weights, size, blend_cache);
}

}  // namespace megatron
