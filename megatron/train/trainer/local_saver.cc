#include "megatron/train/trainer/local_saver.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/checkpoint/local/save_local_checkpoint.h"

namespace megatron {

LocalSaver::LocalSaver(const CheckpointOptions& options, const LocalPlace& place,
                       const ProcessGroup& ranks, FileSystem& fs)
    : options_(options), place_(place), ranks_(ranks), fs_(fs), consensus_(ranks) {
  if (place.directory.empty()) return;
  LocalSaveOptions save;
  save.place = place;
  save.peer_copies =
      std::min(options.peer_copies, static_cast<int>(DistinctMachines(place.machines).size()) - 1);
  save.ranks = ranks;
  save.agree = [this](absl::Status status) { return consensus_.FirstError(status); };
  writer_ = std::make_unique<AsyncCheckpointWriter>(
      [this, save = std::move(save)](const CheckpointState& state,
                                     const std::function<void()>& state_is_read) {
        return SaveLocalCheckpoint(fs_, save, state, state_is_read);
      });
}

bool LocalSaver::IsDue(int64_t iteration) const {
  return writer_ != nullptr && iteration % options_.local_save_interval == 0;
}

void LocalSaver::Start(CheckpointState state) {
  iteration_ = state.iteration;
  writer_->Start(std::move(state));
}

void LocalSaver::WaitUntilRead() {
  if (writer_ != nullptr) writer_->WaitUntilRead();
}

bool LocalSaver::HasRead() { return writer_ == nullptr || writer_->HasRead(); }

absl::Status LocalSaver::Finish() {
  if (writer_ == nullptr) return absl::OkStatus();
  const absl::Status status = writer_->Wait();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("the local checkpoint of iteration ", iteration_,
                                                  " was not saved: ", status.message()));
}

absl::Status LocalSaver::Remove() {
  const bool is_first_of_machine =
      writer_ != nullptr && place_.machines[static_cast<size_t>(ranks_.rank())] == ranks_.rank();
  return is_first_of_machine ? RemoveLocalCheckpoints(fs_, place_.directory) : absl::OkStatus();
}

}  // namespace megatron
