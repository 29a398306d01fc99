// Everything that the files of a run tell about it.
#ifndef MEGATRON_TOOLS_REPORT_READ_RUN_H_
#define MEGATRON_TOOLS_REPORT_READ_RUN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/pipeline/timeline_text.h"
#include "tools/report/run_config.h"
#include "tools/report/run_events.h"
#include "tools/report/run_metrics.h"
#include "tools/report/run_profile.h"
#include "tools/report/run_ranks.h"

namespace megatron::report {

// The newest checkpoint.
struct RunCheckpoint {
  int64_t iteration = 0;
  std::string run_id;
  int64_t parameters = 0;
  int64_t bytes = 0;
  int64_t vocabulary = 0;  // rows of the table of embeddings; 0: there is none
};

// Memory that was planned for each rank of a pipeline stage: bytes by kind.
using StageMemory = std::map<std::string, int64_t>;

struct RunRecord {
  std::string name;  // words for it, unlike those of the other runs
  RunMetrics metrics;
  RunEvents events;
  RunConfig config;
  RunProfile profile;
  std::optional<RunCheckpoint> checkpoint;
  std::optional<MeasuredSchedule> pipeline;
  std::optional<RunRanks> ranks;            // unset for a run of one rank
  std::vector<StageMemory> planned_memory;  // by pipeline stage; empty if it is not known
  std::vector<std::string> warnings;        // sentences: files that could not be read, and why
};

// Reads a run. `path` is the directory that checkpoint.save named, or a metrics.jsonl; the other
// files are found beside it, or where the configuration says. Fails if there are no metrics; all
// other files may be missing or damaged.
absl::StatusOr<RunRecord> ReadRun(FileSystem& fs, const std::string& path);

// Reads several runs, and names them by the parts of their paths in which they differ.
absl::StatusOr<std::vector<RunRecord>> ReadRuns(FileSystem& fs,
                                                const std::vector<std::string>& paths);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_READ_RUN_H_
