#include "megatron/plan/csv_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

struct Record {
  std::vector<std::string> cells;
  int line = 0;
};

absl::Status ErrorAt(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

// Takes a cell from the front of `text`, up to the separator behind it.
absl::StatusOr<std::string> TakeCell(absl::string_view* text, int* line) {
  std::string cell;
  if (text->empty() || text->front() != '"') {
    const size_t end = std::min(text->find_first_of(",\n"), text->size());
    cell = std::string(text->substr(0, end));
    text->remove_prefix(end);
    if (!cell.empty() && cell.back() == '\r') cell.pop_back();
    return cell;
  }
  const int opened = *line;
  text->remove_prefix(1);
  while (!text->empty()) {
    const char c = text->front();
    text->remove_prefix(1);
    if (c == '\n') ++*line;
    if (c != '"') {
      cell.push_back(c);
    } else if (!text->empty() && text->front() == '"') {
      cell.push_back('"');
      text->remove_prefix(1);
    } else {
      if (!text->empty() && text->front() == '\r') text->remove_prefix(1);
      if (text->empty() || text->front() == ',' || text->front() == '\n') return cell;
      return ErrorAt(*line, "a quote ends inside a cell");
    }
  }
  return ErrorAt(opened, "a quote is never closed");
}

absl::StatusOr<std::vector<Record>> ReadRecords(absl::string_view text) {
  std::vector<Record> records;
  int line = 1;
  while (!text.empty()) {
    Record record{{}, line};
    for (;;) {
      MEGATRON_ASSIGN_OR_RETURN(std::string cell, TakeCell(&text, &line));
      record.cells.push_back(std::move(cell));
      if (text.empty()) break;
      const char separator = text.front();
      text.remove_prefix(1);
      if (separator == '\n') break;
    }
    ++line;
    if (record.cells.size() > 1 || !record.cells[0].empty()) records.push_back(std::move(record));
  }
  return records;
}

std::string Quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (char c : cell) {
    if (c == '"') quoted.push_back('"');
    quoted.push_back(c);
  }
  return quoted + "\"";
}

}  // namespace

absl::StatusOr<CsvTable> ParseCsv(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(std::vector<Record> records, ReadRecords(text));
  if (records.empty()) return absl::InvalidArgumentError("line 1: there is no header");
  CsvTable table;
  table.columns = std::move(records[0].cells);
  std::set<std::string> seen;
  for (const std::string& column : table.columns) {
    if (column.empty()) return ErrorAt(records[0].line, "a column has no name");
    if (!seen.insert(column).second) {
      return ErrorAt(records[0].line, absl::StrCat("there are two columns '", column, "'"));
    }
  }
  for (size_t i = 1; i < records.size(); ++i) {
    if (records[i].cells.size() != table.columns.size()) {
      return ErrorAt(records[i].line, absl::StrCat("has ", records[i].cells.size(),
                                                   " cells, the header ", table.columns.size()));
    }
    table.rows.push_back(std::move(records[i].cells));
  }
  return table;
}

std::string FormatCsv(const CsvTable& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    return absl::StrCat(
        absl::StrJoin(cells, ",",
                      [](std::string* out, const std::string& cell) { out->append(Quoted(cell)); }),
        "\n");
  };
  std::string text = line(table.columns);
  for (const auto& row : table.rows) text += line(row);
  return text;
}

}  // namespace megatron
