// Whatever the text: an error that says something, or a table that is written and read back whole.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/plan/csv_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto table =
      megatron::ParseCsv(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!table.ok()) {
    CHECK(!table.status().message().empty());
    return 0;
  }
  for (const auto& row : table->rows) CHECK_EQ(row.size(), table->columns.size());
  const auto again = megatron::ParseCsv(megatron::FormatCsv(*table));
  CHECK(again.ok()) << again.status();
  CHECK(again->columns == table->columns);
  CHECK(again->rows == table->rows);
  return 0;
}
