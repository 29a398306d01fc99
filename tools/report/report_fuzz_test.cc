// Tests that no metrics, no profile and no times of ranks crash the report, and that its pages keep
// what they are given as text.
//
// The input is metrics.jsonl, perhaps followed by a zero byte and a trace or the times of ranks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "tools/report/html.h"
#include "tools/report/markdown.h"
#include "tools/report/read_run.h"
#include "tools/report/report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  std::vector<megatron::report::RunRecord> runs(1);
  runs[0].name = "fuzz";
  runs[0].metrics = megatron::report::ParseRunMetrics(input.substr(0, end));
  const absl::StatusOr<megatron::report::RankProfile> profile =
      megatron::report::ParseRankProfile(input.substr(std::min(end + 1, size)));
  if (profile.ok()) runs[0].profile.ranks = {*profile, *profile};
  const auto ranks = megatron::report::ParseRunRanks(input.substr(std::min(end + 1, size)));
  if (ranks.ok()) runs[0].ranks = *ranks;
  runs[0].config = megatron::report::ParseRunConfig(input);
  if (size % 2 == 1) runs.push_back(runs[0]);
  const megatron::report::Document report = megatron::report::ReportOf(runs);
  const std::string page = megatron::report::HtmlOf(report);
  CHECK(!absl::StrContains(page, "<script")) << page;
  for (const char* attribute : {" x=", " y=", " cx=", " cy=", " width=", " height="}) {
    for (const char* value : {"\"nan", "\"-nan", "\"inf", "\"-inf"})
      CHECK(!absl::StrContains(page, absl::StrCat(attribute, value))) << page;
  }
  CHECK(!megatron::report::MarkdownOf(report).empty());
  return 0;
}
