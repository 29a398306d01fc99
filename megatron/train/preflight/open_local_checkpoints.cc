#include "megatron/train/preflight/open_local_checkpoints.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/local/find_local_checkpoint.h"
#include "megatron/checkpoint/local/peer_files.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/names.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/trainer/consensus.h"

namespace megatron {
namespace {

constexpr size_t kNameDigits = 16;

// A name that no other run has.
std::string NewName() { return JobSecret::Random().ToHex().substr(0, kNameDigits); }

// Returns the name of the run's local checkpoints, which the first start writes.
absl::StatusOr<std::string> NameOfRun(FileSystem& fs, const std::string& save) {
  const std::string path = JoinPath(save, kLocalNameFile);
  const absl::StatusOr<std::string> text = ReadFileToString(fs, path, /*max_bytes=*/4096);
  if (text.ok()) {
    const std::string name(absl::StripAsciiWhitespace(*text));
    if (IsValidRunId(name)) return name;
    return absl::DataLossError(
        absl::StrCat("'", path, "' holds no name of local checkpoints; remove it"));
  }
  if (!absl::IsNotFound(text.status())) return text.status();
  const std::string name = NewName();
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, path, name + "\n"));
  return name;
}

// The length of a variable's name at the start of the text.
size_t NameLength(absl::string_view text) {
  size_t length = 0;
  while (length < text.size() && (absl::ascii_isalnum(text[length]) || text[length] == '_'))
    ++length;
  return length;
}

absl::Status NamesField(absl::string_view field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::string> LocalDirectory(const std::string& local_save,
                                           const std::map<std::string, std::string>& variables) {
  std::string path;
  for (absl::string_view rest = local_save; !rest.empty();) {
    if (!absl::ConsumePrefix(&rest, "$")) {
      const size_t end = std::min(rest.find('$'), rest.size());
      absl::StrAppend(&path, rest.substr(0, end));
      rest.remove_prefix(end);
      continue;
    }
    const bool braced = absl::ConsumePrefix(&rest, "{");
    const std::string name(rest.substr(0, NameLength(rest)));
    rest.remove_prefix(name.size());
    const auto variable = variables.find(name);
    if (variable == variables.end() || (braced && !absl::ConsumePrefix(&rest, "}"))) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint.local_save = ", local_save, ": ",
                       variable == variables.end()
                           ? absl::StrCat("there is no variable '", name, "' on this machine")
                           : absl::StrCat("a } is missing behind ", name)));
    }
    absl::StrAppend(&path, variable->second);
  }
  return PathFromWhereTheUserStands(path);
}

std::string LocalDirectoryHere(const CheckpointOptions& options) {
  if (options.local_save.empty()) return "";
  return LocalDirectory(options.local_save, ProcessEnvironment()).value_or("");
}

absl::StatusOr<LocalPlace> OpenLocalPlace(
    FileSystem& fs, const CheckpointOptions& options, int ranks, const ProcessGroup& processes,
    absl::FunctionRef<absl::Status(const absl::Status&)> agree,
    absl::FunctionRef<void(const std::string&)> warn) {
  if (options.local_save.empty()) return LocalPlace();
  Consensus consensus(processes);
  const bool is_first = processes.rank() == 0;
  absl::StatusOr<std::string> directory = LocalDirectory(options.local_save, ProcessEnvironment());
  absl::StatusOr<std::string> name = std::string();
  absl::Status status = WithExitCode(directory.status(), kExitConfig);
  if (status.ok() && is_first) {
    name = NameOfRun(fs, options.save);
    status = WithExitCode(name.status(), kExitIo);
  }
  MEGATRON_RETURN_IF_ERROR(agree(status));
  const std::string own = JoinPath(*directory, consensus.OfFirst(*name));
  const std::string start = consensus.OfFirst(NewName());
  const Agreement agree_in_save = [&consensus](absl::Status mine) {
    return consensus.FirstFailure(WithExitCode(NamesField("checkpoint.local_save", mine), kExitIo));
  };
  absl::StatusOr<LocalPlace> place = FindMachines(fs, own, start, processes, agree_in_save);
  MEGATRON_RETURN_IF_ERROR(WithExitCode(processes.status(), kExitPeerLost));
  if (!place.ok()) {
    warn(absl::StrCat(place.status().message(),
                      "; training continues without local checkpoints until the next start"));
    return LocalPlace();
  }
  if (processes.size() == 1) place->machines.assign(static_cast<size_t>(ranks), 0);
  const int machines = static_cast<int>(DistinctMachines(place->machines).size());
  if (options.peer_copies < machines) return place;
  warn(absl::StrCat("checkpoint.peer_copies = ", options.peer_copies, ": ",
                    machines == 1
                        ? "all ranks have one checkpoint.local_save, so that there are no copies"
                        : absl::StrCat("only ", machines,
                                       " machines have a checkpoint.local_save of their own, so "
                                       "that there are fewer copies")));
  return place;
}

absl::Status PreferLocalCheckpoint(FileSystem& fs, const CheckpointOptions& options,
                                   const std::string& run_id, const LocalPlace& place,
                                   const ProcessGroup& processes,
                                   absl::FunctionRef<void(const std::string&)> tell,
                                   absl::FunctionRef<void(const std::string&)> warn,
                                   StartingPoint* start) {
  if (place.directory.empty()) return absl::OkStatus();
  const int64_t saved =
      start->checkpoint != nullptr && start->is_own ? start->checkpoint->manifest().iteration : -1;
  LocalPlace of_processes = place;
  of_processes.machines.resize(static_cast<size_t>(processes.size()));
  absl::StatusOr<FoundLocalCheckpoint> found =
      WithExitCode(FindLocalCheckpoint(fs, of_processes, run_id, saved, processes), kExitPeerLost);
  MEGATRON_RETURN_IF_ERROR(found.status());
  for (const std::string& warning : found->warnings) warn(warning);
  if (!found->checkpoint) return absl::OkStatus();
  const Manifest& manifest = found->checkpoint->manifest;
  // The path as the user has it, whose variables are those of each machine.
  const std::string run = place.directory.substr(place.directory.rfind('/') + 1);
  const std::string name =
      JoinPath(JoinPath(options.local_save, run), DirectoryName(manifest.iteration));
  const std::string newest =
      saved < 0 ? absl::StrCat(options.save, " has none")
                : absl::StrCat("the newest in ", options.save, " is of iteration ", saved);
  const std::string shards = FormatQuantity(manifest.shard_count, "shard");
  auto files = std::make_shared<PeerFiles>(fs, *std::move(found->checkpoint), of_processes.machines,
                                           processes.rank());
  tell(absl::StrCat("taking the local checkpoint ", name, ", ", shards,
                    files->is_spread() ? " on several machines: " : ": ", newest));
  start->checkpoint = std::make_unique<CheckpointReader>(files->OpenReader(name));
  start->peer_files = std::move(files);
  start->restore = Restore::kEverything;
  return absl::OkStatus();
}

}  // namespace megatron
