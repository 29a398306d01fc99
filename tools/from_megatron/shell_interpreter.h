// How ReadShell follows a script: the state of the shell, and the reader of one text. Only
// shell_reader's own files include it.

#ifndef MEGATRON_TOOLS_FROM_MEGATRON_SHELL_INTERPRETER_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_SHELL_INTERPRETER_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/from_megatron/shell_condition.h"
#include "tools/from_megatron/shell_reader.h"

namespace megatron::shell {

constexpr size_t kLargestExpansion = 1 << 20;  // characters that variables may add

// A character, the line that it was written in, and, if it stands for a value that the script does
// not say, one more than the index of that value's name, else 0.
struct Mark {
  char character;
  int line;
  int unset;
};

using Text = std::vector<Mark>;

std::string ToString(const Text& text);

bool IsBlank(char c);
bool StartsName(char c);
bool ContinuesName(char c);
bool EndsWord(char c);

struct Variable {
  bool is_array = false;
  std::vector<Text> values;  // one, or those of an array
};

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

// Reads one text and follows its commands. Characters, lists and compound commands are in
// shell_reader.cc, simple commands in shell_commands.cc, words and expansions in shell_words.cc.
class ShellReader {
 public:
  ShellReader(const Text& text, Shell* shell) : in_(text), shell_(*shell) {}

  // Reads commands up to the end of the text.
  void Read();

 private:
  struct Assignment {
    std::string name;
    bool appends;
    Variable value;
  };

  // Characters and errors.

  bool Ok() const { return shell_.status.ok(); }
  bool AtEnd() const { return pos_ >= in_.size(); }
  // A character that is part of a value which is not known means nothing to the shell.
  char Peek(size_t ahead = 0) const;
  bool PeekIs(absl::string_view text) const;
  bool Take(absl::string_view text);
  int Line() const;
  void FailAt(int line, absl::string_view message);
  void Fail(absl::string_view message) { FailAt(Line(), message); }
  void Note(int line, absl::string_view text);
  // Runs `read` one level deeper; fails beyond the limit.
  bool Deeper(absl::FunctionRef<bool()> read);
  // Runs `read` for what takes place only if `condition` holds.
  bool RunIf(bool condition, absl::FunctionRef<bool()> read);

  // Blanks and keywords.

  void SkipBlanks();
  void SkipComment();
  // Skips blanks and a comment, and the line feed after them, if there is one.
  bool TakeLineFeed();
  void SkipLines();
  // Returns the word at this place if it has no quotes and no variables, else "".
  std::string PlainWord() const;
  bool TakeWord(absl::string_view word);
  void ExpectWord(absl::string_view word);

  // Lists of commands.

  // Reads commands up to one of `ends`, which is not taken. Returns whether the last one succeeded.
  bool ReadList(std::initializer_list<absl::string_view> ends);
  bool AtOneOf(std::initializer_list<absl::string_view> ends);
  bool ReadAndOr();
  bool ReadPipeline();
  bool ReadCommand();
  bool AtFunction(const std::string& word) const;
  bool ReadFunction();
  bool ReadBlock(absl::string_view open, absl::string_view close);
  bool ReadIf();
  bool ReadLoop();
  bool ReadCase();
  bool ReadArithmeticCommand();
  // Skips up to and with the parenthesis that closes one which has been taken.
  void SkipParentheses();

  // Simple commands.

  bool ReadSimpleCommand();
  static std::string BaseName(absl::string_view path);
  ShellWord ToWord(const Text& text, int line) const;
  // Takes the command for done. Returns whether it succeeds.
  bool Run(int line, const std::vector<Text>& texts);
  bool ReadDoubleBrackets();
  // Notes what of the condition was not understood. Returns whether it holds.
  bool Evaluate(const std::vector<ConditionToken>& tokens, int line);
  bool RunTest(const std::vector<ShellWord>& words, int line);
  bool RunShift(const std::vector<ShellWord>& words, int line);
  void AddCommand(ShellCommand command);
  // Returns the words as the text of a script.
  static Text Join(const std::vector<Text>& words);
  bool ReadText(const Text& text);

  // Redirections.

  bool AtRedirection() const;
  void SkipRedirections();
  void ReadRedirection(std::string* target, bool* has_document, Text* document);
  void ReadDocument(bool indented, Text* document);
  Text ExpandDocument();

  // Assignments.

  bool AtAssignment() const;
  void ReadAssignment();
  void ApplyAssignments();
  void Assign(Assignment* assignment);

  // Values that are not known.

  std::string Source(const std::string& name) const;
  int UnsetIndex(const std::string& name);
  void AppendUnset(const std::string& name, int line, Text* text);
  // Returns the text of a condition, in which a value that is not known is empty.
  std::string KnownText(const ShellWord& word, absl::string_view where);
  std::string KnownText(const Text& text, absl::string_view where);
  void Append(const Mark& mark, Text* text);

  // Words.

  // Returns the text of one word, whatever it expands to.
  Text ReadUnsplitWord();
  // Appends what the word expands to: none, one or several fields.
  void ReadWord(bool split, std::vector<Text>* fields);
  void ReadSingleQuotes(Text* text);
  void ReadDoubleQuotes(Text* current, bool* started, std::vector<Text>* fields);
  void ReadUnquotedExpansion(bool split, Text* current, bool* started, std::vector<Text>* fields);

  // Expansions.

  void AppendExpansion(Text* text);
  // Reads what begins with $ or `. Returns its values: one, or those of an array.
  std::vector<Text> ReadExpansion(bool quoted);
  void ReadExpansionBelowLimit(bool quoted, std::vector<Text>* values);
  void AddCommandOutput(int line, std::vector<Text>* values);
  void AddText(absl::string_view value, int line, std::vector<Text>* values);
  // Returns whether the variable has a value, and adds its values.
  bool AddKnownValues(const std::string& name, int line, std::vector<Text>* values);
  void AddValues(const std::string& name, int line, std::vector<Text>* values);
  // Reads ${NAME}, ${NAME[@]}, ${NAME:-value} and the like; the ${ has been taken.
  void ReadBraces(int line, std::vector<Text>* values);
  // Reads the word behind ${NAME:- with the brace that ends it.
  void ReadUpToBrace(int line, Text* text);
  // Reads an arithmetic expansion; its $(( has been taken.
  void ReadArithmetic(int line, std::vector<Text>* values);
  absl::StatusOr<int64_t> Number(const std::string& name, int line, std::string* unset);

  const Text& in_;
  Shell& shell_;
  size_t pos_ = 0;
  bool running_ = true;
  // The place behind the here-documents that follow a line, by the place of its line feed.
  std::map<size_t, size_t> bodies_;
  std::vector<Assignment> assignments_;  // those of the simple command that is being read
};

}  // namespace megatron::shell

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_SHELL_INTERPRETER_H_
