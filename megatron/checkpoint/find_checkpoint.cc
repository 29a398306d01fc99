#include "megatron/checkpoint/find_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/names.h"

namespace megatron {
namespace {

constexpr int64_t kMaxLatestBytes = 4096;

// Those that may be loaded, the best first.
absl::StatusOr<std::vector<IterationDirectory>> ListCandidates(FileSystem& fs,
                                                               const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(directory);
  if (absl::IsNotFound(names.status()))
    return absl::NotFoundError(absl::StrCat("there is no directory '", directory, "'"));
  if (!names.ok()) return names.status();
  std::vector<IterationDirectory> candidates;
  for (const std::string& name : *names) {
    IterationDirectory parsed;
    const bool matches = ParseDirectoryName(name, &parsed);
    if (matches && parsed.kind != DirectoryKind::kTemporary) candidates.push_back(parsed);
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const IterationDirectory& a, const IterationDirectory& b) {
              return a.iteration != b.iteration ? a.iteration > b.iteration : a.kind < b.kind;
            });
  return candidates;
}

absl::Status CheckCheckpoint(FileSystem& fs, const std::string& directory, Check check) {
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs, directory));
  if (check == Check::kStructure) return absl::OkStatus();
  const std::vector<absl::Status> errors = reader.Verify();
  return errors.empty() ? absl::OkStatus() : errors[0];
}

// The iteration that the file names; kNotFound where there is no file, kDataLoss where it names
// none.
absl::StatusOr<int64_t> ReadLatest(FileSystem& fs, const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMaxLatestBytes));
  int64_t iteration = 0;
  if (ParseIteration(text, &iteration)) return iteration;
  return absl::DataLossError(absl::StrCat("'", path, "' does not hold an iteration's number"));
}

}  // namespace

absl::StatusOr<FoundCheckpoint> FindLatestCheckpoint(FileSystem& fs,
                                                     const std::string& save_directory,
                                                     Check check) {
  MEGATRON_ASSIGN_OR_RETURN(std::vector<IterationDirectory> candidates,
                            ListCandidates(fs, save_directory));
  const auto latest = ReadLatest(fs, JoinPath(save_directory, kLatestFileName));
  if (candidates.empty() && absl::IsNotFound(latest.status())) {
    return absl::NotFoundError(absl::StrCat("'", save_directory, "' holds no checkpoint"));
  }
  FoundCheckpoint found;
  if (!latest.ok()) found.warnings.emplace_back(latest.status().message());
  if (latest.ok()) {
    const auto is_named = [&](const IterationDirectory& c) { return c.iteration == *latest; };
    if (std::none_of(candidates.begin(), candidates.end(), is_named)) {
      found.warnings.push_back(absl::StrCat("'", save_directory, "/", kLatestFileName,
                                            "' names iteration ", *latest,
                                            ", of which there is no checkpoint"));
    }
    std::stable_partition(candidates.begin(), candidates.end(), is_named);
  }
  for (const IterationDirectory& candidate : candidates) {
    found.iteration = candidate.iteration;
    found.directory = JoinPath(save_directory, DirectoryName(candidate.iteration, candidate.kind));
    const absl::Status status = CheckCheckpoint(fs, found.directory, check);
    if (status.ok()) return found;
    found.warnings.emplace_back(status.message());
  }
  return absl::DataLossError(absl::StrCat("no checkpoint in '", save_directory, "' can be loaded: ",
                                          absl::StrJoin(found.warnings, "; ")));
}

}  // namespace megatron
