#include "megatron/checkpoint/save_checkpoint.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_directory.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/retention.h"
#include "megatron/checkpoint/shard_writer.h"

namespace megatron {
namespace {

constexpr absl::string_view kItselfIsSaved = " itself is saved";

class Save {
 public:
  Save(FileSystem& fs, const SaveOptions& options, const CheckpointState& state)
      : fs_(fs),
        options_(options),
        state_(state),
        final_(Path(DirectoryKind::kFinal)),
        temporary_(Path(DirectoryKind::kTemporary)),
        replaced_(Path(DirectoryKind::kReplaced)) {}

  absl::Status Run(const std::function<void()>& state_is_read) {
    // Ranks part only where they agree: each step begins when all have ended the one before it.
    MEGATRON_RETURN_IF_ERROR(Agree(is_first_rank() ? Prepare() : absl::OkStatus()));
    absl::Status status = Agree(WriteOwn(state_is_read));
    if (status.ok()) status = Agree(is_first_rank() ? Commit() : absl::OkStatus());
    // The first error is the one to tell; a directory that can't be removed will be by the next
    // save.
    if (!status.ok() && is_first_rank()) RemoveCheckpointDirectory(fs_, temporary_).IgnoreError();
    MEGATRON_RETURN_IF_ERROR(status);
    return Agree(is_first_rank() ? Retain() : absl::OkStatus());
  }

 private:
  bool is_first_rank() const { return options_.rank == 0; }

  std::string Path(DirectoryKind kind) const {
    return JoinPath(options_.directory, DirectoryName(state_.iteration, kind));
  }

  absl::Status Agree(absl::Status status) const {
    return options_.agree ? options_.agree(std::move(status)) : status;
  }

  absl::Status Prepare() {
    MEGATRON_RETURN_IF_ERROR(CreateDirsDurably(fs_, options_.directory));
    if (fs_.Stat(final_).ok()) {
      MEGATRON_RETURN_IF_ERROR(CheckMayReplace());
    }
    // Nobody reads what an interrupted save of this iteration left, by whichever run, and it is in
    // the way.
    if (fs_.Stat(temporary_).ok()) {
      MEGATRON_RETURN_IF_ERROR(RemoveCheckpointDirectory(fs_, temporary_));
    }
    return fs_.CreateDirs(temporary_);
  }

  absl::Status CheckMayReplace() {
    const absl::StatusOr<std::string> run_id = ReadRunId(fs_, final_);
    if (run_id.ok() && *run_id == state_.run_id) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "'", final_, "' is there already and ",
        run_id.ok() ? absl::StrCat("belongs to run ", *run_id) : "can't be read as a checkpoint",
        ", this is run ", state_.run_id, ": move it away, or save to another directory"));
  }

  absl::Status WriteOwn(const std::function<void()>& state_is_read) {
    MEGATRON_ASSIGN_OR_RETURN(
        part_, PlanShard(state_, {options_.rank, options_.world_size, options_.chunk_bytes}));
    MEGATRON_RETURN_IF_ERROR(CheckSpace());
    MEGATRON_RETURN_IF_ERROR(WriteShard(fs_, temporary_, state_, state_is_read, &part_),
                             _ << NeededSpace());
    if (is_first_rank()) return absl::OkStatus();  // Commit has it in memory.
    return WriteManifest(PartPath(options_.rank), part_);
  }

  // Once it has its name a checkpoint that nobody can read would take the place of one that can be.
  absl::Status WriteManifest(const std::string& path, const Manifest& manifest) {
    const std::string text = SerializeManifest(manifest);
    if (static_cast<int64_t>(text.size()) <= options_.max_manifest_bytes)
      return WriteAndSync(fs_, path, text);
    return absl::OutOfRangeError(
        absl::StrCat("'", path, "' would have ", text.size(), " bytes, and readers take at most ",
                     options_.max_manifest_bytes, ": with fewer ranks it is shorter"));
  }

  // The bytes of this rank's files, at most.
  int64_t NeededBytes() const {
    const int64_t shard = part_.shards[0].bytes;
    int64_t pieces = 0;
    for (const TensorEntry& tensor : part_.tensors)
      pieces += static_cast<int64_t>(tensor.pieces.size());
    return shard + ManifestRoom(static_cast<int64_t>(part_.tensors.size()), pieces, shard,
                                options_.chunk_bytes);
  }

  std::string NeededSpace() const {
    const absl::StatusOr<int64_t> free = fs_.FreeBytes(options_.directory);
    return absl::StrCat("this rank's part of the checkpoint needs ", FormatBytes(NeededBytes()),
                        ", '", options_.directory, "' has ",
                        free.ok() ? FormatBytes(*free) : "an unknown number of bytes", " free");
  }

  absl::Status CheckSpace() {
    const absl::StatusOr<int64_t> free = fs_.FreeBytes(options_.directory);
    if (!free.ok() || *free >= NeededBytes()) return absl::OkStatus();
    return absl::ResourceExhaustedError(NeededSpace());
  }

  std::string PartPath(int rank) const {
    return JoinPath(temporary_, PartFileName(rank, options_.world_size));
  }

  absl::Status Commit() {
    std::vector<Manifest> parts = {std::move(part_)};
    for (int rank = 1; rank < options_.world_size; ++rank) {
      MEGATRON_ASSIGN_OR_RETURN(parts.emplace_back(), ReadManifest(fs_, PartPath(rank)));
      MEGATRON_RETURN_IF_ERROR(fs_.Remove(PartPath(rank)));
    }
    MEGATRON_ASSIGN_OR_RETURN(const Manifest manifest, MergeParts(parts),
                              _ << "while merging the parts of '" << temporary_ << "'");
    MEGATRON_RETURN_IF_ERROR(WriteManifest(JoinPath(temporary_, kManifestFileName), manifest));
    MEGATRON_RETURN_IF_ERROR(fs_.SyncDir(temporary_));
    if (fs_.Stat(final_).ok()) {
      MEGATRON_RETURN_IF_ERROR(MoveFinalAway());
    }
    MEGATRON_RETURN_IF_ERROR(fs_.Rename(temporary_, final_));
    MEGATRON_RETURN_IF_ERROR(fs_.SyncDir(options_.directory));
    return NameLatest();
  }

  // With a directory in the file's place the newest checkpoint is taken. A file that stays names
  // another one, which would be taken.
  absl::Status NameLatest() {
    const std::string path = JoinPath(options_.directory, kLatestFileName);
    const absl::Status named = WriteFileAtomically(fs_, path, absl::StrCat(state_.iteration, "\n"));
    if (named.ok()) return named;
    const absl::StatusOr<FileInfo> there = fs_.Stat(path);
    if (!there.ok() || there->type != FileType::kDirectory) return named;
    unnamed_ = named;
    return absl::OkStatus();
  }

  // A directory can't be renamed over a full one. The old one keeps a name under which it is found
  // and read.
  absl::Status MoveFinalAway() {
    if (fs_.Stat(replaced_).ok()) {
      MEGATRON_RETURN_IF_ERROR(RemoveCheckpointDirectory(fs_, replaced_));
    }
    return fs_.Rename(final_, replaced_);
  }

  absl::Status Retain() {
    const absl::Status removed = RemoveOldCheckpoints(
        fs_, options_.directory,
        {state_.run_id, state_.iteration, options_.keep, options_.retain_interval});
    MEGATRON_RETURN_IF_ERROR(unnamed_.ok() ? removed : unnamed_, _ << "the checkpoint of iteration "
                                                                   << state_.iteration
                                                                   << kItselfIsSaved);
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const SaveOptions& options_;
  const CheckpointState& state_;
  const std::string final_, temporary_, replaced_;
  Manifest part_;
  absl::Status unnamed_;  // why latest_checkpointed_iteration.txt could not be written
};

}  // namespace

int64_t ManifestRoom(int64_t tensors, int64_t pieces, int64_t bytes, int64_t chunk_bytes) {
  constexpr int64_t kTextPerEntry = 1024;
  constexpr int64_t kTextPerChunk = 8;
  // A piece may have one chunk more than its bytes fill.
  return kTextPerEntry * (tensors + pieces) + kTextPerChunk * (bytes / chunk_bytes + pieces);
}

absl::Status SaveCheckpoint(FileSystem& fs, const SaveOptions& options,
                            const CheckpointState& state,
                            const std::function<void()>& state_is_read) {
  CHECK(options.world_size == 1 || options.agree) << "several ranks must agree";
  CHECK_GT(options.chunk_bytes, 0);
  CHECK_GE(state.iteration, 0);
  return Save(fs, options, state).Run(state_is_read);
}

bool IsSaved(const absl::Status& error) {
  return absl::StrContains(error.message(), kItselfIsSaved);
}

}  // namespace megatron
