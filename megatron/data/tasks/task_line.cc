#include "megatron/data/tasks/task_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

constexpr size_t kMnliFirst = 8, kMnliSecond = 9, kMnliTestColumns = 10;
constexpr size_t kQqpFirst = 3, kQqpSecond = 4, kQqpLabel = 5, kQqpColumns = 6, kQqpTestColumns = 3;

std::vector<absl::string_view> Columns(absl::string_view line) {
  return absl::StrSplit(absl::StripAsciiWhitespace(line), '\t');
}

// Returns the text with one blank for each white space, and with full stops beside their words, up
// to three of them in a row, as in Megatron.
std::string CleanText(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\n\v\f\r"), absl::SkipEmpty());
  std::string clean = absl::StrJoin(words, " ");
  for (int i = 0; i < 3; ++i) clean = absl::StrReplaceAll(clean, {{" . ", ". "}});
  return clean;
}

absl::StatusOr<int32_t> MnliLabel(absl::string_view label) {
  if (label == "contradiction") return 0;
  if (label == "entailment") return 1;
  if (label == "neutral") return 2;
  return absl::DataLossError(absl::StrCat("the label in the last column is ", Quoted(label),
                                          ", and not contradiction, entailment or neutral"));
}

absl::StatusOr<TaskExample> MnliExample(const std::vector<absl::string_view>& columns) {
  if (columns.size() <= kMnliTestColumns) {
    return absl::DataLossError(
        absl::StrCat("has ", columns.size(),
                     " columns with tabs between them, and MNLI has more than ", kMnliTestColumns));
  }
  TaskExample example;
  example.first = {CleanText(columns[kMnliFirst])};
  example.second = CleanText(columns[kMnliSecond]);
  if (example.first[0].empty() || example.second.empty())
    return absl::DataLossError("has an empty text in column 8 or 9, counted from 0");
  MEGATRON_ASSIGN_OR_RETURN(example.label, MnliLabel(columns.back()));
  return example;
}

absl::Status AppendQqpExample(const std::vector<absl::string_view>& columns,
                              std::vector<TaskExample>* examples) {
  if (columns.size() != kQqpColumns) return absl::OkStatus();
  TaskExample example;
  example.first = {CleanText(columns[kQqpFirst])};
  example.second = CleanText(columns[kQqpSecond]);
  const absl::string_view label = columns[kQqpLabel];
  if (example.first[0].empty() || example.second.empty()) return absl::OkStatus();
  if (label != "0" && label != "1") {
    return absl::DataLossError(
        absl::StrCat("the label in the last column is ", Quoted(label), ", and not 0 or 1"));
  }
  example.label = label == "1";
  examples->push_back(std::move(example));
  return absl::OkStatus();
}

// The parser takes a zero byte for the end of the text.
absl::StatusOr<Json> ParseObject(absl::string_view line) {
  Json json = line.find('\0') == line.npos
                  ? Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false)
                  : Json(Json::value_t::discarded);
  if (json.is_discarded() || !json.is_object()) return absl::DataLossError("is no JSON object");
  return json;
}

absl::StatusOr<std::string> TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    return absl::DataLossError(absl::StrCat("needs a text \"", key, "\""));
  return found->get<std::string>();
}

absl::StatusOr<std::vector<Json>> ListOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array())
    return absl::DataLossError(absl::StrCat("needs a list \"", key, "\""));
  return found->get<std::vector<Json>>();
}

bool AreTexts(const Json& list, size_t size) {
  if (!list.is_array() || list.size() != size) return false;
  for (const Json& each : list) {
    if (!each.is_string()) return false;
  }
  return true;
}

std::string WithOption(const std::string& question, const std::string& option) {
  const bool has_gap = question.find('_') != question.npos;
  return CleanText(has_gap ? absl::StrReplaceAll(question, {{"_", option}})
                           : absl::StrCat(question, " ", option));
}

absl::Status AppendRaceExamples(absl::string_view line, std::vector<TaskExample>* examples) {
  constexpr size_t kChoices = 4;
  static_assert(LabelsOf(LabelledTask::kRace).choices == kChoices);
  MEGATRON_ASSIGN_OR_RETURN(const Json json, ParseObject(line));
  MEGATRON_ASSIGN_OR_RETURN(const std::string article, TextOf(json, "article"));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Json> questions, ListOf(json, "questions"));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Json> options, ListOf(json, "options"));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Json> answers, ListOf(json, "answers"));
  if (options.size() != questions.size() || answers.size() != questions.size()) {
    return absl::DataLossError(absl::StrCat("has ", questions.size(), " questions, options for ",
                                            options.size(), " and ", answers.size(), " answers"));
  }
  TaskExample example;
  example.second = CleanText(article);
  for (size_t i = 0; i < questions.size(); ++i) {
    if (!questions[i].is_string() || !AreTexts(options[i], kChoices)) {
      return absl::DataLossError(
          absl::StrCat("question ", i + 1, " is no text, or has not four texts as options"));
    }
    if (!answers[i].is_string()) {
      return absl::DataLossError(absl::StrCat("the answer to question ", i + 1,
                                              " is no text, and not \"A\", \"B\", \"C\" or \"D\""));
    }
    const std::string letter = answers[i].get<std::string>();
    if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D') {
      return absl::DataLossError(absl::StrCat("the answer to question ", i + 1, " is ",
                                              Quoted(letter), ", and not A, B, C or D"));
    }
    example.label = letter[0] - 'A';
    example.first.clear();
    for (const Json& option : options[i]) {
      example.first.push_back(
          WithOption(questions[i].get<std::string>(), option.get<std::string>()));
    }
    examples->push_back(example);
  }
  return absl::OkStatus();
}

absl::StatusOr<TaskExample> PairExample(absl::string_view line) {
  MEGATRON_ASSIGN_OR_RETURN(const Json json, ParseObject(line));
  TaskExample example;
  example.first.resize(1);
  MEGATRON_ASSIGN_OR_RETURN(example.first[0], TextOf(json, "inputs"));
  MEGATRON_ASSIGN_OR_RETURN(example.second, TextOf(json, "targets"));
  if (example.first[0].empty() || example.second.empty())
    return absl::DataLossError("has empty \"inputs\" or \"targets\"");
  return example;
}

}  // namespace

absl::Status CheckTaskHeader(LabelledTask task, absl::string_view line) {
  const size_t columns = Columns(line).size();
  const size_t of_test = task == LabelledTask::kMnli ? kMnliTestColumns : kQqpTestColumns;
  if (columns != of_test) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("has ", columns,
                   " columns, as a test file without labels: train on the file "
                   "train.tsv, and evaluate on one with labels, such as dev.tsv"));
}

absl::Status CheckTaskColumns(LabelledTask task, absl::string_view header, absl::string_view line) {
  if (task != LabelledTask::kMnli) return absl::OkStatus();
  // Tabs at an end are columns here: what Columns() strips might be one too many or too few.
  const auto of_header = std::count(header.begin(), header.end(), '\t') + 1;
  const auto of_line = std::count(line.begin(), line.end(), '\t') + 1;
  if (of_line == of_header) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "has ", of_line, " columns, and the header ", of_header,
      of_line > of_header ? ": take out tabs inside of texts and at the end"
                          : ": a column is missing, or the line is cut off; take the line out"));
}

absl::Status AppendTaskExamples(LabelledTask task, absl::string_view line,
                                std::vector<TaskExample>* examples) {
  if (HasHeader(task) && absl::StripAsciiWhitespace(line).empty())
    return absl::DataLossError("has tabs and blanks alone");
  switch (task) {
    case LabelledTask::kMnli: {
      MEGATRON_ASSIGN_OR_RETURN(TaskExample example, MnliExample(Columns(line)));
      examples->push_back(std::move(example));
      return absl::OkStatus();
    }
    case LabelledTask::kQqp:
      return AppendQqpExample(Columns(line), examples);
    case LabelledTask::kRace:
      return AppendRaceExamples(line, examples);
    case LabelledTask::kTextToText: {
      MEGATRON_ASSIGN_OR_RETURN(TaskExample example, PairExample(line));
      examples->push_back(std::move(example));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

std::string WhyNoExample(LabelledTask task, absl::string_view line) {
  if (task != LabelledTask::kQqp) return "has no question";
  const size_t columns = Columns(line).size();
  if (columns == kQqpColumns) return "has an empty question";
  return absl::StrCat("has ", columns, " columns with tabs between them, and QQP has ",
                      kQqpColumns);
}

}  // namespace megatron
