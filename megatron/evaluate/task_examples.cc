#include "megatron/evaluate/task_examples.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/evaluate/detokenizers.h"
#include "megatron/evaluate/python_text.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;
using Label = std::optional<absl::string_view>;

absl::Status Wrong(absl::string_view key, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("\"", key, "\" ", what));
}

absl::StatusOr<const Json*> Member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return Wrong(key, "is missing");
  return &*found;
}

absl::StatusOr<std::string> Text(const Json& object, const char* key) {
  MEGATRON_ASSIGN_OR_RETURN(const Json* const value, Member(object, key));
  if (!value->is_string()) return Wrong(key, "is no text");
  return value->get<std::string>();
}

absl::StatusOr<std::vector<std::string>> Texts(const Json& object, const char* key) {
  MEGATRON_ASSIGN_OR_RETURN(const Json* const value, Member(object, key));
  if (!value->is_array()) return Wrong(key, "is no list");
  std::vector<std::string> texts;
  for (const Json& text : *value) {
    if (!text.is_string()) return Wrong(key, "holds something else than texts");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

// Returns the number of the right answer of `count`. It is a number or, as in files of Hugging
// Face's, the same as text, which is empty where the answer is kept secret.
absl::StatusOr<int64_t> Gold(const Json& object, Label label, int64_t count) {
  int64_t gold = -1;
  const auto found = object.find("label");
  if (found == object.end() && !label) {
    return Wrong("label", "is missing, as in test data whose answers are kept secret");
  }
  bool is_number;
  if (found == object.end()) {
    is_number = absl::SimpleAtoi(absl::StripAsciiWhitespace(*label), &gold);
  } else if (found->is_string()) {
    is_number = absl::SimpleAtoi(found->get<std::string>(), &gold);
  } else {
    is_number = found->is_number_integer();
    if (is_number) gold = found->get<int64_t>();
  }
  if (!is_number || gold < 0 || gold >= count)
    return Wrong("label", absl::StrCat("is none of 0 to ", count - 1));
  return gold;
}

// Sets answers, which follow a space, and their lengths.
absl::Status SetAnswers(const std::vector<std::string>& texts, Example* example) {
  if (texts.size() < 2) return absl::DataLossError("there are fewer than two answers");
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = texts[i];
    // acc_norm divides by the length.
    if (text.empty()) return absl::DataLossError(absl::StrCat("answer ", i + 1, " is empty"));
    example->answers.push_back(absl::StrCat(" ", text));
    example->lengths.push_back(CountCharacters(text));
  }
  return absl::OkStatus();
}

// Removes what the sources of HellaSwag have of their pages.
std::string CleanHellaswag(absl::string_view given) {
  std::string text = absl::StrReplaceAll(StripPythonSpace(given), {{" [title]", ". "}});
  std::string cleaned;
  for (size_t i = 0; i < text.size();) {
    const size_t open = text.find('[', i);
    const size_t end = open == text.npos ? open : text.find_first_of("]\n", open);
    if (end == text.npos) {
      cleaned += text.substr(i);
      break;
    }
    // A bracket is closed on its own line, or it stays.
    const bool closed = text[end] == ']';
    cleaned += text.substr(i, (closed ? open : end + 1) - i);
    i = end + 1;
  }
  return absl::StrReplaceAll(cleaned, {{"  ", " "}});
}

absl::Status ReadHellaswag(const Json& object, Label label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string activity, Text(object, "activity_label"));
  MEGATRON_ASSIGN_OR_RETURN(const std::string first, Text(object, "ctx_a"));
  MEGATRON_ASSIGN_OR_RETURN(const std::string second, Text(object, "ctx_b"));
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> endings, Texts(object, "endings"));
  // Accuracies among other numbers of answers are not comparable with the published ones.
  constexpr size_t kEndings = 4;
  if (endings.size() != kEndings) {
    return Wrong("endings",
                 absl::StrCat("has ", endings.size(), " texts, and HellaSwag has ", kEndings));
  }
  example->context = CleanHellaswag(absl::StrCat(activity, ": ", first, " ", Capitalize(second)));
  for (std::string& ending : endings) ending = CleanHellaswag(ending);
  MEGATRON_RETURN_IF_ERROR(SetAnswers(endings, example));
  MEGATRON_ASSIGN_OR_RETURN(example->gold,
                            Gold(object, label, static_cast<int64_t>(endings.size())));
  return absl::OkStatus();
}

absl::Status ReadPlainHellaswag(const Json& object, Label label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(example->context, Text(object, "ctx"));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> endings, Texts(object, "endings"));
  MEGATRON_RETURN_IF_ERROR(SetAnswers(endings, example));
  MEGATRON_ASSIGN_OR_RETURN(example->gold,
                            Gold(object, label, static_cast<int64_t>(endings.size())));
  return absl::OkStatus();
}

// A list of choices as in the published files: {"text": ..., "label": "A"} each.
absl::Status ReadListedChoices(const Json& choices, std::vector<std::string>* texts,
                               std::vector<std::string>* labels) {
  for (const Json& choice : choices) {
    if (!choice.is_object()) return Wrong("choices", "holds something else than objects");
    MEGATRON_ASSIGN_OR_RETURN(texts->emplace_back(), Text(choice, "text"));
    MEGATRON_ASSIGN_OR_RETURN(labels->emplace_back(), Text(choice, "label"));
  }
  return absl::OkStatus();
}

// The published files have the question and its choices in an object, those of Hugging Face's have
// them beside each other, with a list of texts and one of labels.
absl::Status ReadArc(const Json& object, Label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(const Json* question, Member(object, "question"));
  const Json& holder = question->is_object() ? *question : object;
  const char* const stem = question->is_object() ? "stem" : "question";
  MEGATRON_ASSIGN_OR_RETURN(const std::string asked, Text(holder, stem));
  MEGATRON_ASSIGN_OR_RETURN(const Json* const choices, Member(holder, "choices"));
  std::vector<std::string> texts, labels;
  if (choices->is_array()) {
    MEGATRON_RETURN_IF_ERROR(ReadListedChoices(*choices, &texts, &labels));
  } else if (choices->is_object()) {
    MEGATRON_ASSIGN_OR_RETURN(texts, Texts(*choices, "text"));
    MEGATRON_ASSIGN_OR_RETURN(labels, Texts(*choices, "label"));
  } else {
    return Wrong("choices", "is neither a list nor an object");
  }
  if (texts.size() != labels.size()) return Wrong("choices", "has another number of labels");
  MEGATRON_ASSIGN_OR_RETURN(const std::string key, Text(object, "answerKey"));
  example->gold = std::find(labels.begin(), labels.end(), key) - labels.begin();
  if (example->gold == static_cast<int64_t>(labels.size()))
    return Wrong("answerKey", "is the label of no choice");
  if (std::count(labels.begin(), labels.end(), key) > 1)
    return Wrong("answerKey", "is the label of several choices");
  example->context = absl::StrCat("Question: ", asked, "\nAnswer:");
  return SetAnswers(texts, example);
}

absl::Status ReadPiqa(const Json& object, Label label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string goal, Text(object, "goal"));
  MEGATRON_ASSIGN_OR_RETURN(const std::string first, Text(object, "sol1"));
  MEGATRON_ASSIGN_OR_RETURN(const std::string second, Text(object, "sol2"));
  MEGATRON_ASSIGN_OR_RETURN(example->gold, Gold(object, label, 2));
  example->context = absl::StrCat("Question: ", goal, "\nAnswer:");
  return SetAnswers({first, second}, example);
}

absl::Status ReadLambada(const Json& object, Label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(example->context, Text(object, "text"));
  if (StripPythonSpace(example->context).empty()) return Wrong("text", "is empty");
  example->answers.emplace_back();
  return absl::OkStatus();
}

// The last word is what white space sets off, and is looked for from the end.
absl::Status ReadStrictLambada(const Json& object, Label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, Text(object, "text"));
  const absl::string_view stripped = StripTrailingPythonSpace(text);
  if (stripped.empty()) return Wrong("text", "is empty");
  size_t begin = 0;
  for (size_t i = 0; i < stripped.size();) {
    const Utf8Char c = DecodeUtf8(stripped, i);
    i += c.length;
    if (IsPythonSpace(c.code_point)) begin = i;
  }
  example->context = StripPythonSpace(stripped.substr(0, begin));
  example->answers.push_back(absl::StrCat(" ", stripped.substr(begin)));
  return absl::OkStatus();
}

// The last word is what follows the last space.
absl::Status ReadLmEvalLambada(const Json& object, Label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, Text(object, "text"));
  if (StripPythonSpace(text).empty()) return Wrong("text", "is empty");
  const size_t space = text.rfind(' ');
  const size_t begin = space == text.npos ? 0 : space + 1;
  example->context = text.substr(0, space == text.npos ? 0 : space);
  example->answers.push_back(absl::StrCat(" ", text.substr(begin)));
  return absl::OkStatus();
}

void SetDocument(absl::string_view text, Example* example) {
  example->num_bytes = static_cast<int64_t>(text.size());
  example->num_words = CountWords(text);
}

absl::Status ReadDocument(const Json& object, Label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(example->context, Text(object, "text"));
  SetDocument(example->context, example);
  return absl::OkStatus();
}

// Likelihoods are divided by the bytes and the words of the page as it was published.
absl::Status ReadWikitextPage(const Json& object, Label, Example* example) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string page, Text(object, "page"));
  SetDocument(page, example);
  example->context = DetokenizeWikitext(page);
  return absl::OkStatus();
}

constexpr AnswerTokens kOfWhole = AnswerTokens::kOfWhole;

constexpr TaskInfo kTasks[] = {
    {"hellaswag", TaskForm::kChoice, kOfWhole, false, false, ReadHellaswag, nullptr,
     "HellaSwag as lm_eval has it: hellaswag_val.jsonl."},
    {"hellaswag_llmc", TaskForm::kChoice, AnswerTokens::kApart, true, false, ReadPlainHellaswag,
     nullptr, "HellaSwag as llm.c has it: the text as it is published, and acc_norm by tokens."},
    {"arc_easy", TaskForm::kChoice, kOfWhole, false, false, ReadArc, nullptr,
     "ARC's easy questions: ARC-Easy-Test.jsonl."},
    {"arc_challenge", TaskForm::kChoice, kOfWhole, false, false, ReadArc, nullptr,
     "ARC's harder questions: ARC-Challenge-Test.jsonl."},
    {"piqa", TaskForm::kChoice, kOfWhole, false, true, ReadPiqa, nullptr,
     "PIQA: valid.jsonl, with valid-labels.lst beside it."},
    {"lambada", TaskForm::kWord, AnswerTokens::kLastToken, false, false, ReadLambada, nullptr,
     "LAMBADA as Megatron has it: the last token of each text."},
    {"lambada_strict", TaskForm::kWord, AnswerTokens::kApart, false, false, ReadStrictLambada,
     nullptr, "LAMBADA with Megatron's --strict-lambada: all tokens of the last word."},
    {"lambada_openai", TaskForm::kWord, kOfWhole, false, false, ReadLmEvalLambada, nullptr,
     "LAMBADA as lm_eval has it: all tokens of the last word."},
    {"wikitext103", TaskForm::kOneText, kOfWhole, false, false, nullptr, DetokenizeWikitext,
     "WikiText-103 as Megatron has it: wiki.test.tokens, read in overlapping windows."},
    {"ptb", TaskForm::kOneText, kOfWhole, false, false, nullptr, DetokenizePtb,
     "The Penn Treebank in the same way."},
    {"wikitext", TaskForm::kDocuments, kOfWhole, false, false, ReadWikitextPage, nullptr,
     "WikiText as lm_eval has it: JSON lines with a \"page\" each."},
    {"bits_per_byte", TaskForm::kDocuments, kOfWhole, false, false, ReadDocument, nullptr,
     "Any texts: JSON lines with a \"text\" each, or a file of another name, which is one text."},
};

constexpr absl::string_view kJsonLines = ".jsonl";

absl::Status AtLine(int64_t line, const absl::Status& status) {
  return absl::DataLossError(absl::StrCat("line ", line, ": ", status.message()));
}

absl::StatusOr<Json> ParseObject(absl::string_view line) {
  // The parser takes a zero byte for the end of the text.
  if (line.find('\0') != line.npos) return absl::DataLossError("there is a zero byte");
  Json object = Json::parse(line.begin(), line.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::DataLossError("is no JSON object");
  return object;
}

// Splits at line feeds; a carriage return before one belongs to it. The last line may lack its own.
std::vector<absl::string_view> Lines(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  for (absl::string_view& line : lines) absl::ConsumeSuffix(&line, "\r");
  return lines;
}

absl::StatusOr<TaskExamples> ParseText(const TaskInfo& task, absl::string_view text) {
  if (!IsValidUtf8(text)) return absl::DataLossError("is no text in UTF-8");
  if (StripPythonSpace(text).empty()) return absl::DataLossError("has no text");
  TaskExamples read;
  Example& example = read.examples.emplace_back();
  example.line = 1;
  example.context = task.detokenize == nullptr ? std::string(text) : task.detokenize(text);
  SetDocument(text, &example);
  const absl::string_view stripped = StripPythonSpace(text);
  read.original_tokens = std::count(stripped.begin(), stripped.end(), ' ') + 1;
  return read;
}

std::string LabelsPath(absl::string_view path) {
  absl::ConsumeSuffix(&path, kJsonLines);
  return absl::StrCat(path, "-labels.lst");
}

bool IsBlank(absl::string_view line) { return absl::StripAsciiWhitespace(line).empty(); }

// Blank lines at the end of a file of labels are none.
std::vector<absl::string_view> LabelLines(absl::string_view labels) {
  std::vector<absl::string_view> lines = Lines(labels);
  while (!lines.empty() && IsBlank(lines.back())) lines.pop_back();
  return lines;
}

size_t CountFilled(absl::string_view text) {
  const std::vector<absl::string_view> lines = Lines(text);
  return lines.size() - static_cast<size_t>(std::count_if(lines.begin(), lines.end(), IsBlank));
}

// Tells how many labels and examples two files have. An empty path stands for an unknown one.
std::string BothCounts(absl::string_view path, size_t labels, absl::string_view text) {
  return absl::StrCat(path.empty() ? "the file of labels" : LabelsPath(path), " has ",
                      FormatQuantity(static_cast<int64_t>(labels), "line"), ", and ",
                      path.empty() ? "that of questions" : path, " ", CountFilled(text));
}

// Explains why the labels beside a file are too few for it.
absl::Status MissingLabel(absl::string_view path, absl::string_view text, Label labels) {
  if (!labels) {
    return absl::DataLossError(
        absl::StrCat("has no \"label\", and there is no file ", LabelsPath(path), " with labels"));
  }
  return absl::DataLossError(
      absl::StrCat("has no label: ", BothCounts(path, LabelLines(*labels).size(), text)));
}

// Labels that no line asks for are of another file, and so may the others be.
absl::Status CheckSpareLabels(absl::string_view path, size_t labels, absl::string_view text) {
  if (labels <= CountFilled(text)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("has labels of another file beside it: ", BothCounts(path, labels, text)));
}

// Returns whether the examples are documents of which none has a byte to divide by.
bool AreEmptyDocuments(const TaskInfo& task, const std::vector<Example>& examples) {
  return task.form == TaskForm::kDocuments &&
         std::all_of(examples.begin(), examples.end(),
                     [](const Example& example) { return example.num_bytes == 0; });
}

// Parses the contents of the file `path`. An empty path stands for an unknown one.
absl::StatusOr<TaskExamples> ParseLines(const TaskInfo& task, absl::string_view path,
                                        absl::string_view text, Label labels, int64_t limit) {
  if (task.read == nullptr) return ParseText(task, text);
  std::vector<absl::string_view> label_lines;
  if (labels) label_lines = LabelLines(*labels);
  TaskExamples read;
  int64_t number = 0;
  bool uses_labels = false;
  for (const absl::string_view line : Lines(text)) {
    ++number;
    if (limit > 0 && static_cast<int64_t>(read.examples.size()) == limit) break;
    if (IsBlank(line)) continue;
    const absl::StatusOr<Json> object = ParseObject(line);
    if (!object.ok()) return AtLine(number, object.status());
    const bool is_labelled = object->contains("label");
    Label label;
    if (labels && read.examples.size() < label_lines.size())
      label = label_lines[read.examples.size()];
    if (task.has_labels_file && !path.empty() && !label && !is_labelled)
      return AtLine(number, MissingLabel(path, text, labels));
    uses_labels = uses_labels || (label && !is_labelled);
    Example example;
    example.line = number;
    const absl::Status status = task.read(*object, label, &example);
    if (!status.ok()) return AtLine(number, status);
    read.examples.push_back(std::move(example));
  }
  if (read.examples.empty()) return absl::DataLossError("has no example");
  if (AreEmptyDocuments(task, read.examples)) return absl::DataLossError("has no text");
  if (uses_labels) {
    MEGATRON_RETURN_IF_ERROR(CheckSpareLabels(path, label_lines.size(), text));
  }
  return read;
}

}  // namespace

absl::Span<const TaskInfo> AllTasks() { return kTasks; }

absl::StatusOr<const TaskInfo*> FindTask(absl::string_view name) {
  for (const TaskInfo& task : kTasks) {
    if (name == task.name) return &task;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no task '", name, "'; the tasks are ",
      absl::StrJoin(kTasks, ", ",
                    [](std::string* out, const TaskInfo& task) { *out += task.name; })));
}

absl::StatusOr<TaskExamples> ParseExamples(const TaskInfo& task, absl::string_view text,
                                           std::optional<absl::string_view> labels, int64_t limit) {
  return ParseLines(task, /*path=*/"", text, labels, limit);
}

absl::StatusOr<TaskExamples> ReadExamples(FileSystem& fs, const TaskInfo& task,
                                          const std::string& path, int64_t limit) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path));
  std::optional<std::string> labels;
  if (task.has_labels_file) {
    absl::StatusOr<std::string> found = ReadFileToString(fs, LabelsPath(path));
    if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
    if (found.ok()) labels = *std::move(found);
  }
  const bool is_one_document = task.form == TaskForm::kDocuments &&
                               !absl::EndsWith(path, kJsonLines) && task.read == &ReadDocument;
  absl::StatusOr<TaskExamples> read =
      is_one_document ? ParseText(task, text) : ParseLines(task, path, text, labels, limit);
  MEGATRON_RETURN_IF_ERROR(read.status(), _.SetPrepend() << path << ": ");
  return read;
}

}  // namespace megatron
