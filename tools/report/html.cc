#include "tools/report/html.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/pictures/markup_text.h"
#include "tools/pictures/picture_style.h"

namespace megatron::report {
namespace {

constexpr absl::string_view kStyle = R"(
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,Helvetica,Arial,sans-serif}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:44px 0 12px;padding-top:10px;border-top:1px solid var(--grid)}
h3{font-size:1rem;margin:0 0 4px}
p{max-width:75ch;margin:8px 0}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,[tabindex]:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-999px}
.skip:focus{left:12px;top:12px;background:var(--ground);padding:6px 12px;z-index:1}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.quiet{color:var(--muted)}
nav ul{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0;margin:16px 0 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:10px;margin:20px 0 0}
.tiles div{border:1px solid var(--grid);border-radius:8px;padding:10px 14px}
.tiles dt{color:var(--muted);font-size:.85rem}
.tiles dd{margin:0}
.tiles .value{font-size:1.45rem;line-height:1.3;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.tiles .note{color:var(--muted);font-size:.85rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:26px 30px;margin:18px 0}
figure{margin:0;min-width:0}
figure.wide{grid-column:1/-1}
figure svg:not(.key){display:block;width:100%;height:auto}
figure.wide .scroll svg{min-width:760px}
figcaption{color:var(--muted);font-size:.88rem;margin-top:2px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;padding:0;margin:0 0 4px;font-size:.85rem;color:var(--muted)}
.key{vertical-align:middle;margin-right:6px}
details{margin:4px 0;font-size:.88rem}
summary{cursor:pointer;color:var(--link);width:fit-content}
.scroll{overflow-x:auto}
.tables{display:flex;flex-wrap:wrap;gap:0 60px}
.table{min-width:0;max-width:100%}
table{border-collapse:collapse;font-size:.9rem;margin:8px 0}
caption{text-align:left;font-weight:600;padding:6px 0}
th,td{padding:4px 14px 4px 0;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top;overflow-wrap:anywhere}
thead th{color:var(--muted);font-weight:500;white-space:nowrap}
tbody th{font-weight:400}
.numbers td,.numbers thead th:not(:first-child){text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.h1,td.h2,td.h3,td.h4{padding-left:8px}
.h1{background:var(--h1)}.h2{background:var(--h2)}.h3{background:var(--h3)}.h4{background:var(--h4)}
pre{overflow:auto;max-height:32rem;padding:12px;border:1px solid var(--grid);border-radius:8px;font-size:.8rem}
footer{padding-top:24px;padding-bottom:40px}
:root{--link:#005a9c;--h1:#fff1d6;--h2:#ffe0a8;--h3:#ffc98a;--h4:#ffa96b}
@media (prefers-color-scheme:dark){:root{--link:#7cc0f5;--h1:#33291a;--h2:#4a3517;--h3:#633f14;--h4:#844711}}
@media print{:root{--link:#005a9c;--h1:#fff1d6;--h2:#ffe0a8;--h3:#ffc98a;--h4:#ffa96b}nav{display:none}figure{break-inside:avoid}}
)";

class Writer {
 public:
  explicit Writer(const Document& document) : document_(document) {}

  std::string Write() && {
    Append("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
           "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ",
           "style-src 'unsafe-inline'\">\n",
           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
           MarkupText(document_.title), "</title>\n<style>\n", PageStyle(), kStyle,
           "</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the content</a>\n");
    WriteHeader();
    Append("<main id=\"main\">\n");
    for (const Section& section : document_.sections) {
      if (!section.blocks.empty()) WriteSection(section);
    }
    Append("</main>\n<footer class=\"quiet\">Made by <code>bazel run ", document_.program,
           "</code>. The page needs no network and no script.</footer>\n</body>\n</html>\n");
    return std::move(html_);
  }

 private:
  template <typename... Parts>
  void Append(const Parts&... parts) {
    absl::StrAppend(&html_, parts...);
  }

  void WriteHeader() {
    Append("<header>\n<h1>", MarkupText(document_.title), "</h1>\n<p class=\"quiet\">",
           MarkupText(document_.subtitle), "</p>\n");
    if (!document_.tiles.empty()) {
      Append("<dl class=\"tiles\">\n");
      for (const Tile& tile : document_.tiles) {
        Append("<div><dt>", MarkupText(tile.label), "</dt><dd class=\"value\">",
               MarkupText(tile.value), "</dd>");
        if (!tile.note.empty()) Append("<dd class=\"note\">", MarkupText(tile.note), "</dd>");
        Append("</div>\n");
      }
      Append("</dl>\n");
    }
    Append("<nav aria-label=\"Sections\"><ul>\n");
    for (const Section& section : document_.sections) {
      if (section.blocks.empty()) continue;
      Append("<li><a href=\"#", section.id, "\">", MarkupText(section.title), "</a></li>\n");
    }
    Append("</ul></nav>\n</header>\n");
  }

  void WriteSection(const Section& section) {
    Append("<section aria-labelledby=\"", section.id, "\">\n<h2 id=\"", section.id, "\">",
           MarkupText(section.title), "</h2>\n");
    absl::string_view group;  // the class of what stands beside each other
    for (const Block& block : section.blocks) {
      const absl::string_view own = std::holds_alternative<Figure>(block)  ? "charts"
                                    : std::holds_alternative<Table>(block) ? "tables"
                                                                           : "";
      if (own != group && !group.empty()) Append("</div>\n");
      if (own != group && !own.empty()) Append("<div class=\"", own, "\">\n");
      group = own;
      std::visit([this](const auto& b) { WriteBlock(b); }, block);
    }
    if (!group.empty()) Append("</div>\n");
    Append("</section>\n");
  }

  void WriteBlock(const Paragraph& paragraph) {
    Append("<p>", MarkupText(paragraph.text), "</p>\n");
  }

  void WriteBlock(const Table& table) {
    // A region that scrolls is reached by the keyboard, so it needs a name.
    Append("<div class=\"table\">\n<div class=\"scroll\" role=\"region\" tabindex=\"0\" ",
           "aria-label=\"", MarkupText(table.caption), "\">\n<table",
           table.numbers ? " class=\"numbers\"" : "", ">\n<caption>", MarkupText(table.caption),
           "</caption>\n<thead><tr>");
    for (const std::string& column : table.columns)
      Append("<th scope=\"col\">", MarkupText(column), "</th>");
    Append("</tr></thead>\n<tbody>\n");
    for (const std::vector<TableCell>& row : table.rows) {
      Append("<tr>");
      for (size_t i = 0; i < row.size(); ++i) WriteCell(row[i], i == 0);
      Append("</tr>\n");
    }
    Append("</tbody>\n</table>\n</div>\n");
    if (!table.note.empty()) Append("<p class=\"quiet\">", MarkupText(table.note), "</p>\n");
    Append("</div>\n");
  }

  void WriteCell(const TableCell& cell, bool names_row) {
    if (names_row) {
      Append("<th scope=\"row\">", MarkupText(cell.text), "</th>");
    } else if (cell.heat > 0) {
      Append("<td class=\"h", cell.heat, "\">", MarkupText(cell.text), "</td>");
    } else {
      Append("<td>", MarkupText(cell.text), "</td>");
    }
  }

  void WriteBlock(const Figure& figure) {
    Append("<figure", figure.wide ? " class=\"wide\"" : "", ">\n<h3>", MarkupText(figure.title),
           "</h3>\n");
    if (!figure.legend.empty()) {
      Append("<ul class=\"legend\">");
      for (const LegendEntry& entry : figure.legend)
        Append("<li>", entry.key, MarkupText(entry.text), "</li>");
      Append("</ul>\n");
    }
    if (figure.wide) {
      Append("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"",
             MarkupText(figure.title), "\">\n", figure.svg, "</div>\n");
    } else {
      Append(figure.svg);
    }
    if (!figure.caption.empty())
      Append("<figcaption>", MarkupText(figure.caption), "</figcaption>\n");
    if (!figure.values.rows.empty()) {
      Append("<details><summary>Numbers<span class=\"hidden\"> of ", MarkupText(figure.title),
             "</span></summary>\n");
      WriteBlock(figure.values);
      Append("</details>\n");
    }
    Append("</figure>\n");
  }

  void WriteBlock(const Preformatted& block) {
    Append("<details><summary>", MarkupText(block.title), "</summary>\n<pre tabindex=\"0\">",
           MarkupText(block.text), "</pre>\n</details>\n");
  }

  const Document& document_;
  std::string html_;
};

}  // namespace

std::string HtmlOf(const Document& document) { return Writer(document).Write(); }

}  // namespace megatron::report
