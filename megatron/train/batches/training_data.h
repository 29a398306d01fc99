// The sources of a run's samples: files, Megatron's mock data, or stories written by a grammar.
#ifndef MEGATRON_TRAIN_BATCHES_TRAINING_DATA_H_
#define MEGATRON_TRAIN_BATCHES_TRAINING_DATA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/data/gpt/fill_in_the_middle.h"
#include "megatron/data/sample.h"
#include "megatron/data/split.h"
#include "megatron/data/tasks/labelled_task.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/train/batches/sentence_data.h"

namespace megatron {

// Samples are conversations (data/chat/conversation_dataset.h).
struct ConversationDataOptions {
  std::string chat_template;  // a name that ChatTemplate knows
  bool drop_long = false;     // what is too long is left out, and not cut
};

// Samples are those of a labelled task (data/tasks/task_dataset.h).
struct TaskDataOptions {
  LabelledTask task = LabelledTask::kMnli;
  int64_t decoder_seq_length = 0;  // T5: the most tokens of an answer
};

struct DataOptions {
  // Prefixes of files, each with its weight before it or none. Training and evaluation read parts
  // of the same files (data_path and split), or files of their own (the other three lists), which a
  // JSON file may name instead (ReadPerSplitDataArgs).
  std::vector<std::string> data_path;
  std::string data_args_path;  // a file that has data_path (ReadDataArgs); empty: there is none
  std::string split;
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string per_split_data_args_path;
  // Each file of the validation data is a set of its own.
  bool multiple_validation_sets = false;
  std::vector<std::string> validation_set_names;  // empty: those of the files
  // An evaluation reads all samples of the validation data, each of them once.
  bool full_validation = false;
  bool mmap_bin_files = true;
  std::string cache_path;  // folder of the index cache; empty: none
  bool mock = false;
  bool stories = false;
  int64_t stories_bytes = 0;
  uint64_t stories_seed = 1;

  int64_t seq_length = 0;
  uint32_t seed = 1234;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  RunLength run;

  std::optional<FillInTheMiddleOptions> fill_in_the_middle;
  std::optional<SentenceDataOptions> sentences;          // if set, replaces the stream of tokens
  std::optional<ConversationDataOptions> conversations;  // if set, the files are JSON Lines
  std::optional<TaskDataOptions> task;                   // if set, the files are the task's
  // If set, files have weights in proportion to their numbers of tokens to the power of it.
  std::optional<double> sampling_alpha;
  // Factors of the losses of each training file; empty: all are 1.
  std::vector<double> loss_weights;

  bool cyclic = false;
  // With `cyclic`, true if samples are read in Megatron's order, which depends on the following two
  // numbers.
  bool data_sharding = false;
  int64_t micro_batch_size = 1;
  int64_t data_parallel_size = 1;

  // The number of this run among run.training_runs that share the training samples.
  int64_t training_run = 0;
};

struct ValidationSet {
  std::string name;  // that of its file; empty if the run has no other
  // With full_validation, what one evaluation reads; else what all evaluations of the run read.
  std::unique_ptr<SampleSource> samples;
};

struct TrainingData {
  std::unique_ptr<SampleSource> train;
  std::vector<ValidationSet> valid;    // empty if the run does not evaluate
  std::unique_ptr<SampleSource> test;  // null if it does not evaluate, or has no test data
  std::string description;             // "2 files, 1,234,567 documents"
  std::string fingerprint;             // changes when the data read changes
};

// Returns approximately the bytes of this process's memory that OpenTrainingData will take: tokens
// held in memory and the order of samples. Files are mapped and take none, unless they are
// conversations or a task's.
int64_t EstimateDataBytes(const DataOptions& options);

// The most training files whose losses are told apart.
constexpr size_t kMostSources = 128;
// Returns the names of the training files in their order, where there are several and their losses
// are told apart; else nothing. Their numbers are those of SampleSource::SourceOf. A file has its
// name without the directories, or its whole prefix where two files would be called alike; one that
// is given twice has the same name twice. Expects that lists of paths were read.
std::vector<std::string> SourceNames(const DataOptions& options);

// Sets data_path to the words of the file that options->data_args_path names; does nothing if that
// is empty.
absl::Status ReadDataArgs(FileSystem& fs, DataOptions* options);

// Sets the three lists of paths to those of the file that options->per_split_data_args_path names;
// does nothing if that is empty.
absl::Status ReadPerSplitDataArgs(FileSystem& fs, DataOptions* options);

// Expects that per-split paths were read. With fill-in-the-middle, `tokenizer` must live as long as
// the data.
absl::StatusOr<TrainingData> OpenTrainingData(const DataOptions& options,
                                              const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_TRAINING_DATA_H_
