// A report as data: sections of sentences, tables and pictures, which html.h and markdown.h write.
#ifndef MEGATRON_TOOLS_REPORT_DOCUMENT_H_
#define MEGATRON_TOOLS_REPORT_DOCUMENT_H_

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace megatron::report {

struct Paragraph {
  std::string text;
};

struct TableCell {
  TableCell(std::string text, int heat = 0) : text(std::move(text)), heat(heat) {}
  TableCell(const char* text) : text(text) {}

  std::string text;
  // 0: plain; else from 1 to kMostHeat, how far the value is above that of others.
  int heat = 0;
};
inline constexpr int kMostHeat = 4;

// The first column names the rows.
struct Table {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<TableCell>> rows;
  bool numbers = true;  // the other columns are numbers, which stand below each other by their ends
  std::string note;     // a sentence below it
};

struct LegendEntry {
  std::string key;  // SVG: how it looks
  std::string text;
};

struct Figure {
  std::string title;
  std::string svg;
  std::vector<LegendEntry> legend;
  std::string caption;          // sentences that say what there is to see
  Table values;                 // the same in numbers
  bool wide = false;            // as wide as the page, and scrolled where that is narrow
  bool values_in_text = false;  // Markdown has its values
};

struct Preformatted {
  std::string title;
  std::string text;
};

// Markdown has the sentences and tables alone, and the values of some pictures.
using Block = std::variant<Paragraph, Table, Figure, Preformatted>;

struct Section {
  std::string id;  // letters, digits and '-'
  std::string title;
  std::vector<Block> blocks;
};

struct Tile {
  std::string label, value, note;
};

struct Document {
  std::string title;
  std::string subtitle;
  std::vector<Tile> tiles;
  std::vector<Section> sections;           // those without blocks are left out
  std::string program = "//tools:report";  // that makes it
};

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_DOCUMENT_H_
