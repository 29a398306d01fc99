// The tokenized examples of a labelled task's file, in memory.
#ifndef MEGATRON_DATA_TASKS_LABELLED_EXAMPLES_H_
#define MEGATRON_DATA_TASKS_LABELLED_EXAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/data/tasks/labelled_task.h"
#include "megatron/data/tasks/task_line.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

class LabelledExamples {
 public:
  using Tokens = absl::Span<const int32_t>;

  // The most tokens of a question with an option in RACE, as in Megatron; it is cut at its end.
  static constexpr int64_t kMostQuestionTokens = 128;

  // Reads a file (task_line.h), plain or compressed, or for RACE the files *.txt of a directory;
  // blank lines are skipped. kDataLoss with file and line for a line that is wrong, and where no
  // example is left; that one tells how many lines were left out, and why the first was.
  static absl::StatusOr<LabelledExamples> Read(const std::string& path, LabelledTask task,
                                               const Tokenizer& tokenizer);

  LabelledTask task() const { return task_; }
  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  // The first text of a choice, the second text, and the label of example i.
  Tokens First(int64_t i, int64_t choice) const;
  Tokens Second(int64_t i) const { return Of(examples_[i].second); }
  int32_t Label(int64_t i) const { return examples_[i].label; }

  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // Returns whether a choice of an example is cut at the lengths (task_dataset.h).
  bool IsCut(int64_t i, int64_t seq_length, int64_t decoder_seq_length) const;
  // Returns "1234 examples, 56789 tokens; 12 are cut".
  std::string Describe(int64_t seq_length, int64_t decoder_seq_length) const;
  // Returns a text that changes when the examples do.
  std::string Fingerprint() const;

 private:
  struct Text {
    int64_t begin = 0, end = 0;
  };
  struct Example {
    Text second;
    int32_t label = 0;
  };

  explicit LabelledExamples(LabelledTask task) : task_(task) {}
  absl::Status AddLine(absl::string_view header, absl::string_view line,
                       const Tokenizer& tokenizer);
  absl::StatusOr<Text> Add(absl::string_view text, const Tokenizer& tokenizer);
  Tokens Of(const Text& text) const {
    return absl::MakeConstSpan(tokens_).subspan(text.begin, text.end - text.begin);
  }

  LabelledTask task_;
  std::vector<int32_t> tokens_;
  std::vector<Text> firsts_;  // those of all choices of all examples
  std::vector<Example> examples_;
  int64_t skipped_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TASKS_LABELLED_EXAMPLES_H_
