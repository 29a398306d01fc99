#include "megatron/train/config/config_syntax.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace megatron {
namespace {

using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::Tokenizer;

// The schema is three messages deep; input with many more could overflow the stack.
constexpr int kMaxDepth = 20;

class ErrorList : public google::protobuf::io::ErrorCollector {
 public:
  explicit ErrorList(std::vector<SyntaxError>* errors) : errors_(errors) {}

  // protobuf counts lines and columns from 0. It reports each byte that is not ASCII; a word or a
  // quotation mark of another alphabet is one error here.
  void AddError(int line, int column, const std::string& message) override {
    if (Full()) return;
    const bool foreign = absl::StartsWith(message, "Interpreting non ascii codepoint");
    if (foreign && line == foreign_line_) return;
    if (foreign) foreign_line_ = line;
    errors_->push_back(
        {{line + 1, column + 1},
         foreign ? "only text in quotes and comments may go beyond ASCII" : message});
  }

  bool Full() const { return errors_->size() >= kMaxSyntaxErrors; }

 private:
  std::vector<SyntaxError>* errors_;
  int foreign_line_ = -1;  // the last line with bytes that are not ASCII
};

class SyntaxParser {
 public:
  SyntaxParser(absl::string_view text, std::vector<SyntaxError>* errors)
      : stream_(text.data(), static_cast<int>(text.size())),
        errors_(errors),
        tokenizer_(&stream_, &errors_) {
    tokenizer_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokenizer_.set_allow_f_after_float(true);
    tokenizer_.set_require_space_after_number(false);
    tokenizer_.Next();
  }

  void ParseFile(std::vector<SyntaxField>* fields) {
    while (!AtEnd()) {
      ParseFields(/*depth=*/0, fields);
      if (AtEnd()) return;
      Error(absl::StrCat("'", Token().text, "' closes nothing"));
      tokenizer_.Next();
    }
  }

 private:
  const Tokenizer::Token& Token() const { return tokenizer_.current(); }
  bool AtEnd() const { return Token().type == Tokenizer::TYPE_END || errors_.Full(); }
  bool At(absl::string_view symbol) const {
    return Token().type == Tokenizer::TYPE_SYMBOL && Token().text == symbol;
  }
  bool AtClosing() const { return At("}") || At(">"); }
  TextPosition Here() const { return {Token().line + 1, Token().column + 1}; }
  void Error(const std::string& message) {
    errors_.AddError(Token().line, Token().column, message);
  }

  bool Take(absl::string_view symbol) {
    if (!At(symbol)) return false;
    tokenizer_.Next();
    return true;
  }

  std::string Found() const {
    return Token().type == Tokenizer::TYPE_END ? "the end of the text"
                                               : absl::StrCat("'", Token().text, "'");
  }

  // Parses fields up to a closing brace or the end.
  void ParseFields(int depth, std::vector<SyntaxField>* fields) {
    while (!AtEnd() && !AtClosing()) {
      const int line = Token().line;
      SyntaxField field;
      if (ParseField(depth, &field)) {
        fields->push_back(std::move(field));
        if (!Take(",")) Take(";");
      } else {
        SkipLine(line);
      }
    }
  }

  bool ParseField(int depth, SyntaxField* field) {
    field->name = Token().text;
    field->position = Here();
    if (Token().type != Tokenizer::TYPE_IDENTIFIER) {
      Error(absl::StrCat("expected the name of a field, found ", Found()));
      return false;
    }
    tokenizer_.Next();
    const bool colon = Take(":");
    if (At("{") || At("<")) return ParseMessage(depth, field);
    if (!colon) {
      Error(absl::StrCat("expected ':' or '{' after ", field->name, ", found ", Found()));
      return false;
    }
    return At("[") ? ParseList(field) : ParseValue(field);
  }

  bool ParseMessage(int depth, SyntaxField* field) {
    if (depth == kMaxDepth) {
      Error("messages are nested too deep");
      SkipBraces();
      return false;
    }
    const TextPosition opened = Here();
    const absl::string_view closing = At("{") ? "}" : ">";
    tokenizer_.Next();
    field->is_message = true;
    ParseFields(depth + 1, &field->fields);
    if (!Take(closing)) {
      Error(absl::StrCat("expected '", closing, "' for ", field->name, " opened in line ",
                         opened.line, ", found ", Found()));
    }
    return true;  // the fields inside are checked all the same
  }

  bool ParseList(SyntaxField* field) {
    field->is_list = true;
    tokenizer_.Next();
    if (Take("]")) return true;
    while (ParseValue(field)) {
      if (Take("]")) return true;
      if (!Take(",")) {
        Error(absl::StrCat("expected ',' or ']' in the list ", field->name, ", found ", Found()));
        return false;
      }
    }
    return false;
  }

  // Parses a number or a name, either with a sign, or strings side by side.
  bool ParseValue(SyntaxField* field) {
    std::string value;
    if (Take("-")) value = "-";
    if (Token().type == Tokenizer::TYPE_STRING && value.empty()) {
      for (; Token().type == Tokenizer::TYPE_STRING; tokenizer_.Next()) {
        absl::StrAppend(&value, value.empty() ? "" : " ", Token().text);
      }
    } else if (Token().type == Tokenizer::TYPE_INTEGER || Token().type == Tokenizer::TYPE_FLOAT ||
               Token().type == Tokenizer::TYPE_IDENTIFIER) {
      value += Token().text;
      tokenizer_.Next();
    } else {
      Error(absl::StrCat("expected a value for ", field->name, ", found ", Found()));
      return false;
    }
    field->values.push_back(std::move(value));
    return true;
  }

  // Skips the rest of the line in which a field is wrong, but not the end of the message around it.
  void SkipLine(int line) {
    while (!AtEnd() && Token().line == line && !AtClosing()) {
      if (At("{") || At("<")) {
        SkipBraces();
      } else {
        tokenizer_.Next();
      }
    }
  }

  void SkipBraces() {
    int open = 0;
    do {
      if (At("{") || At("<")) ++open;
      if (AtClosing()) --open;
      tokenizer_.Next();
    } while (open > 0 && !AtEnd());
  }

  ArrayInputStream stream_;
  ErrorList errors_;
  mutable Tokenizer tokenizer_;  // its current() is not const
};

}  // namespace

SyntaxTree ParseSyntax(absl::string_view text) {
  SyntaxTree tree;
  if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    tree.errors.push_back({{1, 1}, "the text is longer than 2 GiB"});
    return tree;
  }
  SyntaxParser(text, &tree.errors).ParseFile(&tree.fields);
  return tree;
}

}  // namespace megatron
