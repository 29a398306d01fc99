#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quoted.h"
#include "tools/from_megatron/shell_arithmetic.h"
#include "tools/from_megatron/shell_interpreter.h"

namespace megatron::shell {
namespace {

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

}  // namespace

// Values that are not known.

std::string ShellReader::Source(const std::string& name) const {
  const auto known = shell_.sources.find(name);
  if (known != shell_.sources.end()) return known->second;
  if (name == "(...)") return "the output of a command, which is not run";
  if (name == "{...}") return "an expansion that is not followed";
  if (IsNumber(name)) return absl::StrCat("the script's argument ", name);
  return absl::StrCat("the variable ", name, ", which the script does not set");
}

int ShellReader::UnsetIndex(const std::string& name) {
  std::vector<std::string>& names = shell_.unset_names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<int>(found - names.begin()) + 1;
  names.push_back(name);
  shell_.script.unset[name] = Source(name);
  return static_cast<int>(names.size());
}

void ShellReader::AppendUnset(const std::string& name, int line, Text* text) {
  const int index = UnsetIndex(name);
  for (const char c : absl::StrCat("$", name)) Append({c, line, index}, text);
}

std::string ShellReader::KnownText(const ShellWord& word, absl::string_view where) {
  if (word.unset.empty()) return word.text;
  Note(word.line, absl::StrCat(where, " asks for ", Source(word.unset), ": taken as empty"));
  return "";
}

std::string ShellReader::KnownText(const Text& text, absl::string_view where) {
  return KnownText(ToWord(text, Line()), where);
}

void ShellReader::Append(const Mark& mark, Text* text) {
  if (++shell_.expanded > kLargestExpansion) return Fail("the script's variables grow too large");
  text->push_back(mark);
}

// Words.

Text ShellReader::ReadUnsplitWord() {
  std::vector<Text> fields;
  ReadWord(/*split=*/false, &fields);
  Text text;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) text.push_back({' ', Line(), 0});
    text.insert(text.end(), fields[i].begin(), fields[i].end());
  }
  return text;
}

void ShellReader::ReadWord(bool split, std::vector<Text>* fields) {
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

void ShellReader::ReadSingleQuotes(Text* text) {
  const int line = Line();
  ++pos_;
  while (!AtEnd() && Peek() != '\'') text->push_back(in_[pos_++]);
  if (!Take("'")) FailAt(line, "a ' is not closed");
}

void ShellReader::ReadDoubleQuotes(Text* current, bool* started, std::vector<Text>* fields) {
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

void ShellReader::ReadUnquotedExpansion(bool split, Text* current, bool* started,
                                        std::vector<Text>* fields) {
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
      const bool separates = mark.unset == 0 && (IsBlank(mark.character) || mark.character == '\n');
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

void ShellReader::AppendExpansion(Text* text) {
  const std::vector<Text> values = ReadExpansion(/*quoted=*/true);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text->push_back({' ', Line(), 0});
    text->insert(text->end(), values[i].begin(), values[i].end());
  }
}

std::vector<Text> ShellReader::ReadExpansion(bool quoted) {
  std::vector<Text> values;
  Deeper([&] {
    ReadExpansionBelowLimit(quoted, &values);
    return true;
  });
  if (!running_) values.clear();
  return Ok() ? values : std::vector<Text>();
}

void ShellReader::ReadExpansionBelowLimit(bool quoted, std::vector<Text>* values) {
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

void ShellReader::AddCommandOutput(int line, std::vector<Text>* values) {
  if (!running_) return;
  Text text;
  AppendUnset("(...)", line, &text);
  values->push_back(std::move(text));
}

void ShellReader::AddText(absl::string_view value, int line, std::vector<Text>* values) {
  Text text;
  for (const char c : value) Append({c, line, 0}, &text);
  values->push_back(std::move(text));
}

bool ShellReader::AddKnownValues(const std::string& name, int line, std::vector<Text>* values) {
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

void ShellReader::AddValues(const std::string& name, int line, std::vector<Text>* values) {
  if (!running_ || AddKnownValues(name, line, values)) return;
  Text text;
  AppendUnset(name, line, &text);
  values->push_back(std::move(text));
}

void ShellReader::ReadBraces(int line, std::vector<Text>* values) {
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

void ShellReader::ReadUpToBrace(int line, Text* text) {
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

void ShellReader::ReadArithmetic(int line, std::vector<Text>* values) {
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

absl::StatusOr<int64_t> ShellReader::Number(const std::string& name, int line, std::string* unset) {
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

}  // namespace megatron::shell
