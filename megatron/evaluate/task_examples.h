// The tasks by name, and their published files as examples.
//
//   MEGATRON_ASSIGN_OR_RETURN(const TaskInfo* task, FindTask("hellaswag"));
//   MEGATRON_ASSIGN_OR_RETURN(TaskExamples examples, ReadExamples(fs, *task, path, /*limit=*/0));
#ifndef MEGATRON_EVALUATE_TASK_EXAMPLES_H_
#define MEGATRON_EVALUATE_TASK_EXAMPLES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "nlohmann/json_fwd.hpp"

namespace megatron {

// What is asked about an example, and so which metrics there are.
enum class TaskForm {
  kChoice,     // which of several answers is the likeliest: acc, acc_norm
  kWord,       // whether the model writes the last word: acc, perplexity
  kDocuments,  // how likely whole documents are: bits_per_byte, byte_perplexity, word_perplexity
  kOneText,    // how likely one text is, in overlapping windows: loss, ppl, adjusted_ppl
};

// How the tokens of an answer behind its context are found.
enum class AnswerTokens {
  // White space at the context's end goes to the answer. Both are encoded together, and the answer
  // has the tokens beyond the number of the context's own: lm_eval's rule.
  kOfWhole,
  kApart,      // each is encoded by itself
  kLastToken,  // the whole is encoded, and the answer is its last token
};

struct Example {
  int64_t line = 0;                      // the line of the file, from 1
  std::string context;                   // or the whole text, where there are no answers
  std::vector<std::string> answers;      // as they follow the context
  std::vector<int64_t> lengths;          // kChoice: those that acc_norm divides by; else empty
  int64_t gold = 0;                      // kChoice: the right answer
  int64_t num_bytes = 0, num_words = 0;  // kDocuments: those that likelihoods are divided by
};

struct TaskInfo {
  const char* name;
  TaskForm form;
  AnswerTokens answer_tokens;
  // acc_norm divides by numbers of tokens and not by lengths.
  bool normalizes_by_tokens;
  // Files may leave labels to a file beside them, whose name has "-labels.lst" for ".jsonl".
  bool has_labels_file;
  // Reads an object of the file, with the label of the file beside it, if there is one. Null:
  // the file is plain text.
  absl::Status (*read)(const nlohmann::json& object, std::optional<absl::string_view> label,
                       Example* example);
  std::string (*detokenize)(absl::string_view text);  // for plain text; may be null
  const char* help;                                   // a sentence
};

absl::Span<const TaskInfo> AllTasks();
// kInvalidArgument names all tasks.
absl::StatusOr<const TaskInfo*> FindTask(absl::string_view name);

struct TaskExamples {
  std::vector<Example> examples;
  // kOneText: the words of the text as it was published, at single spaces.
  int64_t original_tokens = 0;
};

// Reads the task's file, at most `limit` examples from the first on; 0: all. Errors name file and
// line, and are kDataLoss unless a file cannot be read.
absl::StatusOr<TaskExamples> ReadExamples(FileSystem& fs, const TaskInfo& task,
                                          const std::string& path, int64_t limit);
// The same from the contents of the file, and of the labels' file where there is one. Errors name
// the line.
absl::StatusOr<TaskExamples> ParseExamples(const TaskInfo& task, absl::string_view text,
                                           std::optional<absl::string_view> labels, int64_t limit);

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_TASK_EXAMPLES_H_
