#include "tools/pictures/markup_text.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(MarkupTextTest, EscapesWhatMeansSomethingInMarkup) {
  EXPECT_EQ(MarkupText("a < b & \"c\" > 'd'"), "a &lt; b &amp; &quot;c&quot; &gt; &#39;d&#39;");
  EXPECT_EQ(MarkupText("two\nlines, \xc3\xa4"), "two\nlines, \xc3\xa4");
}

TEST(MarkupTextTest, ReplacesWhatIsNoText) {
  EXPECT_EQ(MarkupText(absl::string_view("a\0b\x1b\x7f", 5)),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(MarkupText("\xc3"), "\xef\xbf\xbd");
  EXPECT_EQ(MarkupText("\xff<"), "\xef\xbf\xbd&lt;");
}

}  // namespace
}  // namespace megatron
