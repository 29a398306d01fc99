#include "tools/from_megatron/findings.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/from_megatron/config_builder.h"

namespace megatron {
namespace {

absl::string_view Heading(Effect effect) {
  switch (effect) {
    case Effect::kResults:
      return "It trains something else: these change what is learned, and have no counterpart";
    case Effect::kToDo:
      return "To do";
    case Effect::kRounding:
      return "Results differ by rounding";
    case Effect::kSaid:
      return "Said in another way";
    case Effect::kDefault:
      return "Left to defaults that differ";
    case Effect::kSpeed:
      return "No counterpart; they change time, memory or what is written";
    case Effect::kNothing:
      return "Nothing to do";
  }
  return "";
}

}  // namespace

std::string FindingsReport(const Findings& findings, const std::vector<std::string>& errors) {
  std::string report;
  if (!errors.empty()) {
    report += "\nThe programs refuse it:\n";
    for (const std::string& error : errors) absl::StrAppend(&report, "  ", OneLine(error), "\n");
  }
  const Finding* last = nullptr;
  for (const Finding& finding : findings) {
    if (last == nullptr || last->effect != finding.effect)
      absl::StrAppend(&report, "\n", Heading(finding.effect), ":\n");
    absl::StrAppend(&report, "  ", finding.where.empty() ? "" : OneLine(finding.where) + ": ",
                    OneLine(finding.subject), ": ", finding.text, "\n");
    last = &finding;
  }
  return report;
}

}  // namespace megatron
