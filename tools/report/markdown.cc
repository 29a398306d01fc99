#include "tools/report/markdown.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "tools/pictures/markup_text.h"

namespace megatron::report {
namespace {

// Returns the text as one line that Markdown shows as it is.
std::string Line(absl::string_view text) {
  return absl::StrReplaceAll(MarkupText(text), {{"\n", " "},
                                                {"\\", "\\\\"},
                                                {"|", "\\|"},
                                                {"*", "\\*"},
                                                {"`", "\\`"},
                                                {"[", "\\["},
                                                {"]", "\\]"},
                                                {"~", "\\~"},
                                                {"&#39;", "'"},
                                                {"&quot;", "\""}});
}

class Writer {
 public:
  std::string Write(const Document& document) && {
    Append("# ", Line(document.title), "\n\n", Line(document.subtitle), "\n");
    for (const Section& section : document.sections) {
      section_ = section.title;
      for (const Block& block : section.blocks)
        std::visit([this](const auto& b) { WriteBlock(b); }, block);
    }
    return std::move(text_);
  }

 private:
  template <typename... Parts>
  void Append(const Parts&... parts) {
    absl::StrAppend(&text_, parts...);
  }

  // A section of pictures alone has no heading.
  void AppendHeading() {
    if (!section_.empty()) Append("\n## ", Line(section_), "\n");
    section_ = "";
  }

  void WriteBlock(const Paragraph& paragraph) {
    AppendHeading();
    Append("\n", Line(paragraph.text), "\n");
  }

  void WriteBlock(const Table& table) {
    AppendHeading();
    Append("\n**", Line(table.caption), "**\n\n|");
    for (const std::string& column : table.columns) Append(" ", Line(column), " |");
    Append("\n|");
    for (size_t i = 0; i < table.columns.size(); ++i)
      Append(table.numbers && i > 0 ? "---:|" : "---|");
    Append("\n");
    for (const std::vector<TableCell>& row : table.rows) {
      Append("|");
      for (const TableCell& cell : row) Append(" ", Line(cell.text), " |");
      Append("\n");
    }
    if (!table.note.empty()) Append("\n", Line(table.note), "\n");
  }

  void WriteBlock(const Figure& figure) {
    if (figure.values_in_text) WriteBlock(figure.values);
  }
  void WriteBlock(const Preformatted&) {}

  std::string text_;
  std::string section_;  // its title, until it is written
};

}  // namespace

std::string MarkdownOf(const Document& document) { return Writer().Write(document); }

}  // namespace megatron::report
