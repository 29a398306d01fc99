// What the profile of a run's ranks tells (docs/operations.md, "Profiling"): when the parts of a
// step ran, where its time went, what ranks told each other, and how much memory they held.
//
// Any bytes may be in the files, which are Trace Event Format as trace_json.h writes it.
#ifndef MEGATRON_TOOLS_REPORT_RUN_PROFILE_H_
#define MEGATRON_TOOLS_REPORT_RUN_PROFILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "tools/pictures/plot_curve.h"

namespace megatron::report {

// A part of a step. Times are milliseconds since the first step that was profiled began.
struct StepPart {
  std::string name;  // "forward 0"
  std::string kind;  // "forward"; a call with other ranks is "communication tp"
  double begin = 0, end = 0;
  bool inside = false;  // lies in another part
};

// Calls of one operation in the groups of one axis.
struct CommunicationTotals {
  int64_t calls = 0;
  double bytes = 0;         // given by this rank
  double milliseconds = 0;  // waiting for other ranks included
};

struct RankProfile {
  int64_t rank = 0;
  int64_t steps = 0;
  // Milliseconds of a step by kind of part. A call with other ranks counts as communication only,
  // so that all kinds together are the step. What no part covers is "other".
  std::map<std::string, double> milliseconds;
  std::vector<StepPart> parts;  // those of the last step, in the order in which they began
  // By operation and axis: {"all-reduce", "tp"}.
  std::map<std::pair<std::string, std::string>, CommunicationTotals> communication;
  std::map<std::string, PlotPoints> counters;  // (milliseconds, value) by name
};

// Reads a file's text. InvalidArgument if it is no trace, or has no whole step.
absl::StatusOr<RankProfile> ParseRankProfile(absl::string_view text);

struct RunProfile {
  std::vector<RankProfile> ranks;     // ascending
  std::vector<std::string> warnings;  // files that could not be read, and why
};

// Reads the profiles in a folder, which may be missing.
RunProfile ReadRunProfile(FileSystem& fs, const std::string& directory);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_RUN_PROFILE_H_
