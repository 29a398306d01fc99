#include "megatron/plan/csv_table.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(CsvTableTest, ReadsBackWhatItWrites) {
  CsvTable table;
  table.columns = {"a", "b"};
  table.rows = {{"1", "x, \"y\""}, {"", "two\nlines"}};
  const auto again = ParseCsv(FormatCsv(table));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->columns, table.columns);
  EXPECT_EQ(again->rows, table.rows);
}

TEST(CsvTableTest, RefusesWhatIsNoTable) {
  for (const char* text : {"", "\n", "a,\n1,2", "a,a\n1,2", "a,b\n1", "a\n\"open", "a\n\"x\"y"}) {
    EXPECT_FALSE(ParseCsv(text).ok()) << text;
  }
}

TEST(CsvTableTest, ErrorsNameTheLine) {
  EXPECT_EQ(ParseCsv("a,b\n1,2\n3\n").status().message(), "line 3: has 1 cells, the header 2");
}

}  // namespace
}  // namespace megatron
