#include "tools/report/markdown.h"

#include "gtest/gtest.h"

namespace megatron::report {
namespace {

TEST(MarkdownTest, HasSentencesAndTables) {
  Document document;
  document.title = "run";
  document.subtitle = "A run.";
  document.sections = {
      {"a", "Numbers", {Table{"All", {"number", "run"}, {{"lm loss", "0.5"}}, true, "A note."}}},
      {"b", "Pictures", {Figure()}},
      {"c", "Errors", {Paragraph{"No step was skipped."}}}};
  EXPECT_EQ(MarkdownOf(document),
            "# run\n\nA run.\n\n## Numbers\n\n**All**\n\n| number | run |\n|---|---:|\n"
            "| lm loss | 0.5 |\n\nA note.\n\n## Errors\n\nNo step was skipped.\n");
}

TEST(MarkdownTest, TextOfAnyOriginStaysText) {
  Document document;
  document.title = "a*b|c`d[e](f)<img>\nnext";
  EXPECT_EQ(MarkdownOf(document), "# a\\*b\\|c\\`d\\[e\\](f)&lt;img&gt; next\n\n\n");
}

}  // namespace
}  // namespace megatron::report
