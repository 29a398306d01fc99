#include "tools/pictures/picture_style.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tools/pictures/markup_text.h"

namespace megatron {
namespace {

// The colors of curves are Okabe and Ito's, darker where a line would be too pale on white, and
// lighter on a dark ground.
constexpr std::pair<absl::string_view, absl::string_view> kLight[] = {
    {"--ground", "#ffffff"}, {"--ink", "#1d2126"}, {"--muted", "#59626c"}, {"--grid", "#e3e6ea"},
    {"--frame", "#8a929b"},  {"--s0", "#0072b2"},  {"--s1", "#d55e00"},    {"--s2", "#008a65"},
    {"--s3", "#b9569b"},     {"--s4", "#b57b00"},  {"--s5", "#3d93c9"},    {"--on-s0", "#ffffff"},
};
constexpr std::pair<absl::string_view, absl::string_view> kDark[] = {
    {"--ground", "#15191e"}, {"--ink", "#e8eaed"}, {"--muted", "#a3adb8"}, {"--grid", "#2c333b"},
    {"--frame", "#66717d"},  {"--s0", "#4ba7e0"},  {"--s1", "#ff8a42"},    {"--s2", "#2fc79b"},
    {"--s3", "#e29cc3"},     {"--s4", "#f2b632"},  {"--s5", "#8fd0f5"},    {"--on-s0", "#000000"},
};

constexpr absl::string_view kRules =
    "svg text{fill:var(--muted);font:12px system-ui,Helvetica,Arial,sans-serif}"
    "svg .title{fill:var(--ink);font-size:17px}"
    "svg .inside{fill:#000;font-size:11px}svg .f0+.inside{fill:var(--on-s0)}"
    ".grid{stroke:var(--grid);fill:none}"
    ".frame{stroke:var(--frame);fill:none}"
    ".mark{stroke:var(--ink);stroke-dasharray:2 4}"
    ".ground{fill:var(--ground)}"
    ".idle{fill:var(--grid)}"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".raw{fill:none;stroke-width:1;stroke-linejoin:round;opacity:.35}"
    ".joined{fill:none;stroke-width:1.5;stroke-dasharray:5 4}"
    ".dot{fill:var(--ground);stroke-width:1.5}"
    ".d1{stroke-dasharray:8 3}.d2{stroke-dasharray:3 2}.d3{stroke-dasharray:9 3 2 3}"
    ".d4{stroke-dasharray:14 4}.d5{stroke-dasharray:2 3}";

std::string Rules() {
  std::string rules(kRules);
  for (int i = 0; i < kPictureColors; ++i)
    absl::StrAppend(&rules, ".c", i, "{stroke:var(--s", i, ")}.f", i, "{fill:var(--s", i, ")}");
  return rules;
}

template <size_t kCount>
std::string Declarations(const std::pair<absl::string_view, absl::string_view> (&colors)[kCount]) {
  std::string text;
  for (const auto& [name, value] : colors) absl::StrAppend(&text, name, ":", value, ";");
  return text;
}

// Programs that draw SVG files need not know variables.
std::string RulesWithLightColors() {
  std::string rules = Rules();
  for (const auto& [name, value] : kLight)
    rules = absl::StrReplaceAll(rules, {{absl::StrCat("var(", name, ")"), value}});
  return rules;
}

}  // namespace

std::string PictureClass(char kind, int number) {
  return absl::StrCat(std::string(1, kind), number % kPictureColors);
}

std::string PageStyle() {
  return absl::StrCat(":root{color-scheme:light dark;", Declarations(kLight), "}\n",
                      "@media (prefers-color-scheme:dark){:root{", Declarations(kDark), "}}\n",
                      "@media print{:root{", Declarations(kLight), "}}\n", Rules(), "\n");
}

std::string BeginPictureAlone(const PictureFrame& frame) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
      "role=\"img\">\n<title>%s</title>\n<desc>%s</desc>\n<style>%s</style>\n"
      "<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n",
      frame.width, frame.height, frame.width, frame.height, MarkupText(frame.title),
      MarkupText(frame.description), RulesWithLightColors(), frame.width, frame.height);
}

std::string BeginPictureInPage(const PictureFrame& frame, absl::string_view id) {
  return absl::StrFormat(
      "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-title\" "
      "aria-describedby=\"%s-desc\">\n<title id=\"%s-title\">%s</title>\n<desc id=\"%s-desc\">%s"
      "</desc>\n",
      frame.width, frame.height, id, id, id, MarkupText(frame.title), id,
      MarkupText(frame.description));
}

}  // namespace megatron
