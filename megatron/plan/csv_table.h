// Reads comma-separated tables with a header (RFC 4180: cells in double quotes may have commas,
// line ends and doubled quotes).
#ifndef MEGATRON_PLAN_CSV_TABLE_H_
#define MEGATRON_PLAN_CSV_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as `columns`
};

// Returns kInvalidArgument with the line at fault: a row longer or shorter than the header, a
// column without a name or named twice, an open quote, no header. Lines that are empty are skipped.
absl::StatusOr<CsvTable> ParseCsv(absl::string_view text);

// Writes a table that ParseCsv reads back.
std::string FormatCsv(const CsvTable& table);

}  // namespace megatron

#endif  // MEGATRON_PLAN_CSV_TABLE_H_
