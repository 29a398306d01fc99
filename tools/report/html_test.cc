#include "tools/report/html.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HtmlTest, TextOfAnyOriginIsEscaped) {
  const std::string evil = "<script>alert(1)</script>\"'&";
  Document document;
  document.title = document.subtitle = evil;
  document.tiles = {{evil, evil, evil}};
  Table table = {evil, {evil, evil}, {{evil, TableCell(evil, 3)}}, true, evil};
  Figure figure;
  figure.title = figure.caption = evil;
  figure.legend = {{"", evil}};
  figure.values = table;
  figure.wide = true;
  document.sections = {{"one", evil, {Paragraph{evil}, table, figure, Preformatted{evil, evil}}}};
  const std::string page = HtmlOf(document);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), HasSubstr("&lt;script&gt;")));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
}

TEST(HtmlTest, ThePageNeedsNothingElse) {
  Document document;
  document.sections = {{"one", "One", {Paragraph{"text"}}}, {"two", "Two", {}}};
  const std::string page = HtmlOf(document);
  EXPECT_THAT(page, AllOf(HasSubstr("default-src 'none'"), Not(HasSubstr("<link")),
                          Not(HasSubstr("src=\"")), Not(HasSubstr("url("))));
  EXPECT_THAT(page, AllOf(HasSubstr("<html lang=\"en\">"), HasSubstr("prefers-color-scheme:dark")));
  EXPECT_THAT(page, AllOf(HasSubstr("<h2 id=\"one\">One</h2>"), HasSubstr("href=\"#one\""),
                          Not(HasSubstr("Two"))));
}

TEST(HtmlTest, ATableTellsWhatItsCellsAreOf) {
  Document document;
  document.sections = {
      {"one", "One", {Table{"Times", {"rank", "ms"}, {{"0", TableCell("5", 2)}}, true, ""}}}};
  const std::string page = HtmlOf(document);
  EXPECT_THAT(page,
              AllOf(HasSubstr("<caption>Times</caption>"), HasSubstr("<th scope=\"col\">ms</th>"),
                    HasSubstr("<th scope=\"row\">0</th><td class=\"h2\">5</td>")));
}

}  // namespace
}  // namespace megatron::report
