#include "megatron/checkpoint/local/save_local_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_directory.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/shard_writer.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

// The bytes of a message between ranks.
constexpr int64_t kWindow = int64_t{1} << 20;

// A file that another rank sends.
struct Incoming {
  int sender = 0;
  int64_t bytes = 0;
  std::unique_ptr<WritableFile> file;
  std::string window;
};

// Returns the iteration that is there most often, the newest of several such. Those below 0 are
// none; -1 if all are.
int64_t NewestOfMostMachines(const std::vector<int64_t>& iterations) {
  std::map<int64_t, int> machines;
  for (const int64_t iteration : iterations) {
    if (iteration >= 0) ++machines[iteration];
  }
  int64_t newest = -1;
  int most = 0;
  for (const auto& [iteration, count] : machines) {
    if (count < most) continue;
    newest = iteration;
    most = count;
  }
  return newest;
}

class LocalSave {
 public:
  LocalSave(FileSystem& fs, const LocalSaveOptions& options, const CheckpointState& state)
      : fs_(fs),
        options_(options),
        state_(state),
        final_(Path(DirectoryKind::kFinal)),
        temporary_(Path(DirectoryKind::kTemporary)) {}

  absl::Status Run(const std::function<void()>& state_is_read) {
    // Ranks part only where they agree: each step begins when all have ended the one before it.
    MEGATRON_RETURN_IF_ERROR(Agree(is_first_of_machine() ? Look() : absl::OkStatus()));
    MEGATRON_RETURN_IF_ERROR(Agree(Prepare()));
    absl::Status status = Agree(WriteOwn(state_is_read));
    if (status.ok() && options_.peer_copies > 0) status = Agree(SendCopies());
    if (status.ok()) status = Agree(is_first_of_machine() ? Commit() : absl::OkStatus());
    if (status.ok() || !is_first_of_machine()) return status;
    RemoveCheckpointDirectory(fs_, temporary_).IgnoreError();
    // Other machines may have failed after this one had its part.
    RemoveCheckpointDirectory(fs_, final_).IgnoreError();
    return status;
  }

 private:
  int rank() const { return options_.ranks.rank(); }
  int size() const { return options_.ranks.size(); }
  const std::vector<int>& machines() const { return options_.place.machines; }
  bool is_first_of_machine() const { return machines()[static_cast<size_t>(rank())] == rank(); }

  std::string Path(DirectoryKind kind) const {
    return JoinPath(options_.place.directory, DirectoryName(state_.iteration, kind));
  }

  absl::Status Agree(absl::Status status) const {
    return options_.agree ? options_.agree(std::move(status)) : status;
  }

  // Finds what this machine has.
  absl::Status Look() {
    const std::string& directory = options_.place.directory;
    MEGATRON_RETURN_IF_ERROR(fs_.CreateDirs(directory));
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.List(directory));
    for (const std::string& name : names) {
      IterationDirectory parsed;
      if (!ParseDirectoryName(name, &parsed)) continue;
      found_.push_back(parsed);
      if (parsed.kind == DirectoryKind::kFinal && parsed.iteration < state_.iteration)
        before_.push_back(parsed.iteration);
    }
    return absl::OkStatus();
  }

  // Leaves one whole checkpoint beside the new one. Machines may have different ones where a kill
  // came between the renamings of a save.
  absl::Status Prepare() {
    std::sort(before_.rbegin(), before_.rend());
    before_.resize(kLocalCheckpoints, -1);
    std::vector<int64_t> all = before_;
    if (size() > 1) {
      all.resize(kLocalCheckpoints * static_cast<size_t>(size()));
      options_.ranks.AllGather(
          Tensor(before_.data(), DType::kInt64, {kLocalCheckpoints}),
          Tensor(all.data(), DType::kInt64, {kLocalCheckpoints * int64_t{size()}}),
          Stream::Inline());
      MEGATRON_RETURN_IF_ERROR(options_.ranks.status());
    }
    if (!is_first_of_machine()) return absl::OkStatus();
    const int64_t kept = NewestOfMostMachines(all);
    for (const IterationDirectory& other : found_) {
      if (other.kind == DirectoryKind::kFinal && other.iteration == kept) continue;
      MEGATRON_RETURN_IF_ERROR(RemoveCheckpointDirectory(
          fs_, JoinPath(options_.place.directory, DirectoryName(other.iteration, other.kind))));
    }
    return fs_.CreateDirs(temporary_);
  }

  absl::Status WriteOwn(const std::function<void()>& state_is_read) {
    CheckpointState mine = state_;
    if (rank() != 0) {
      // The whole has those of the first rank.
      mine.ints.clear();
      mine.floats.clear();
      mine.strings.clear();
    }
    mine.strings[kLocalStart] = options_.place.start;
    MEGATRON_ASSIGN_OR_RETURN(Manifest part,
                              PlanShard(mine, {rank(), size(), options_.chunk_bytes}));
    MEGATRON_RETURN_IF_ERROR(CheckSpace(part.shards[0].bytes));
    MEGATRON_RETURN_IF_ERROR(WriteShard(fs_, temporary_, mine, state_is_read, &part));
    const std::string text = SerializeManifest(part);
    bytes_ = {part.shards[0].bytes, static_cast<int64_t>(text.size())};
    return WriteAndSync(fs_, JoinPath(temporary_, PartFileName(rank(), size())), text);
  }

  absl::Status CheckSpace(int64_t shard_bytes) const {
    const int64_t needed = shard_bytes * (1 + options_.peer_copies);
    const absl::StatusOr<int64_t> free = fs_.FreeBytes(options_.place.directory);
    if (!free.ok() || *free >= needed) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("this rank's part of a local checkpoint needs ", FormatBytes(needed), ", '",
                     options_.place.directory, "' has ", FormatBytes(*free), " free"));
  }

  // Sends this rank's files to those who keep copies, and writes those that it keeps. An error of a
  // file does not end the exchange, in which others take part.
  absl::Status SendCopies() {
    std::vector<int64_t> all(2 * static_cast<size_t>(size()));
    options_.ranks.AllGather(Tensor(bytes_.data(), DType::kInt64, {2}),
                             Tensor(all.data(), DType::kInt64, {2 * int64_t{size()}}),
                             Stream::Inline());
    MEGATRON_RETURN_IF_ERROR(options_.ranks.status());
    absl::Status status;
    for (int copy = 1; copy <= options_.peer_copies; ++copy) {
      status.Update(SendFile(copy, all, 0, ShardFileName));
      status.Update(SendFile(copy, all, 1, PartFileName));
      MEGATRON_RETURN_IF_ERROR(options_.ranks.status());
    }
    return status;
  }

  absl::Status SendFile(int copy, const std::vector<int64_t>& all_bytes, size_t kind,
                        std::string (*name)(int index, int count)) {
    const int keeper = KeeperOf(machines(), rank(), copy);
    absl::Status status;
    std::vector<Incoming> incoming;
    for (int sender = 0; sender < size(); ++sender) {
      if (KeeperOf(machines(), sender, copy) != rank()) continue;
      Incoming& file = incoming.emplace_back();
      file.sender = sender;
      file.bytes = all_bytes[2 * static_cast<size_t>(sender) + kind];
      status.Update(Create(JoinPath(temporary_, name(sender, size())), &file));
    }
    const auto own = fs_.OpenNoFollow(JoinPath(temporary_, name(rank(), size())));
    status.Update(own.status());
    std::string window;
    for (int64_t offset = 0;; offset += kWindow) {
      std::vector<Transfer> sends, receives;
      if (const int64_t left = bytes_[kind] - offset; left > 0) {
        window.assign(static_cast<size_t>(std::min(left, kWindow)), '\0');
        if (own.ok()) status.Update((*own)->ReadAt(offset, absl::MakeSpan(window)));
        sends.push_back({keeper, Bytes(&window)});
      }
      for (Incoming& file : incoming) {
        file.window.resize(
            static_cast<size_t>(std::clamp<int64_t>(file.bytes - offset, 0, kWindow)));
        if (!file.window.empty()) receives.push_back({file.sender, Bytes(&file.window)});
      }
      if (sends.empty() && receives.empty()) break;
      options_.ranks.Exchange(sends, receives, Stream::Inline());
      MEGATRON_RETURN_IF_ERROR(options_.ranks.status());
      for (Incoming& file : incoming) {
        if (status.ok() && !file.window.empty()) status.Update(file.file->Append(file.window));
      }
    }
    for (Incoming& file : incoming) {
      if (!status.ok()) break;
      status.Update(file.file->Sync());
      status.Update(file.file->Close());
    }
    return status;
  }

  absl::Status Create(const std::string& path, Incoming* incoming) {
    MEGATRON_ASSIGN_OR_RETURN(incoming->file, fs_.Create(path));
    return absl::OkStatus();
  }

  static Tensor Bytes(std::string* text) {
    return Tensor(text->data(), DType::kUInt8, {static_cast<int64_t>(text->size())});
  }

  absl::Status Commit() {
    MEGATRON_RETURN_IF_ERROR(fs_.SyncDir(temporary_));
    MEGATRON_RETURN_IF_ERROR(fs_.Rename(temporary_, final_));
    return fs_.SyncDir(options_.place.directory);
  }

  FileSystem& fs_;
  const LocalSaveOptions& options_;
  const CheckpointState& state_;
  const std::string final_, temporary_;
  std::vector<IterationDirectory> found_;  // what the first rank of a machine has found there
  std::vector<int64_t> before_;            // the iterations of earlier checkpoints among it
  std::vector<int64_t> bytes_ = {0, 0};    // the sizes of this rank's shard and its manifest
};

}  // namespace

absl::Status SaveLocalCheckpoint(FileSystem& fs, const LocalSaveOptions& options,
                                 const CheckpointState& state,
                                 const std::function<void()>& state_is_read) {
  CHECK(options.ranks.size() == 1 || options.agree) << "several ranks must agree";
  CHECK_EQ(options.place.machines.size(), static_cast<size_t>(options.ranks.size()));
  return LocalSave(fs, options, state).Run(state_is_read);
}

absl::Status RemoveLocalCheckpoints(FileSystem& fs, const std::string& directory) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  for (const std::string& name : names) {
    IterationDirectory parsed;
    if (!ParseDirectoryName(name, &parsed)) continue;
    MEGATRON_RETURN_IF_ERROR(RemoveCheckpointDirectory(fs, JoinPath(directory, name)));
  }
  return fs.Remove(directory);
}

}  // namespace megatron
