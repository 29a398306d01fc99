#include "megatron/data/tasks/labelled_examples.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/io/line_batches.h"
#include "megatron/data/io/text_input.h"
#include "megatron/data/text/json_text.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

template <typename T>
uint32_t ExtendWith(uint32_t crc, const std::vector<T>& values) {
  return ExtendCrc32c(crc, absl::string_view(reinterpret_cast<const char*>(values.data()),
                                             values.size() * sizeof(T)));
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path, LabelledTask task) {
  if (task != LabelledTask::kRace) return std::vector<std::string>{path};
  const bool is_directory = PosixFileSystem().List(path).ok();
  if (!is_directory) return std::vector<std::string>{path};
  MEGATRON_ASSIGN_OR_RETURN(TextInputs inputs, FindTextInputs({absl::StrCat(path, "/*.txt")}));
  return std::move(inputs.paths);
}

}  // namespace

absl::StatusOr<LabelledExamples> LabelledExamples::Read(const std::string& path, LabelledTask task,
                                                        const Tokenizer& tokenizer) {
  LabelledExamples read(task);
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> files, FilesOf(path, task));
  LineBatchReader reader(std::move(files), OpenTextInput, {});
  LineBatch batch;
  std::string header, first_skipped;
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(const bool more, reader.Next(&batch));
    if (!more) break;
    for (size_t i = 0; i < batch.lines.size(); ++i) {
      const LineBatch::Line& line = batch.lines[i];
      const int64_t number = batch.first_line + static_cast<int64_t>(i);
      const bool is_header = number == 1 && HasHeader(task);
      if (is_header) header = std::string(line.text);
      const absl::Status status = line.too_long ? absl::DataLossError("is too long")
                                  : is_header   ? CheckTaskHeader(task, line.text)
                                                : read.AddLine(header, line.text, tokenizer);
      if (!status.ok()) {
        return absl::DataLossError(
            absl::StrCat(batch.path, ", line ", number, ": ", status.message()));
      }
      if (read.skipped_ > 0 && first_skipped.empty()) {
        first_skipped =
            absl::StrCat(batch.path, ", line ", number, ", ", WhyNoExample(task, line.text));
      }
    }
  }
  if (read.size() > 0) return read;
  if (read.skipped_ == 0) return absl::DataLossError(absl::StrCat(path, ": has no example"));
  return absl::DataLossError(absl::StrCat(path, ": has no example, and ",
                                          FormatQuantity(read.skipped_, "line"),
                                          " that had to be left out: ", first_skipped));
}

absl::Status LabelledExamples::AddLine(absl::string_view header, absl::string_view line,
                                       const Tokenizer& tokenizer) {
  // Tabs alone are columns that lack their texts.
  const bool is_blank = HasHeader(task_) ? line.empty() || line == "\r" : IsBlankJsonLine(line);
  if (is_blank) return absl::OkStatus();
  if (!IsValidUtf8(line)) return absl::DataLossError("is no text in UTF-8");
  MEGATRON_RETURN_IF_ERROR(CheckTaskColumns(task_, header, line));
  std::vector<TaskExample> examples;
  MEGATRON_RETURN_IF_ERROR(AppendTaskExamples(task_, line, &examples));
  if (examples.empty()) ++skipped_;
  Text second;
  for (size_t i = 0; i < examples.size(); ++i) {
    // The questions of a line are about one text.
    if (i == 0 || examples[i].second != examples[i - 1].second) {
      MEGATRON_ASSIGN_OR_RETURN(second, Add(examples[i].second, tokenizer));
    }
    for (const std::string& text : examples[i].first) {
      MEGATRON_ASSIGN_OR_RETURN(Text first, Add(text, tokenizer));
      if (task_ == LabelledTask::kRace)
        first.end = std::min(first.end, first.begin + kMostQuestionTokens);
      firsts_.push_back(first);
    }
    examples_.push_back({second, examples[i].label});
  }
  return absl::OkStatus();
}

absl::StatusOr<LabelledExamples::Text> LabelledExamples::Add(absl::string_view text,
                                                             const Tokenizer& tokenizer) {
  const int64_t begin = num_tokens();
  MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(text, &tokens_));
  return Text{begin, num_tokens()};
}

LabelledExamples::Tokens LabelledExamples::First(int64_t i, int64_t choice) const {
  return Of(firsts_[i * LabelsOf(task_).choices + choice]);
}

bool LabelledExamples::IsCut(int64_t i, int64_t seq_length, int64_t decoder_seq_length) const {
  const auto length = [](Tokens tokens) { return static_cast<int64_t>(tokens.size()); };
  const int64_t second = length(Second(i));
  if (task_ == LabelledTask::kTextToText)
    return length(First(i, 0)) + 1 > seq_length || second + 1 > decoder_seq_length;
  for (int64_t choice = 0; choice < LabelsOf(task_).choices; ++choice) {
    if (length(First(i, choice)) + second + 3 > seq_length) return true;
  }
  return false;
}

std::string LabelledExamples::Describe(int64_t seq_length, int64_t decoder_seq_length) const {
  int64_t cut = 0;
  for (int64_t i = 0; i < size(); ++i) cut += IsCut(i, seq_length, decoder_seq_length);
  std::string text = absl::StrFormat("%d examples, %d tokens", size(), num_tokens());
  if (cut > 0) absl::StrAppend(&text, "; ", cut, " are longer than the model reads, and cut");
  if (skipped_ > 0) {
    absl::StrAppend(
        &text, "; ", FormatQuantity(skipped_, "line"), " left out, with ",
        task_ == LabelledTask::kQqp ? "an empty question or not 6 columns" : "no question");
  }
  return text;
}

std::string LabelledExamples::Fingerprint() const {
  uint32_t crc = ExtendWith(ExtendWith(0, tokens_), firsts_);
  for (const Example& example : examples_) {
    crc = ExtendCrc32c(
        crc, absl::StrCat(example.second.begin, " ", example.second.end, " ", example.label, "\n"));
  }
  return absl::StrFormat("%d examples, crc32c %08x", size(), crc);
}

}  // namespace megatron
