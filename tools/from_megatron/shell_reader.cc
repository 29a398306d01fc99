#include "tools/from_megatron/shell_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/quoted.h"
#include "tools/from_megatron/shell_arithmetic.h"

namespace megatron {
namespace {

constexpr size_t kLargestScript = 1 << 20;
constexpr size_t kLargestExpansion = 1 << 20;  // characters that variables may add
constexpr int kDeepest = 60;                   // commands, quotes and expansions within each other
constexpr size_t kLongestPattern = 256;
constexpr size_t kMostNotes = 50;
constexpr size_t kMostWords = 100000;
constexpr int kMostDocuments = 100;

// A character, the line that it was written in, and, if it stands for a value that the script does
// not say, one more than the index of that value's name, else 0.
struct Mark {
  char character;
  int line;
  int unset;
};

using Text = std::vector<Mark>;

struct Variable {
  bool is_array = false;
  std::vector<Text> values;  // one, or those of an array
};

struct TestToken {
  std::string text;
  bool is_operator;  // unquoted && || ( ) ! of [[ ]]
};

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

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// Matches the wildcards * and ?.
bool Matches(absl::string_view pattern, absl::string_view text) {
  if (pattern.size() > kLongestPattern || text.size() > kLongestPattern) return pattern == text;
  size_t p = 0, t = 0, star = absl::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.substr(p).find_first_not_of('*') == absl::string_view::npos;
}

// What the readers of a script and of the scripts in its strings share.
struct Shell {
  explicit Shell(const ShellInputs& inputs)
      : given(inputs.variables), arguments(inputs.arguments) {}

  const std::map<std::string, std::string>& given;
  std::vector<std::string> arguments;
  ShellScript script;
  std::map<std::string, Variable> variables;
  // Where the value of each variable that was given an unset value would come from.
  std::map<std::string, std::string> sources;
  std::vector<std::string> unset_names;
  std::vector<ShellWord> prefix;  // the words in front of a `bash -c` that is being read
  size_t expanded = 0;
  size_t words = 0;
  int documents = 0;
  int depth = 0;
  absl::Status status;
};

class ShellReader {
 public:
  ShellReader(const Text& text, Shell* shell) : in_(text), shell_(*shell) {}

  void Read() {
    Deeper([&] { return ReadList({}); });
    if (Ok() && !AtEnd()) Fail(absl::StrCat("unexpected ", Quoted(std::string(1, Peek()))));
  }

 private:
  // Characters and errors.

  bool Ok() const { return shell_.status.ok(); }
  bool AtEnd() const { return pos_ >= in_.size(); }

  // A character that is part of a value which is not known means nothing to the shell.
  char Peek(size_t ahead = 0) const {
    if (pos_ + ahead >= in_.size()) return '\0';
    return in_[pos_ + ahead].unset != 0 ? '\1' : in_[pos_ + ahead].character;
  }

  bool PeekIs(absl::string_view text) const {
    for (size_t i = 0; i < text.size(); ++i) {
      if (Peek(i) != text[i]) return false;
    }
    return true;
  }

  bool Take(absl::string_view text) {
    if (!PeekIs(text)) return false;
    pos_ += text.size();
    return true;
  }

  int Line() const {
    if (in_.empty()) return 1;
    return in_[std::min(pos_, in_.size() - 1)].line;
  }

  void FailAt(int line, absl::string_view message) {
    if (!Ok()) return;
    shell_.status = absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", message));
  }
  void Fail(absl::string_view message) { FailAt(Line(), message); }

  void Note(int line, absl::string_view text) {
    if (running_ && shell_.script.notes.size() < kMostNotes)
      shell_.script.notes.push_back({line, std::string(text)});
  }

  // Runs `read` one level deeper; fails beyond the limit.
  bool Deeper(absl::FunctionRef<bool()> read) {
    if (++shell_.depth > kDeepest) Fail("the script is nested too deeply");
    const bool result = Ok() && read();
    --shell_.depth;
    return result;
  }

  // Runs `read` for what takes place only if `condition` holds.
  bool RunIf(bool condition, absl::FunctionRef<bool()> read) {
    const bool was_running = running_;
    running_ = running_ && condition;
    const bool result = read();
    running_ = was_running;
    return result;
  }

  // Blanks and keywords.

  void SkipBlanks() {
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

  void SkipComment() {
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

  // Skips blanks and a comment, and the line feed after them, if there is one.
  bool TakeLineFeed() {
    SkipBlanks();
    SkipComment();
    if (Peek() != '\n') return false;
    const auto body = bodies_.find(pos_);
    pos_ = body == bodies_.end() ? pos_ + 1 : body->second;
    return true;
  }

  void SkipLines() {
    while (Ok() && TakeLineFeed()) {
    }
  }

  // Returns the word at this place if it has no quotes and no variables, else "".
  std::string PlainWord() const {
    std::string word;
    size_t length = 0;
    for (char c = Peek(); !EndsWord(c); c = Peek(++length)) {
      if (absl::StrContains("'\"$`\\\1", c) || length > 20) return "";
      word += c;
    }
    return word;
  }

  bool TakeWord(absl::string_view word) {
    if (PlainWord() != word) return false;
    pos_ += word.size();
    return true;
  }

  void ExpectWord(absl::string_view word) {
    SkipLines();
    if (Ok() && !TakeWord(word)) Fail(absl::StrCat("expected '", word, "'"));
  }

  // Lists of commands.

  // Reads commands up to one of `ends`, which is not taken. Returns whether the last one succeeded.
  bool ReadList(std::initializer_list<absl::string_view> ends) {
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

  bool AtOneOf(std::initializer_list<absl::string_view> ends) {
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

  bool ReadAndOr() {
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

  bool ReadPipeline() {
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

  bool ReadCommand() {
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

  bool AtFunction(const std::string& word) const {
    if (word.empty() || absl::StrContains(word, '=')) return false;
    size_t ahead = word.size();
    while (IsBlank(Peek(ahead))) ++ahead;
    if (Peek(ahead) != '(') return false;
    while (IsBlank(Peek(++ahead))) {
    }
    return Peek(ahead) == ')';
  }

  bool ReadFunction() {
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

  bool ReadBlock(absl::string_view open, absl::string_view close) {
    Take(open);
    const bool succeeded = ReadList({close});
    if (Ok() && !Take(close)) Fail(absl::StrCat("expected '", close, "'"));
    SkipRedirections();
    return succeeded;
  }

  bool ReadIf() {
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

  bool ReadLoop() {
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

  bool ReadCase() {
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
        matches |= Matches(ToString(ReadUnsplitWord()), word);
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

  bool ReadArithmeticCommand() {
    Note(Line(), "the command ((...)) is not followed");
    Take("((");
    SkipParentheses();
    if (Ok() && !Take(")")) Fail("expected '))'");
    return true;
  }

  // Skips up to and with the parenthesis that closes one which has been taken.
  void SkipParentheses() {
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

  // Simple commands.

  bool ReadSimpleCommand() {
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

  static std::string BaseName(absl::string_view path) {
    return std::string(path.substr(path.rfind('/') + 1));
  }

  ShellWord ToWord(const Text& text, int line) const {
    ShellWord word{ToString(text), text.empty() ? line : text[0].line, ""};
    for (const Mark& mark : text) {
      if (mark.unset == 0) continue;
      word.unset = shell_.unset_names[mark.unset - 1];
      break;
    }
    return word;
  }

  // Takes the command for done. Returns whether it succeeds.
  bool Run(int line, const std::vector<Text>& texts) {
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
    if (name == "shift") {
      std::vector<std::string>& arguments = shell_.arguments;
      if (!arguments.empty()) arguments.erase(arguments.begin());
      return true;
    }
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

  bool RunTest(const std::vector<ShellWord>& words, int line) {
    std::vector<TestToken> tokens;
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

  void AddCommand(ShellCommand command) {
    if (!running_) return;
    command.words.insert(command.words.begin(), shell_.prefix.begin(), shell_.prefix.end());
    if ((shell_.words += command.words.size()) > kMostWords)
      FailAt(command.line, "the script has too many words");
    shell_.script.commands.push_back(std::move(command));
  }

  // The words as the text of a script.
  static Text Join(const std::vector<Text>& words) {
    Text text;
    for (const Text& word : words) {
      text.insert(text.end(), word.begin(), word.end());
      if (!word.empty()) text.push_back({' ', word.back().line, 0});
    }
    return text;
  }

  bool ReadText(const Text& text) {
    if ((shell_.expanded += text.size()) > kLargestExpansion) {
      Fail("the script's variables grow too large");
      return true;
    }
    if (running_) ShellReader(text, &shell_).Read();
    return true;
  }

  // Redirections.

  bool AtRedirection() const {
    size_t ahead = 0;
    while (absl::ascii_isdigit(Peek(ahead))) ++ahead;
    if (ahead == 0 && Peek() == '&' && Peek(1) == '>') return true;
    return Peek(ahead) == '<' || Peek(ahead) == '>';
  }

  void SkipRedirections() {
    std::string target;
    bool has_document = false;
    Text document;
    SkipBlanks();
    while (Ok() && AtRedirection()) {
      ReadRedirection(&target, &has_document, &document);
      SkipBlanks();
    }
  }

  void ReadRedirection(std::string* target, bool* has_document, Text* document) {
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

  void ReadDocument(bool indented, Text* document) {
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

  Text ExpandDocument() {
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

  bool AtAssignment() const {
    if (!StartsName(Peek())) return false;
    size_t ahead = 0;
    while (ContinuesName(Peek(ahead))) ++ahead;
    return Peek(ahead) == '=' || (Peek(ahead) == '+' && Peek(ahead + 1) == '=');
  }

  struct Assignment {
    std::string name;
    bool appends;
    Variable value;
  };

  void ReadAssignment() {
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

  void ApplyAssignments() {
    for (Assignment& assignment : assignments_) Assign(&assignment);
    assignments_.clear();
  }

  void Assign(Assignment* assignment) {
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

  // Values that are not known.

  std::string Source(const std::string& name) const {
    const auto known = shell_.sources.find(name);
    if (known != shell_.sources.end()) return known->second;
    if (name == "(...)") return "the output of a command, which is not run";
    if (name == "{...}") return "an expansion that is not followed";
    if (IsNumber(name)) return absl::StrCat("the script's argument ", name);
    return absl::StrCat("the variable ", name, ", which the script does not set");
  }

  int UnsetIndex(const std::string& name) {
    std::vector<std::string>& names = shell_.unset_names;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return static_cast<int>(found - names.begin()) + 1;
    names.push_back(name);
    shell_.script.unset[name] = Source(name);
    return static_cast<int>(names.size());
  }

  void AppendUnset(const std::string& name, int line, Text* text) {
    const int index = UnsetIndex(name);
    for (const char c : absl::StrCat("$", name)) Append({c, line, index}, text);
  }

  // The text of a condition, in which a value that is not known is empty.
  std::string KnownText(const ShellWord& word, absl::string_view where) {
    if (word.unset.empty()) return word.text;
    Note(word.line, absl::StrCat(where, " asks for ", Source(word.unset), ": taken as empty"));
    return "";
  }
  std::string KnownText(const Text& text, absl::string_view where) {
    return KnownText(ToWord(text, Line()), where);
  }

  void Append(const Mark& mark, Text* text) {
    if (++shell_.expanded > kLargestExpansion) return Fail("the script's variables grow too large");
    text->push_back(mark);
  }

  // Words.

  // The text of one word, whatever it expands to.
  Text ReadUnsplitWord() {
    std::vector<Text> fields;
    ReadWord(/*split=*/false, &fields);
    Text text;
    for (size_t i = 0; i < fields.size(); ++i) {
      if (i > 0) text.push_back({' ', Line(), 0});
      text.insert(text.end(), fields[i].begin(), fields[i].end());
    }
    return text;
  }

  // Appends what the word expands to: none, one or several fields.
  void ReadWord(bool split, std::vector<Text>* fields) {
    Deeper([&] {
      Text current;
      bool started = false;  // whether `current` is a field, if only an empty one
      while (Ok()) {
        const char c = Peek();
        if (EndsWord(c)) break;
        if (PeekIs("\\\n") || PeekIs("\\\r\n")) {
          pos_ += PeekIs("\\\n") ? 2 : 3;
        } else if (c == '\\') {
          ++pos_;
          if (AtEnd()) break;
          started = true;
          current.push_back(in_[pos_++]);
        } else if (c == '\'' || PeekIs("$'")) {
          if (c == '$') ++pos_;
          started = true;
          ReadSingleQuotes(&current);
        } else if (c == '"' || PeekIs("$\"")) {
          if (c == '$') ++pos_;
          ReadDoubleQuotes(&current, &started, fields);
        } else if (c == '$' || c == '`') {
          ReadUnquotedExpansion(split, &current, &started, fields);
        } else {
          started = true;
          current.push_back(in_[pos_++]);
        }
      }
      if (started && Ok()) fields->push_back(std::move(current));
      return true;
    });
  }

  void ReadSingleQuotes(Text* text) {
    const int line = Line();
    ++pos_;
    while (!AtEnd() && Peek() != '\'') text->push_back(in_[pos_++]);
    if (!Take("'")) FailAt(line, "a ' is not closed");
  }

  void ReadDoubleQuotes(Text* current, bool* started, std::vector<Text>* fields) {
    const int line = Line();
    ++pos_;
    bool has_fields = true;  // "${ARGS[@]}" of an empty array is no field
    bool empty = true;
    while (Ok() && Peek() != '"') {
      if (AtEnd()) return FailAt(line, "a \" is not closed");
      empty = false;
      if (PeekIs("\\\n")) {
        pos_ += 2;
      } else if (PeekIs("\\\r\n")) {
        pos_ += 3;
      } else if (Peek() == '\\' && absl::StrContains("$`\"\\", Peek(1))) {
        ++pos_;
        current->push_back(in_[pos_++]);
      } else if (Peek() == '$' || Peek() == '`') {
        const std::vector<Text> values = ReadExpansion(/*quoted=*/true);
        if (values.empty() && current->empty()) has_fields = false;
        for (size_t i = 0; i < values.size(); ++i) {
          if (i > 0) {
            fields->push_back(std::move(*current));
            current->clear();
          }
          has_fields = true;
          current->insert(current->end(), values[i].begin(), values[i].end());
        }
      } else {
        has_fields = true;
        current->push_back(in_[pos_++]);
      }
    }
    Take("\"");
    *started = *started || has_fields || empty;
  }

  void ReadUnquotedExpansion(bool split, Text* current, bool* started, std::vector<Text>* fields) {
    const std::vector<Text> values = ReadExpansion(/*quoted=*/false);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0 && split && *started) {
        fields->push_back(std::move(*current));
        current->clear();
        *started = false;
      } else if (i > 0 && !split) {
        current->push_back({' ', Line(), 0});
      }
      for (const Mark& mark : values[i]) {
        const bool separates =
            mark.unset == 0 && (IsBlank(mark.character) || mark.character == '\n');
        if (!split || !separates) {
          current->push_back(mark);
          *started = true;
        } else if (*started) {
          fields->push_back(std::move(*current));
          current->clear();
          *started = false;
        }
      }
    }
  }

  // Expansions.

  void AppendExpansion(Text* text) {
    const std::vector<Text> values = ReadExpansion(/*quoted=*/true);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text->push_back({' ', Line(), 0});
      text->insert(text->end(), values[i].begin(), values[i].end());
    }
  }

  // Reads what begins with $ or `. Returns its values: one, or those of an array.
  std::vector<Text> ReadExpansion(bool quoted) {
    std::vector<Text> values;
    Deeper([&] {
      ReadExpansionBelowLimit(quoted, &values);
      return true;
    });
    if (!running_) values.clear();
    return Ok() ? values : std::vector<Text>();
  }

  void ReadExpansionBelowLimit(bool quoted, std::vector<Text>* values) {
    const int line = Line();
    if (Take("`")) {
      while (!AtEnd() && Peek() != '`') pos_ += Peek() == '\\' ? 2 : 1;
      if (!Take("`")) FailAt(line, "a ` is not closed");
      return AddCommandOutput(line, values);
    }
    Take("$");
    if (Take("((")) return ReadArithmetic(line, values);
    if (Take("(")) {
      SkipParentheses();
      return AddCommandOutput(line, values);
    }
    if (Take("{")) return ReadBraces(line, values);
    std::string name;
    if (StartsName(Peek())) {
      while (ContinuesName(Peek())) name += in_[pos_++].character;
    } else if (absl::ascii_isdigit(Peek()) || absl::StrContains("@*#?$!-", Peek())) {
      name = in_[pos_++].character;
    }
    if (!name.empty()) return AddValues(name, line, values);
    Text dollar;
    Append({'$', line, 0}, &dollar);
    values->push_back(std::move(dollar));
  }

  void AddCommandOutput(int line, std::vector<Text>* values) {
    if (!running_) return;
    Text text;
    AppendUnset("(...)", line, &text);
    values->push_back(std::move(text));
  }

  void AddText(absl::string_view value, int line, std::vector<Text>* values) {
    Text text;
    for (const char c : value) Append({c, line, 0}, &text);
    values->push_back(std::move(text));
  }

  // Returns whether the variable has a value, and adds its values.
  bool AddKnownValues(const std::string& name, int line, std::vector<Text>* values) {
    const std::vector<std::string>& arguments = shell_.arguments;
    const auto given = shell_.given.find(name);
    const auto variable = shell_.variables.find(name);
    int64_t index;
    if (given != shell_.given.end()) {
      AddText(given->second, line, values);
    } else if (variable != shell_.variables.end()) {
      for (const Text& value : variable->second.values) {
        if ((shell_.expanded += value.size() + 1) > kLargestExpansion) {
          Fail("the script's variables grow too large");
          return true;
        }
        values->push_back(value);
      }
    } else if (name == "#") {
      AddText(absl::StrCat(arguments.size()), line, values);
    } else if (name == "@" || name == "*") {
      for (const std::string& argument : arguments) AddText(argument, line, values);
    } else if (name == "?") {
      AddText("0", line, values);
    } else if (absl::SimpleAtoi(name, &index) && index >= 1 &&
               index <= static_cast<int64_t>(arguments.size())) {
      AddText(arguments[index - 1], line, values);
    } else {
      return false;
    }
    return true;
  }

  void AddValues(const std::string& name, int line, std::vector<Text>* values) {
    if (!running_ || AddKnownValues(name, line, values)) return;
    Text text;
    AppendUnset(name, line, &text);
    values->push_back(std::move(text));
  }

  // ${NAME}, ${NAME[@]}, ${NAME:-value}, ...; the ${ has been taken.
  void ReadBraces(int line, std::vector<Text>* values) {
    const bool changes = (Peek() == '#' || Peek() == '!') && Peek(1) != '}';
    if (changes) ++pos_;
    std::string name;
    while (ContinuesName(Peek())) name += in_[pos_++].character;
    if (name.empty() && absl::StrContains("@*#?$!-", Peek())) name = in_[pos_++].character;
    if (name.empty()) return FailAt(line, "an expansion ${...} without a name");
    const bool whole = Take("[@]") || Take("[*]");
    const bool plain = !changes && Peek() != '[';
    const bool colon = Peek() == ':' && absl::StrContains("-=+?", Peek(1));
    const char action = Peek(colon ? 1 : 0);
    if (plain && Take("}")) {
      AddValues(name, line, values);
      const auto variable = shell_.variables.find(name);
      const bool is_array = variable != shell_.variables.end() && variable->second.is_array;
      if (is_array && !whole && !values->empty()) values->resize(1);
      return;
    }
    if (plain && absl::StrContains("-=+?", action)) {
      pos_ += colon ? 2 : 1;
      Text word;
      ReadUpToBrace(line, &word);
      if (!running_ || !Ok()) return;
      std::vector<Text> known;
      bool has = AddKnownValues(name, line, &known);
      if (has && colon && known.size() == 1 && known[0].empty()) has = false;
      if (action == '+') {
        values->push_back(has ? word : Text());
      } else if (has) {
        *values = std::move(known);
      } else if (action == '?') {
        AddValues(name, line, values);
      } else {
        if (action == '=' && StartsName(name[0])) shell_.variables[name] = {false, {word}};
        values->push_back(std::move(word));
      }
      return;
    }
    Text rest;
    ReadUpToBrace(line, &rest);
    if (!running_ || !Ok()) return;
    Note(line, absl::StrCat("an expansion of ", Quoted(name), " is not followed"));
    Text text;
    AppendUnset("{...}", line, &text);
    values->push_back(std::move(text));
  }

  // Reads the word behind ${NAME:- with the brace that ends it.
  void ReadUpToBrace(int line, Text* text) {
    Deeper([&] {
      while (Ok() && !Take("}")) {
        if (AtEnd()) {
          FailAt(line, "the } of ${ is missing");
        } else if (Peek() == '\\' && pos_ + 1 < in_.size()) {
          ++pos_;
          text->push_back(in_[pos_++]);
        } else if (Peek() == '\'') {
          ReadSingleQuotes(text);
        } else if (Peek() == '"') {
          std::vector<Text> fields;
          bool started = false;
          Text current;
          ReadDoubleQuotes(&current, &started, &fields);
          for (const Text& field : fields) text->insert(text->end(), field.begin(), field.end());
          text->insert(text->end(), current.begin(), current.end());
        } else if (Peek() == '$' || Peek() == '`') {
          AppendExpansion(text);
        } else {
          text->push_back(in_[pos_++]);
        }
      }
      return true;
    });
  }

  // The $(( has been taken.
  void ReadArithmetic(int line, std::vector<Text>* values) {
    Text expression;
    int open = 0;
    while (Ok() && (open > 0 || !PeekIs("))"))) {
      const char c = Peek();
      if (AtEnd()) return FailAt(line, "the )) of $(( is missing");
      if (c == '$' || c == '`') {
        AppendExpansion(&expression);
        continue;
      }
      open += c == '(' ? 1 : c == ')' ? -1 : 0;
      if (open < 0) return FailAt(line, "unexpected ')'");
      expression.push_back(in_[pos_++]);
    }
    Take("))");
    if (!running_ || !Ok()) return;
    const ShellWord word = ToWord(expression, line);
    std::string unset = word.unset;
    const absl::StatusOr<int64_t> value =
        unset.empty() ? ComputeShellArithmetic(word.text,
                                               [&](absl::string_view name) {
                                                 return Number(std::string(name), line, &unset);
                                               })
                      : absl::NotFoundError("");
    if (value.ok()) return AddText(absl::StrCat(*value), line, values);
    if (unset.empty()) return FailAt(line, value.status().message());
    Text text;
    AppendUnset(unset, line, &text);
    values->push_back(std::move(text));
  }

  absl::StatusOr<int64_t> Number(const std::string& name, int line, std::string* unset) {
    std::vector<Text> values;
    if (!AddKnownValues(name, line, &values) || values.size() != 1) {
      *unset = name;
      UnsetIndex(name);
      return absl::NotFoundError(name);
    }
    const ShellWord word = ToWord(values[0], line);
    int64_t number;
    if (!word.unset.empty()) *unset = word.unset;
    if (!absl::SimpleAtoi(word.text, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(name), " is ", Quoted(word.text), ", which is no number"));
    }
    return number;
  }

  // Conditions.

  bool ReadDoubleBrackets() {
    const int line = Line();
    TakeWord("[[");
    std::vector<TestToken> tokens;
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

  bool Evaluate(const std::vector<TestToken>& tokens, int line) {
    size_t next = 0;
    const bool holds = EvaluateOr(tokens, line, &next);
    if (next == tokens.size()) return holds;
    Note(line, "a condition is not understood: it is taken as false");
    return false;
  }

  bool EvaluateOr(const std::vector<TestToken>& tokens, int line, size_t* next) {
    bool holds = EvaluateAnd(tokens, line, next);
    while (Ok() && IsOperator(tokens, *next, "||")) {
      ++*next;
      const bool other = EvaluateAnd(tokens, line, next);
      holds = holds || other;
    }
    return holds;
  }

  bool EvaluateAnd(const std::vector<TestToken>& tokens, int line, size_t* next) {
    bool holds = EvaluateNot(tokens, line, next);
    while (Ok() && IsOperator(tokens, *next, "&&")) {
      ++*next;
      const bool other = EvaluateNot(tokens, line, next);
      holds = holds && other;
    }
    return holds;
  }

  static bool IsOperator(const std::vector<TestToken>& tokens, size_t i, absl::string_view text) {
    return i < tokens.size() && tokens[i].is_operator && tokens[i].text == text;
  }

  bool EvaluateNot(const std::vector<TestToken>& tokens, int line, size_t* next) {
    return Deeper([&] {
      if (IsOperator(tokens, *next, "!")) {
        ++*next;
        return !EvaluateNot(tokens, line, next);
      }
      if (IsOperator(tokens, *next, "(")) {
        ++*next;
        const bool holds = EvaluateOr(tokens, line, next);
        *next = IsOperator(tokens, *next, ")") ? *next + 1 : tokens.size() + 1;
        return holds;
      }
      return EvaluateComparison(tokens, line, next);
    });
  }

  bool EvaluateComparison(const std::vector<TestToken>& tokens, int line, size_t* next) {
    const auto is_word = [&](size_t i) { return i < tokens.size() && !tokens[i].is_operator; };
    const size_t first = *next;
    if (!is_word(first)) {
      *next = tokens.size() + 1;
      return false;
    }
    const std::string& left = tokens[first].text;
    if (is_word(first + 1) && is_word(first + 2)) {
      *next = first + 3;
      return Compare(left, tokens[first + 1].text, tokens[first + 2].text, line);
    }
    if (is_word(first + 1)) {
      *next = first + 2;
      const std::string& right = tokens[first + 1].text;
      if (left == "-n") return !right.empty();
      if (left == "-z") return right.empty();
      Note(line, absl::StrCat("the condition ", Quoted(left), " is taken as false"));
      return false;
    }
    *next = first + 1;
    return !left.empty();
  }

  bool Compare(const std::string& left, const std::string& sign, const std::string& right,
               int line) {
    if (sign == "=" || sign == "==") return Matches(right, left);
    if (sign == "!=") return !Matches(right, left);
    int64_t a, b;
    if (absl::SimpleAtoi(left, &a) && absl::SimpleAtoi(right, &b)) {
      if (sign == "-eq") return a == b;
      if (sign == "-ne") return a != b;
      if (sign == "-lt") return a < b;
      if (sign == "-le") return a <= b;
      if (sign == "-gt") return a > b;
      if (sign == "-ge") return a >= b;
    }
    Note(line, absl::StrCat("the condition ", Quoted(sign), " is taken as false"));
    return false;
  }

  const Text& in_;
  Shell& shell_;
  size_t pos_ = 0;
  bool running_ = true;
  // The place behind the here-documents that follow a line, by the place of its line feed.
  std::map<size_t, size_t> bodies_;
  std::vector<Assignment> assignments_;  // those of the simple command that is being read
};

}  // namespace

absl::StatusOr<ShellScript> ReadShell(absl::string_view text, const ShellInputs& inputs) {
  if (text.size() > kLargestScript) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the script has ", text.size(), " bytes; at most ", kLargestScript, " are read"));
  }
  Text marks;
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
  Shell shell(inputs);
  ShellReader(marks, &shell).Read();
  if (!shell.status.ok()) return shell.status;
  return std::move(shell.script);
}

}  // namespace megatron
