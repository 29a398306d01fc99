#include "tools/report/read_run.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/train/metrics/rank_times_writer.h"
#include "tools/report/planned_memory.h"

namespace megatron::report {
namespace {

constexpr char kMetricsFile[] = "metrics.jsonl";
constexpr char kEmbedding[] = "embedding.word_embeddings.weight";

bool Exists(FileSystem& fs, const std::string& path) { return fs.Stat(path).ok(); }

bool IsDirectory(FileSystem& fs, const std::string& path) {
  absl::StatusOr<FileInfo> info = fs.Stat(path);
  if (info.ok() && info->type == FileType::kSymbolicLink) info = fs.Stat(path + "/.");
  return info.ok() && info->type == FileType::kDirectory;
}

std::string LastPart(const std::string& path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  return std::string(parts.back());
}

// Returns the place of what the run wrote: beside the metrics under its usual name, where the
// configuration says, or, if the run was moved, beside the metrics under the configured name.
std::string PlaceOf(FileSystem& fs, const std::string& directory, const std::string& usual,
                    const std::string& configured) {
  const std::string place = JoinPath(directory, usual);
  if (Exists(fs, place) || configured.empty()) return place;
  return Exists(fs, configured) ? configured : JoinPath(directory, LastPart(configured));
}

RunCheckpoint DescribeCheckpoint(const Manifest& manifest) {
  RunCheckpoint checkpoint;
  checkpoint.iteration = manifest.iteration;
  checkpoint.run_id = manifest.run_id;
  for (const ShardEntry& shard : manifest.shards) checkpoint.bytes += shard.bytes;
  for (const TensorEntry& tensor : manifest.tensors) {
    if (absl::StartsWith(tensor.name, "optimizer.state.")) continue;
    checkpoint.parameters += tensor.shape.numel();
    if (tensor.name == kEmbedding && tensor.shape.rank() == 2)
      checkpoint.vocabulary = tensor.shape[0];
  }
  return checkpoint;
}

// Reads the newest checkpoint's manifest and its configuration.
absl::Status ReadCheckpoint(FileSystem& fs, const std::string& directory, RunRecord* run) {
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found, FindLatestCheckpoint(fs, directory));
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader,
                            CheckpointReader::Open(fs, found.directory));
  for (const std::string& warning : found.warnings) run->warnings.push_back(warning + ".");
  run->checkpoint = DescribeCheckpoint(reader.manifest());
  const auto config = reader.manifest().strings.find("config");
  if (config != reader.manifest().strings.end()) run->config = ParseRunConfig(config->second);
  return absl::OkStatus();
}

absl::Status ReadPipeline(FileSystem& fs, const std::string& directory, RunRecord* run) {
  const std::string configured = run->config.config.logging().pipeline_timeline_file();
  if (configured.empty()) return absl::OkStatus();
  const std::string path = PlaceOf(fs, directory, LastPart(configured), configured);
  if (!Exists(fs, path)) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path));
  MEGATRON_ASSIGN_OR_RETURN(run->pipeline, ParseTimelineText(text));
  return absl::OkStatus();
}

void Note(const absl::Status& status, absl::string_view what, RunRecord* run) {
  if (status.ok() || absl::IsNotFound(status)) return;
  run->warnings.push_back(absl::StrCat(what, " could not be read: ", status.message(), "."));
}

absl::Status ReadRanks(FileSystem& fs, const std::string& metrics, RunRecord* run) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, RankTimesPath(metrics)));
  MEGATRON_ASSIGN_OR_RETURN(run->ranks, ParseRunRanks(text));
  return absl::OkStatus();
}

// Reads all but the metrics.
void ReadRest(FileSystem& fs, const std::string& directory, RunRecord* run) {
  Note(ReadCheckpoint(fs, directory, run), "The checkpoint", run);
  const auto& logging = run->config.config.logging();
  absl::StatusOr<RunEvents> events =
      ReadRunEvents(fs, PlaceOf(fs, directory, "tensorboard", logging.tensorboard_dir()));
  Note(events.status(), "TensorBoard's folder", run);
  if (events.ok()) run->events = *std::move(events);
  if (run->config.text.empty()) run->config = ParseRunConfig(run->events.config_text);
  run->profile = ReadRunProfile(
      fs, PlaceOf(fs, directory, "profile", run->config.config.logging().profile_dir()));
  for (const std::string& warning : run->profile.warnings) run->warnings.push_back(warning);
  Note(ReadPipeline(fs, directory, run), "The pipeline's timeline", run);
  if (run->checkpoint && run->checkpoint->vocabulary > 0) {
    absl::StatusOr<std::vector<StageMemory>> planned =
        PlanMemory(run->config.text, run->checkpoint->vocabulary);
    Note(planned.status(), "The plan of the memory", run);
    if (planned.ok()) run->planned_memory = *std::move(planned);
  }
}

// Removes the parts that all paths have in common, from both ends.
std::vector<std::string> ShortNames(const std::vector<std::string>& paths) {
  std::vector<std::vector<std::string>> parts;
  for (const std::string& path : paths)
    parts.push_back(absl::StrSplit(path, '/', absl::SkipEmpty()));
  const auto all = [&parts](const auto& part_of) {
    return std::all_of(parts.begin(), parts.end(), [&](const std::vector<std::string>& names) {
      return names.size() > 1 && part_of(names) == part_of(parts.front());
    });
  };
  while (all([](const auto& names) { return names.front(); })) {
    for (auto& names : parts) names.erase(names.begin());
  }
  while (all([](const auto& names) { return names.back(); })) {
    for (auto& names : parts) names.pop_back();
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string name = absl::StrJoin(parts[i], "/");
    const auto same = std::count(names.begin(), names.end(), name);
    names.push_back(same == 0 ? name : absl::StrCat(name, " (", i + 1, ")"));
  }
  return names;
}

}  // namespace

absl::StatusOr<RunRecord> ReadRun(FileSystem& fs, const std::string& path) {
  RunRecord run;
  const bool is_directory = IsDirectory(fs, path);
  const std::string directory = is_directory ? path : ParentPath(path);
  const std::string metrics = is_directory ? JoinPath(path, kMetricsFile) : path;
  const absl::StatusOr<std::string> text = ReadFileToString(fs, metrics);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        Quoted(metrics), " does not exist; a run is the directory that checkpoint.save named, or ",
        "the file that logging.metrics_file named"));
  }
  MEGATRON_RETURN_IF_ERROR(text.status());
  run.metrics = ParseRunMetrics(*text);
  if (run.metrics.columns.empty())
    return absl::DataLossError(absl::StrCat(Quoted(metrics), " has no record of metrics"));
  const std::vector<absl::string_view> parts = absl::StrSplit(directory, '/', absl::SkipEmpty());
  run.name = parts.empty() || parts.back() == "." ? path : std::string(parts.back());
  Note(ReadRanks(fs, metrics, &run), "The times of ranks", &run);
  ReadRest(fs, directory, &run);
  return run;
}

absl::StatusOr<std::vector<RunRecord>> ReadRuns(FileSystem& fs,
                                                const std::vector<std::string>& paths) {
  std::vector<RunRecord> runs;
  for (const std::string& path : paths) {
    MEGATRON_ASSIGN_OR_RETURN(RunRecord run, ReadRun(fs, path));
    runs.push_back(std::move(run));
  }
  if (runs.size() > 1) {
    const std::vector<std::string> names = ShortNames(paths);
    for (size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
  }
  return runs;
}

}  // namespace megatron::report
