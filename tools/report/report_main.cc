// Writes a report about one run, or several side by side.
//
//   report run
//   report --output=compare.html small large

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "tools/common/tool_main.h"
#include "tools/report/html.h"
#include "tools/report/markdown.h"
#include "tools/report/read_run.h"
#include "tools/report/report.h"

ABSL_FLAG(std::string, output, "report.html",
          "The page, whose name ends in .html; the text goes beside it, as .md.");

namespace megatron::report {
namespace {

absl::Status WriteReport(const std::vector<std::string>& paths) {
  if (paths.empty() || paths.size() > kMostRuns) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected from 1 to ", kMostRuns,
                     " runs: directories that checkpoint.save named, or files metrics.jsonl"));
  }
  const std::string page = absl::GetFlag(FLAGS_output);
  if (!absl::EndsWith(page, ".html"))
    return absl::InvalidArgumentError(absl::StrCat("--output=", page, " does not end in .html"));
  const std::string text = absl::StrCat(absl::StripSuffix(page, ".html"), ".md");
  FileSystem& fs = PosixFileSystem();
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<RunRecord> runs, AsInput(ReadRuns(fs, paths)));
  const Document report = ReportOf(runs);
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, page, HtmlOf(report)));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, text, MarkdownOf(report)));
  std::printf("wrote %s and %s\n", page.c_str(), text.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron::report

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Writes a report about runs: report [flags] RUN...",
                           megatron::report::WriteReport);
}
