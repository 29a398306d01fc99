#include "tools/from_megatron/shell_reader.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quoted.h"
#include "tools/from_megatron/shell_condition.h"
#include "tools/from_megatron/shell_interpreter.h"

namespace megatron {
namespace shell {
namespace {

constexpr size_t kLargestScript = 1 << 20;
constexpr int kDeepest = 60;  // commands, quotes and expansions within each other
constexpr size_t kMostNotes = 50;

}  // namespace

std::string ToString(const Text& text) {
  std::string result;
  for (const Mark& mark : text) result += mark.character;
  return result;
}

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool StartsName(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool ContinuesName(char c) { return absl::ascii_isalnum(c) || c == '_'; }
bool EndsWord(char c) {
  return c == '\0' || IsBlank(c) || c == '\n' || absl::StrContains(";&|()<>", c);
}

void ShellReader::Read() {
  Deeper([&] { return ReadList({}); });
  if (Ok() && !AtEnd()) Fail(absl::StrCat("unexpected ", Quoted(std::string(1, Peek()))));
}

// Characters and errors.

char ShellReader::Peek(size_t ahead) const {
  if (pos_ + ahead >= in_.size()) return '\0';
  return in_[pos_ + ahead].unset != 0 ? '\1' : in_[pos_ + ahead].character;
}

bool ShellReader::PeekIs(absl::string_view text) const {
  for (size_t i = 0; i < text.size(); ++i) {
    if (Peek(i) != text[i]) return false;
  }
  return true;
}

bool ShellReader::Take(absl::string_view text) {
  if (!PeekIs(text)) return false;
  pos_ += text.size();
  return true;
}

int ShellReader::Line() const {
  if (in_.empty()) return 1;
  return in_[std::min(pos_, in_.size() - 1)].line;
}

void ShellReader::FailAt(int line, absl::string_view message) {
  if (!Ok()) return;
  shell_.status = absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", message));
}

void ShellReader::Note(int line, absl::string_view text) {
  if (running_ && shell_.script.notes.size() < kMostNotes)
    shell_.script.notes.push_back({line, std::string(text)});
}

bool ShellReader::Deeper(absl::FunctionRef<bool()> read) {
  if (++shell_.depth > kDeepest) Fail("the script is nested too deeply");
  const bool result = Ok() && read();
  --shell_.depth;
  return result;
}

bool ShellReader::RunIf(bool condition, absl::FunctionRef<bool()> read) {
  const bool was_running = running_;
  running_ = running_ && condition;
  const bool result = read();
  running_ = was_running;
  return result;
}

// Blanks and keywords.

void ShellReader::SkipBlanks() {
  while (true) {
    if (IsBlank(Peek())) {
      ++pos_;
    } else if (PeekIs("\\\n")) {
      pos_ += 2;
    } else if (PeekIs("\\\r\n")) {
      pos_ += 3;
    } else {
      return;
    }
  }
}

void ShellReader::SkipComment() {
  if (Peek() != '#') return;
  Text comment;
  while (!AtEnd() && Peek() != '\n') comment.push_back(in_[pos_++]);
  const std::string text = ToString(comment);
  if (!absl::StartsWith(text, "#SBATCH ")) return;
  ShellCommand options;
  options.line = comment[0].line;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty()))
    options.words.push_back({std::string(word), options.line, ""});
  AddCommand(std::move(options));
}

bool ShellReader::TakeLineFeed() {
  SkipBlanks();
  SkipComment();
  if (Peek() != '\n') return false;
  const auto body = bodies_.find(pos_);
  pos_ = body == bodies_.end() ? pos_ + 1 : body->second;
  return true;
}

void ShellReader::SkipLines() {
  while (Ok() && TakeLineFeed()) {
  }
}

std::string ShellReader::PlainWord() const {
  std::string word;
  size_t length = 0;
  for (char c = Peek(); !EndsWord(c); c = Peek(++length)) {
    if (absl::StrContains("'\"$`\\\1", c) || length > 20) return "";
    word += c;
  }
  return word;
}

bool ShellReader::TakeWord(absl::string_view word) {
  if (PlainWord() != word) return false;
  pos_ += word.size();
  return true;
}

void ShellReader::ExpectWord(absl::string_view word) {
  SkipLines();
  if (Ok() && !TakeWord(word)) Fail(absl::StrCat("expected '", word, "'"));
}

// Lists of commands.

bool ShellReader::ReadList(std::initializer_list<absl::string_view> ends) {
  bool succeeded = true;
  while (Ok()) {
    SkipLines();
    if (AtEnd() || AtOneOf(ends)) break;
    if ((Peek() == ';' && Peek(1) != ';') || (Peek() == '&' && Peek(1) != '&')) {
      ++pos_;
      continue;
    }
    const size_t before = pos_;
    succeeded = Deeper([&] { return ReadAndOr(); });
    if (Ok() && pos_ == before) Fail(absl::StrCat("unexpected ", Quoted(std::string(1, Peek()))));
  }
  return succeeded;
}

bool ShellReader::AtOneOf(std::initializer_list<absl::string_view> ends) {
  const std::string word = PlainWord();
  for (const absl::string_view end : ends) {
    if (end == ")" || end == ";;" ? PeekIs(end) : word == end) return true;
  }
  for (const absl::string_view keyword :
       {"then", "elif", "else", "fi", "do", "done", "esac", "in", "}"}) {
    if (word == keyword) Fail(absl::StrCat("unexpected '", keyword, "'"));
  }
  return false;
}

bool ShellReader::ReadAndOr() {
  bool succeeded = ReadPipeline();
  while (Ok()) {
    SkipBlanks();
    const bool is_and = PeekIs("&&");
    if (!is_and && !PeekIs("||")) break;
    pos_ += 2;
    SkipLines();
    const bool runs = is_and == succeeded;
    const bool next = RunIf(runs, [&] { return ReadPipeline(); });
    if (runs) succeeded = next;
  }
  return succeeded;
}

bool ShellReader::ReadPipeline() {
  SkipBlanks();
  const bool negated = TakeWord("!");
  bool succeeded = ReadCommand();
  while (Ok()) {
    SkipBlanks();
    if (Peek() != '|' || Peek(1) == '|') break;
    pos_ += Peek(1) == '&' ? 2 : 1;
    SkipLines();
    succeeded = ReadCommand();
  }
  return succeeded != negated;
}

bool ShellReader::ReadCommand() {
  SkipBlanks();
  const std::string word = PlainWord();
  if (word == "if") return Deeper([&] { return ReadIf(); });
  if (word == "for" || word == "while" || word == "until" || word == "select")
    return Deeper([&] { return ReadLoop(); });
  if (word == "case") return Deeper([&] { return ReadCase(); });
  if (word == "function" || AtFunction(word)) return Deeper([&] { return ReadFunction(); });
  if (word == "{") return Deeper([&] { return ReadBlock("{", "}"); });
  if (PeekIs("((")) return ReadArithmeticCommand();
  if (Peek() == '(') return Deeper([&] { return ReadBlock("(", ")"); });
  if (word == "[[") return ReadDoubleBrackets();
  return ReadSimpleCommand();
}

bool ShellReader::AtFunction(const std::string& word) const {
  if (word.empty() || absl::StrContains(word, '=')) return false;
  size_t ahead = word.size();
  while (IsBlank(Peek(ahead))) ++ahead;
  if (Peek(ahead) != '(') return false;
  while (IsBlank(Peek(++ahead))) {
  }
  return Peek(ahead) == ')';
}

bool ShellReader::ReadFunction() {
  const int line = Line();
  TakeWord("function");
  SkipBlanks();
  const std::string name = PlainWord();
  pos_ += name.size();
  SkipBlanks();
  if (Take("(")) {
    SkipBlanks();
    if (!Take(")")) Fail("expected ')'");
  }
  SkipLines();
  Note(line, absl::StrCat("the function ", Quoted(name), " is not followed"));
  return RunIf(false, [&] { return ReadCommand(); });
}

bool ShellReader::ReadBlock(absl::string_view open, absl::string_view close) {
  Take(open);
  const bool succeeded = ReadList({close});
  if (Ok() && !Take(close)) Fail(absl::StrCat("expected '", close, "'"));
  SkipRedirections();
  return succeeded;
}

bool ShellReader::ReadIf() {
  TakeWord("if");
  bool done = false;
  while (Ok()) {
    const bool holds = RunIf(!done, [&] { return ReadList({"then"}); });
    ExpectWord("then");
    RunIf(!done && holds, [&] { return ReadList({"elif", "else", "fi"}); });
    done = done || holds;
    if (!TakeWord("elif")) break;
  }
  if (Ok() && TakeWord("else")) RunIf(!done, [&] { return ReadList({"fi"}); });
  ExpectWord("fi");
  SkipRedirections();
  return true;
}

bool ShellReader::ReadLoop() {
  const int line = Line();
  const std::string keyword = PlainWord();
  Note(line, absl::StrCat("the loop '", keyword, "' is not followed"));
  RunIf(false, [&] {
    TakeWord(keyword);
    if (keyword == "while" || keyword == "until") return ReadList({"do"});
    SkipBlanks();
    if (PeekIs("((")) ReadArithmeticCommand();
    while (Ok() && !AtEnd() && Peek() != ';' && Peek() != '\n' && PlainWord() != "do") {
      std::vector<Text> words;
      const size_t before = pos_;
      ReadWord(/*split=*/true, &words);
      SkipBlanks();
      if (Ok() && pos_ == before) Fail("unexpected character in a loop");
    }
    Take(";");
    return true;
  });
  ExpectWord("do");
  RunIf(false, [&] { return ReadList({"done"}); });
  ExpectWord("done");
  SkipRedirections();
  return true;
}

bool ShellReader::ReadCase() {
  TakeWord("case");
  SkipBlanks();
  const std::string word = KnownText(ReadUnsplitWord(), "the 'case'");
  ExpectWord("in");
  bool done = false;
  while (Ok()) {
    SkipLines();
    if (TakeWord("esac")) break;
    if (AtEnd()) Fail("expected 'esac'");
    Take("(");
    bool matches = false;
    do {
      SkipBlanks();
      matches |= MatchesWildcards(ToString(ReadUnsplitWord()), word);
      SkipBlanks();
    } while (Ok() && Take("|"));
    if (Ok() && !Take(")")) Fail("expected ')' behind the pattern of a 'case'");
    RunIf(matches && !done, [&] { return ReadList({";;", "esac"}); });
    done = done || matches;
    Take(";;");
  }
  SkipRedirections();
  return true;
}

bool ShellReader::ReadArithmeticCommand() {
  Note(Line(), "the command ((...)) is not followed");
  Take("((");
  SkipParentheses();
  if (Ok() && !Take(")")) Fail("expected '))'");
  return true;
}

void ShellReader::SkipParentheses() {
  const int line = Line();
  int open = 1;
  while (open > 0) {
    if (AtEnd()) return FailAt(line, "a parenthesis is not closed");
    const char c = Peek();
    if (c == '\\' && pos_ + 1 < in_.size()) ++pos_;
    if (c == '\'' || c == '"') {
      ++pos_;
      while (!AtEnd() && Peek() != c) pos_ += c == '"' && Peek() == '\\' ? 2 : 1;
      if (AtEnd()) return FailAt(line, "a quote is not closed");
    }
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    ++pos_;
  }
}

}  // namespace shell

absl::StatusOr<ShellScript> ReadShell(absl::string_view text, const ShellInputs& inputs) {
  if (text.size() > shell::kLargestScript) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the script has ", text.size(), " bytes; at most ", shell::kLargestScript, " are read"));
  }
  shell::Text marks;
  marks.reserve(text.size());
  int line = 1;
  for (const char c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && !absl::ascii_isspace(c)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", line, " holds the byte 0x",
          absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2), ", which no script has"));
    }
    marks.push_back({c, line, 0});
    if (c == '\n') ++line;
  }
  shell::Shell state(inputs);
  shell::ShellReader(marks, &state).Read();
  if (!state.status.ok()) return state.status;
  return std::move(state.script);
}

}  // namespace megatron
