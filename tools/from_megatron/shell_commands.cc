#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/quoted.h"
#include "tools/from_megatron/shell_condition.h"
#include "tools/from_megatron/shell_interpreter.h"

namespace megatron::shell {
namespace {

constexpr size_t kMostWords = 100000;
constexpr int kMostDocuments = 100;

}  // namespace

// Simple commands.

bool ShellReader::ReadSimpleCommand() {
  const int line = Line();
  std::vector<Text> words;
  std::string target;  // the file that the output goes to
  bool has_document = false;
  Text document;
  bool declares = false;
  while (Ok()) {
    SkipBlanks();
    SkipComment();
    const char c = Peek();
    if (AtRedirection()) {
      ReadRedirection(&target, &has_document, &document);
    } else if (EndsWord(c)) {
      if (c == '(') Fail("unexpected '('");
      break;
    } else if (AtAssignment() && (words.empty() || declares)) {
      ReadAssignment();
    } else {
      const std::string plain = words.empty() ? PlainWord() : "";
      for (const absl::string_view keyword :
           {"export", "declare", "local", "readonly", "typeset"}) {
        declares = declares || plain == keyword;
      }
      ReadWord(/*split=*/true, &words);
    }
  }
  if (!Ok() || !running_) return true;
  if (words.empty()) {
    ApplyAssignments();
    return true;
  }
  if (declares) {
    ApplyAssignments();
    return true;
  }
  assignments_.clear();  // those in front of a command are its environment
  if (has_document) {
    const std::string program = BaseName(ToString(words[0]));
    if (program == "tee" && words.size() > 1) target = ToString(words.back());
    if (!target.empty()) shell_.script.files[target] = ToString(document);
    if (program == "sbatch" || program == "bash" || program == "sh") return ReadText(document);
  }
  return Run(line, words);
}

std::string ShellReader::BaseName(absl::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

ShellWord ShellReader::ToWord(const Text& text, int line) const {
  ShellWord word{ToString(text), text.empty() ? line : text[0].line, ""};
  for (const Mark& mark : text) {
    if (mark.unset == 0) continue;
    word.unset = shell_.unset_names[mark.unset - 1];
    break;
  }
  return word;
}

bool ShellReader::Run(int line, const std::vector<Text>& texts) {
  ShellCommand command;
  command.line = line;
  for (const Text& text : texts) command.words.push_back(ToWord(text, line));
  const std::vector<ShellWord>& words = command.words;
  const std::string& name = words[0].text;
  if (name == "false") return false;
  if (name == "true" || name == ":") return true;
  if (name == "[" || name == "test") return RunTest(words, line);
  if (name == "unset") {
    for (const ShellWord& word : words) shell_.variables.erase(word.text);
    return true;
  }
  if (name == "shift") return RunShift(words, line);
  if (name == "source" || name == ".") {
    Note(line, absl::StrCat("the file of '", name, "' is not read"));
    return true;
  }
  if (name == "eval") return ReadText(Join({texts.begin() + 1, texts.end()}));
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    const std::string program = BaseName(words[i].text);
    if (program != "bash" && program != "sh") continue;
    const std::string& option = words[i + 1].text;
    if (!absl::StartsWith(option, "-") || !absl::StrContains(option, "c")) continue;
    const size_t prefix = shell_.prefix.size();
    shell_.prefix.insert(shell_.prefix.end(), words.begin(), words.begin() + i);
    ReadText(texts[i + 2]);
    shell_.prefix.resize(prefix);
    return true;
  }
  AddCommand(std::move(command));
  return true;
}

bool ShellReader::RunShift(const std::vector<ShellWord>& words, int line) {
  std::vector<std::string>& arguments = shell_.arguments;
  int64_t count = 1;
  if (words.size() > 1 && !absl::SimpleAtoi(words[1].text, &count)) {
    Note(line, absl::StrCat("'shift ", words[1].text, "' is not followed"));
    return true;
  }
  // The shell, too, leaves all arguments where they are.
  if (count < 0 || count > static_cast<int64_t>(arguments.size())) return false;
  arguments.erase(arguments.begin(), arguments.begin() + count);
  return true;
}

bool ShellReader::RunTest(const std::vector<ShellWord>& words, int line) {
  std::vector<ConditionToken> tokens;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    if (i + 1 == words.size() && words[0].text == "[" && text == "]") break;
    if (text == "-a" || text == "-o") {
      tokens.push_back({text == "-a" ? "&&" : "||", true});
    } else {
      const bool is_operator = text == "!" || text == "(" || text == ")";
      tokens.push_back({KnownText(words[i], "a condition"), is_operator});
    }
  }
  return Evaluate(tokens, line);
}

void ShellReader::AddCommand(ShellCommand command) {
  if (!running_) return;
  command.words.insert(command.words.begin(), shell_.prefix.begin(), shell_.prefix.end());
  if ((shell_.words += command.words.size()) > kMostWords)
    FailAt(command.line, "the script has too many words");
  shell_.script.commands.push_back(std::move(command));
}

Text ShellReader::Join(const std::vector<Text>& words) {
  Text text;
  for (const Text& word : words) {
    text.insert(text.end(), word.begin(), word.end());
    if (!word.empty()) text.push_back({' ', word.back().line, 0});
  }
  return text;
}

bool ShellReader::ReadText(const Text& text) {
  if ((shell_.expanded += text.size()) > kLargestExpansion) {
    Fail("the script's variables grow too large");
    return true;
  }
  if (running_) ShellReader(text, &shell_).Read();
  return true;
}

// Redirections.

bool ShellReader::AtRedirection() const {
  size_t ahead = 0;
  while (absl::ascii_isdigit(Peek(ahead))) ++ahead;
  if (ahead == 0 && Peek() == '&' && Peek(1) == '>') return true;
  return Peek(ahead) == '<' || Peek(ahead) == '>';
}

void ShellReader::SkipRedirections() {
  std::string target;
  bool has_document = false;
  Text document;
  SkipBlanks();
  while (Ok() && AtRedirection()) {
    ReadRedirection(&target, &has_document, &document);
    SkipBlanks();
  }
}

void ShellReader::ReadRedirection(std::string* target, bool* has_document, Text* document) {
  const int line = Line();
  while (absl::ascii_isdigit(Peek())) ++pos_;
  if (PeekIs("<<") && !PeekIs("<<<")) {
    pos_ += 2;
    *has_document = true;
    const bool indented = Take("-");
    SkipBlanks();
    return ReadDocument(indented, document);
  }
  const bool writes = Peek() == '>' || PeekIs("&>");
  while (absl::StrContains("<>&|", Peek())) ++pos_;
  SkipBlanks();
  if (Take("(") || Take("<(") || Take(">(")) return SkipParentheses();  // <(command)
  std::vector<Text> words;
  const size_t before = pos_;
  ReadWord(/*split=*/false, &words);
  if (Ok() && pos_ == before) FailAt(line, "a redirection without a file");
  if (writes && !words.empty()) *target = ToString(words[0]);
}

void ShellReader::ReadDocument(bool indented, Text* document) {
  const int line = Line();
  if (++shell_.documents > kMostDocuments) return Fail("the script has too many here-documents");
  bool quoted = false;
  std::string end;
  for (; !EndsWord(Peek()); ++pos_) {
    if (absl::StrContains("'\"\\", Peek())) {
      quoted = true;
    } else {
      end += in_[pos_].character;
    }
  }
  size_t feed = pos_;  // the end of this line, behind which the document begins
  while (feed < in_.size() && in_[feed].character != '\n') ++feed;
  const auto earlier = bodies_.find(feed);
  size_t next = earlier == bodies_.end() ? feed + 1 : earlier->second;
  Text body;
  while (true) {
    if (next >= in_.size()) return FailAt(line, absl::StrCat("no line ", Quoted(end)));
    Text text;
    for (; next < in_.size() && in_[next].character != '\n'; ++next) text.push_back(in_[next]);
    if (indented) {
      const auto first = std::find_if(text.begin(), text.end(),
                                      [](const Mark& mark) { return mark.character != '\t'; });
      text.erase(text.begin(), first);
    }
    if (absl::StripSuffix(ToString(text), "\r") == end) break;
    body.insert(body.end(), text.begin(), text.end());
    if (next < in_.size()) body.push_back(in_[next++]);
  }
  bodies_[feed] = std::min(next + 1, in_.size());
  if (!running_) return;
  if (quoted) {
    *document = std::move(body);
  } else {
    *document = ShellReader(body, &shell_).ExpandDocument();
  }
}

Text ShellReader::ExpandDocument() {
  Text result;
  Deeper([&] {
    while (Ok() && !AtEnd()) {
      if (Peek() == '\\' && absl::StrContains("$`\\", Peek(1))) {
        ++pos_;
        result.push_back(in_[pos_++]);
      } else if (Peek() == '$' || Peek() == '`') {
        AppendExpansion(&result);
      } else {
        result.push_back(in_[pos_++]);
      }
    }
    return true;
  });
  return result;
}

// Assignments.

bool ShellReader::AtAssignment() const {
  if (!StartsName(Peek())) return false;
  size_t ahead = 0;
  while (ContinuesName(Peek(ahead))) ++ahead;
  return Peek(ahead) == '=' || (Peek(ahead) == '+' && Peek(ahead + 1) == '=');
}

void ShellReader::ReadAssignment() {
  Assignment assignment;
  while (ContinuesName(Peek())) assignment.name += in_[pos_++].character;
  assignment.appends = Take("+");
  Take("=");
  if (Peek() != '(') {
    assignment.value.values.push_back(ReadUnsplitWord());
  } else {
    const int line = Line();
    ++pos_;
    assignment.value.is_array = true;
    while (Ok()) {
      SkipLines();
      if (Take(")")) break;
      if (AtEnd()) return FailAt(line, "the array's ')' is missing");
      const size_t before = pos_;
      ReadWord(/*split=*/true, &assignment.value.values);
      if (Ok() && pos_ == before)
        Fail(absl::StrCat("unexpected ", Quoted(std::string(1, Peek())), " in an array"));
    }
  }
  if (running_ && Ok()) assignments_.push_back(std::move(assignment));
}

void ShellReader::ApplyAssignments() {
  for (Assignment& assignment : assignments_) Assign(&assignment);
  assignments_.clear();
}

void ShellReader::Assign(Assignment* assignment) {
  if (shell_.given.count(assignment->name) > 0) return;
  Variable& variable = shell_.variables[assignment->name];
  Variable& value = assignment->value;
  if (assignment->appends && value.is_array) {
    variable.is_array = true;
    variable.values.insert(variable.values.end(), value.values.begin(), value.values.end());
    return;
  }
  if (assignment->appends && !variable.values.empty()) {
    Text& end = variable.values.back();
    end.insert(end.end(), value.values[0].begin(), value.values[0].end());
    return;
  }
  // A variable whose value is not known is known by its own name from here on.
  if (!value.is_array && !value.values[0].empty()) {
    const Text& text = value.values[0];
    const int unset = text[0].unset;
    const bool whole = std::all_of(text.begin(), text.end(),
                                   [&](const Mark& mark) { return mark.unset == unset; });
    if (unset != 0 && whole) {
      shell_.sources[assignment->name] = absl::StrCat(Source(shell_.unset_names[unset - 1]));
      shell_.variables.erase(assignment->name);
      return;
    }
  }
  variable = std::move(value);
}

// Conditions.

bool ShellReader::ReadDoubleBrackets() {
  const int line = Line();
  TakeWord("[[");
  std::vector<ConditionToken> tokens;
  while (Ok()) {
    SkipLines();
    if (TakeWord("]]")) break;
    if (AtEnd()) FailAt(line, "the ]] of [[ is missing");
    bool is_operator = false;
    for (const absl::string_view token : {"&&", "||", "(", ")", "<", ">"}) {
      if (is_operator || !Take(token)) continue;
      tokens.push_back({std::string(token), true});
      is_operator = true;
    }
    if (is_operator) continue;
    if (TakeWord("!")) {
      tokens.push_back({"!", true});
      continue;
    }
    if (!tokens.empty() && tokens.back().text == "=~") {  // a regular expression
      while (!AtEnd() && !IsBlank(Peek()) && Peek() != '\n') ++pos_;
      tokens.push_back({"", false});
      continue;
    }
    const size_t before = pos_;
    const Text text = ReadUnsplitWord();
    if (Ok() && pos_ == before) Fail("unexpected character in [[");
    tokens.push_back({running_ ? KnownText(text, "a condition") : "", false});
  }
  SkipRedirections();
  return !running_ || !Ok() || Evaluate(tokens, line);
}

bool ShellReader::Evaluate(const std::vector<ConditionToken>& tokens, int line) {
  const absl::StatusOr<ShellCondition> condition = EvaluateShellCondition(tokens);
  if (!condition.ok()) {
    FailAt(line, condition.status().message());
    return false;
  }
  for (const std::string& note : condition->notes) Note(line, note);
  return condition->holds;
}

}  // namespace megatron::shell
